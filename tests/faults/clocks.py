"""Rewrites journals as if some of the processes had run on another host with another clock.

A host whose crystal is fast counts both its monotonic and its unix time too fast: all durations and
times are scaled, and unix time is off by an offset from the beginning of the run on. The host bears
a name and a boot of its own. What was written is otherwise untouched, so that the verdict on the
rewritten journals must be that on the true ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Durations and times since t0, in records of either kind of file.
_TIMES = ("t", "d", "u", "v", "z", "g")
# Several hosts cannot meet at a loopback address, so the journals speak of another one.
_ADDRESS = b"10.0.0.1"


@dataclass(frozen=True, slots=True)
class _Clock:
    """A clock that is off by so many nanoseconds at `base_ns` and runs at `rate`."""

    offset_ns: int
    rate: float
    base_ns: int

    def unix(self, true_ns: int) -> int:
        return self.base_ns + round((true_ns - self.base_ns) * self.rate) + self.offset_ns

    def shifted(self, record: dict[str, Any]) -> dict[str, Any]:
        changed = dict(record)
        for key in _TIMES:
            if isinstance(record.get(key), int):
                changed[key] = round(record[key] * self.rate)
        for key in ("unix_ns", "start_ns"):
            if key in record:
                changed[key] = self.unix(record[key])
        if record.get("def") == "process":
            changed["t0"] = round(record["t0"] * self.rate)
            # One host per clock: processes with the same clock stay neighbours.
            changed["host"] = f"host-{self.offset_ns}"
            changed["boot_id"] = f"boot-{self.offset_ns}-{self.rate}"
        return changed


def _first_record(definitions: Path) -> dict[str, Any]:
    line, ended, _ = definitions.read_text().partition("\n")
    first: dict[str, Any] = json.loads(line) if ended else {}
    return first  # empty where the process has only just made the file


def _copy(source: Path, target: Path, clock: _Clock) -> None:
    lines = []
    for line in source.read_bytes().split(b"\0", 1)[0].split(b"\n"):
        try:
            record = json.loads(line.replace(b"127.0.0.1", _ADDRESS))
        except ValueError:
            continue  # the torn last line of a process that still writes
        lines.append(json.dumps(clock.shifted(record)) + "\n")
    target.write_text("".join(lines))


def shift_clocks(source: Path, target: Path, clocks: Mapping[int, tuple[float, float]]) -> None:
    """Copy journals; those of the given ranks get a clock that is off by (seconds, ppm)."""
    target.mkdir()
    known = ((file, _first_record(file)) for file in source.glob("*.defs.jsonl"))
    firsts = {file: first for file, first in known if first}
    base_ns = min((first["unix_ns"] for first in firsts.values()), default=0)
    for definitions, first in firsts.items():
        rank = first.get("env", {}).get("RANK")
        seconds, ppm = clocks.get(-1 if rank is None else int(rank), (0.0, 0.0))
        clock = _Clock(round(seconds * 1e9), 1 + ppm / 1e6, base_ns)
        name = definitions.name.removesuffix(".defs.jsonl")
        for file in source.glob(f"{name}.*"):
            _copy(file, target / file.name, clock)
