"""Operations as slices of the trace-event format, encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.trace.columns import STATUS
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.call_fields import shared
from disttrace_viewer.wording.quantities import duration, spans

_ROW = (
    "process",
    "number",
    "call",
    "track",
    "seq",
    "key",
    "source",
    "error",
    "bytes",
    "begin_ns",
    "issued_ns",
    "wait_begin_ns",
    "complete_ns",
    "end_ns",
    "status",
)
Event = dict[str, Any]
Clock = Callable[[int], float]
"""From unix nanoseconds to the format's microseconds."""


def pid(process: int) -> int:
    """Of a track group. Pids are no names: hosts and containers have the same ones."""
    return process + 1


def tid(track: int) -> int:
    """Of a track, unlike all others' and all pids: Perfetto knows threads by this number alone."""
    return 1_000_000 + track


class Slices:
    """Encodes operations; keeps the encoded part that all operations of a call share."""

    def __init__(self, trace: Trace, us: Clock) -> None:
        self._trace = trace
        self._us = us
        self._shared: dict[int, tuple[str, str, bytes]] = {}

    def of(self, rows: pl.DataFrame) -> Iterator[bytes]:
        """The slices of rows of the operations table with their ``track``."""
        return map(self._one, rows.with_columns(STATUS).select(_ROW).iter_rows())

    def _one(self, row: tuple[Any, ...]) -> bytes:
        """The slice of an operation."""
        (
            process, number, call, track, seq, key, source, error, size,
            begin, issued, wait, complete, end, status,
        ) = row  # fmt: skip
        name, kind, shared = self._call(call)
        own = {
            "id": self._trace.operation_id(process, number),
            "status": status,
            "error": None if error is None else self._trace.errors[error],
            "seq": seq,
            "bytes": size,
            "key": None if key is None else self._trace.full_key(call, key),
            "source": source,
            "issued_us": self._after(begin, issued),
            "wait_begin_us": self._after(begin, wait),
            "complete_us": self._after(begin, complete),
        }
        args = orjson.dumps({name: value for name, value in own.items() if value is not None})
        place = {"pid": pid(process), "tid": tid(track), "ts": self._us(begin)}
        if seq is not None:
            name = f"{name} #{seq}"
        event: Event = {"name": name, "cat": kind, **place, "ph": "X"}
        if end is not None:
            event["dur"] = (end - begin) / 1000
        elif status == "error":
            event["dur"] = ((issued or begin) - begin) / 1000
        else:
            # To the last sign of life of its process: so long it was in flight at least.
            age = max(0, self._trace.processes[process].last_ns - begin)
            event |= {"dur": age / 1000, "cname": "terrible"}
            event["name"] = f"{name} (in flight {duration(age)})"
        joint = b"," if len(shared) > 2 else b""
        return orjson.dumps(event)[:-1] + b',"args":' + args[:-1] + joint + shared[1:] + b"}"

    def _call(self, number: int) -> tuple[str, str, bytes]:
        found = self._shared.get(number)
        if found is None:
            call = self._trace.call(number)
            kept = shared(self._trace, number)
            stack = [f"{file}:{line} {function}" for file, line, function in kept.pop("stack")]
            if stack:
                kept["stack"] = stack
            if "group_ranks" in kept:
                kept["group_ranks"] = spans(kept["group_ranks"])  # not one line for each
            if "args" in kept:
                kept["arguments"] = kept.pop("args")  # they stand in what the format calls "args"
            del kept["op"], kept["kind"]  # the name and the category of the slice
            name = call.name if call.op == "annotate" and call.name else call.op
            found = self._shared[number] = (name, call.kind, orjson.dumps(kept))
        return found

    def _after(self, begin: int, moment: int | None) -> float | None:
        return None if moment is None else (moment - begin) / 1000
