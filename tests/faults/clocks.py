"""Rewrites journals as if some of the processes had run on another host with another clock.

Every time in a journal is counted from `t0` by one clock and tied to unix time by anchors, so a
host whose clock is wrong is made exactly: its durations are scaled by the drift, its anchors are
moved by the offset, and it bears a name and a boot of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Durations and times since t0, in records of either kind of file.
_TIMES = ("t", "d", "u", "v", "z", "g", "from_t", "to_t")


def _rank(definitions: Path) -> int | None:
    """The rank that the process had in its environment."""
    first = json.loads(definitions.read_text().split("\n", 1)[0])
    value = first.get("env", {}).get("RANK")
    return None if value is None else int(value)


def _shifted(record: dict[str, Any], offset_ns: int, factor: float) -> dict[str, Any]:
    for key in _TIMES:
        if isinstance(record.get(key), int):
            record[key] = round(record[key] * factor)
    if "unix_ns" in record:
        record["unix_ns"] += offset_ns
    if record.get("def") == "process":
        record["t0"] = round(record["t0"] * factor)
        record["start_ns"] += offset_ns
        # One host per offset: processes with the same clock stay neighbours.
        record["host"] = f"host-{offset_ns}"
        record["boot_id"] = f"boot-{offset_ns}-{factor}"
    return record


def _copy(source: Path, target: Path, offset_ns: int, factor: float) -> None:
    lines = []
    for line in source.read_bytes().split(b"\0", 1)[0].split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the torn last line of a process that still writes
        lines.append(json.dumps(_shifted(record, offset_ns, factor)) + "\n")
    target.write_text("".join(lines))


def shift_clocks(source: Path, target: Path, clocks: Mapping[int, tuple[float, float]]) -> None:
    """Copy journals; those of the given ranks get a clock that is off by (seconds, ppm)."""
    target.mkdir()
    for definitions in source.glob("*.defs.jsonl"):
        name = definitions.name.removesuffix(".defs.jsonl")
        seconds, ppm = clocks.get(_rank(definitions) or 0, (0.0, 0.0))
        for file in source.glob(f"{name}.*"):
            _copy(file, target / file.name, round(seconds * 1e9), 1 + ppm / 1e6)
