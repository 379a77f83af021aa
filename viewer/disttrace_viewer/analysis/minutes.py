"""What was called before the oldest operations that a journal still holds, counted by the minute.

The companion writes it beside the journal while the job runs (``companion/follower.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from disttrace.journal.format import DEFS_SUFFIX, MINUTES_SUFFIX, OPS_SUFFIX
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.load import files
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.trace.process import Frame, Process

MINUTE_NS = 60_000_000_000
_HEAD = 4_096
"""Bytes in which the first line of a segment is."""
_NUMBERS = ("m", "s", "n", "d", "h", "x")


@dataclass(slots=True)
class Older:
    """Calls of an operation in a group (its id) at a line, of all ranks together, that ended from
    ``from_ns`` to ``to_ns`` (unix). ``partial``: not all were seen.
    """

    op: str
    group: str | None
    line: str
    ranks: set[int | None] = field(default_factory=set)
    calls: int = 0
    total_ns: int = 0
    held_ns: int = 0
    max_ns: int = 0
    from_ns: int = 1 << 62
    to_ns: int = 0
    partial: bool = False


def older(processes: Sequence[Process]) -> list[Older]:
    """Of those that gave up segments, what these held; the longest in all first."""
    found: dict[tuple[str, str | None, str], Older] = {}
    for process in processes:
        if process.dropped:
            _take(process, found)
    return sorted(found.values(), key=lambda one: (-one.total_ns, one.op, one.line))


def _take(process: Process, found: dict[tuple[str, str | None, str], Older]) -> None:
    defined = next((path for path in process.paths if path.endswith(DEFS_SUFFIX)), "")
    lines = list(_lines(defined.removesuffix(DEFS_SUFFIX) + MINUTES_SUFFIX))
    if not lines:
        return
    definitions = Definitions()
    for record in _lines(defined):
        definitions.add(record)
    until_ns = _kept_from_ns(process, definitions)
    places: dict[int, tuple[str, str | None, str]] = {}
    for line in lines:
        values = [line.get(name) for name in _NUMBERS]
        if any(type(value) is not int or value < 0 for value in values):
            continue
        minute, call, count, took, held, longest = map(int, values)  # type: ignore[arg-type]
        if (minute + 1) * MINUTE_NS > until_ns:
            continue  # some of it is still there
        if call not in places:
            places[call] = _place(definitions, call)
        one = found.setdefault(places[call], Older(*places[call]))
        one.ranks.add(process.rank)
        one.calls += count
        one.total_ns += took
        one.held_ns += held
        one.max_ns = max(one.max_ns, longest)
        one.from_ns = min(one.from_ns, minute * MINUTE_NS)
        one.to_ns = max(one.to_ns, (minute + 1) * MINUTE_NS)
        one.partial |= "p" in line


def _kept_from_ns(process: Process, definitions: Definitions) -> int:
    """When the oldest segment was begun that is still there, unix ns; 0 where it is not known."""
    segments = sorted(path for path in process.paths if path.endswith(OPS_SUFFIX))
    head = next(_lines(segments[0], _HEAD), {}) if segments else {}
    zero_ns, begun = definitions.process.get("unix_ns"), head.get("t")
    return zero_ns + begun if type(zero_ns) is int and type(begun) is int else 0


def _place(definitions: Definitions, number: int) -> tuple[str, str | None, str]:
    call = definitions.get("call", number) or {}
    group = call.get("group")
    frame = innermost(tuple(Frame(*one) for one in definitions.frames(call.get("stack"))))
    line = "" if frame is None else f"{frame.file}:{frame.line}"
    return (
        str(call.get("op") or "?"),
        None if group is None else definitions.group_id(group),
        line,
    )


def _lines(path: str, most: int = files.MOST_BYTES) -> Iterator[dict[str, object]]:
    if files.is_remote(path) or not os.path.exists(path):
        return
    try:
        data, _ = files.read(path, most)
    except OSError:  # none may read it, or it is gone
        return
    for line in data.splitlines():
        record = json_object(line)
        if record is not None:
            yield record
