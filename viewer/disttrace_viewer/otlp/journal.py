"""Follows the journal of one process and turns its records into operations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.load import ids
from disttrace_viewer.load.definitions import completed
from disttrace_viewer.load.fates import fold, over
from disttrace_viewer.load.ids import Context, parse_traceparent
from disttrace_viewer.load.schema import Record, json_object
from disttrace_viewer.load.tail import GrowingDefinitions, Tail
from disttrace_viewer.trace.values import dataclass

IN_FLIGHT, OK, ERROR = "in_flight", "ok", "error"
"""What is known of an operation's outcome."""
_EXPECTED_NS = 10_000_000_000
"""So long a wait is expected for what was seen complete, or was waited for in vain."""


@dataclass(slots=True, eq=False)
class LiveOperation:
    """One operation: its begin, in which ``fold`` writes what becomes of it. ``begin`` counts from
    the journal's ``t0``, the other times from it.
    """

    journal: JournalReader
    record: Record
    call: Record
    parent: LiveOperation | None
    user: Context | None
    error: str | None = None
    pending_sent: bool = False

    @property
    def number(self) -> int:
        """Its number in the process."""
        return self.record["b"]  # type: ignore[no-any-return]

    @property
    def begin(self) -> int:
        """When it began."""
        return self.record["t"]  # type: ignore[no-any-return]

    @property
    def end(self) -> int | None:
        """When it was over, or dropped; None as long as it is not known."""
        record = self.record
        if "end" in record:
            return record["end"]  # type: ignore[no-any-return]
        if "lost" in record or over(record, self.call):
            return record.get("complete", record.get("lost"))
        return None

    @property
    def raised_on_issue(self) -> bool:
        """Torch would not make the call."""
        return bool(self.record.get("f"))

    @property
    def seq(self) -> int | None:
        """Its number in the group or stream, which a refused call gives back."""
        return None if self.raised_on_issue else self.record.get("q")

    @property
    def bytes(self) -> int | None:
        """Of the tensors passed in."""
        return self.record.get("n", self.call.get("bytes"))

    @property
    def peer(self) -> int | None:
        """Group rank of a message's other end."""
        return self.call.get("peer", self.record.get("y"))

    @property
    def unobserved(self) -> bool:
        """Its work was dropped, and its end not seen."""
        return "lost" in self.record and "complete" not in self.record

    @property
    def status(self) -> str:
        """How it stands."""
        if self.error is not None:
            return ERROR
        return IN_FLIGHT if self.end is None else OK


class JournalReader:
    """One journal: definitions, operations in flight, and those that ended since the last poll."""

    def __init__(self, directory: str, base: str, *, owner: int | None = None) -> None:
        """``owner``: the user whose files alone are read, where others may write beside them."""
        self.base = base
        self._owner = owner
        self.in_flight: dict[int, LiveOperation] = {}
        self.last = 0
        """Newest time in the journal, from ``t0``."""
        self.gone = False
        self.unread = 0
        """Segments that were dropped before they could be read."""
        self._path = os.path.join(directory, base)
        self.definitions = GrowingDefinitions(self._path, owner)
        self._segments: list[Tail] = []
        self._next = 1
        self._expected: dict[int, LiveOperation] = {}
        """Those of which a wait may follow; else they were over when that was last seen."""
        self._begun: list[LiveOperation] = []

    @cached_property
    def outer(self) -> Context | None:
        """The span outside of the job under which it runs."""
        return ids.trace_of("", self.definitions.env)[1]

    @cached_property
    def root(self) -> Context:
        """Its own span, sampled as its starter decided."""
        trace, outer = ids.trace_of(str(self.definitions.process.get("job")), self.definitions.env)
        span = fmt.process_span_id(trace, self.definitions.id)
        return Context(trace, span, None if outer is None else outer.sampled)

    def poll(self, *, final: bool = False) -> Iterator[LiveOperation]:
        """Read what is new, and yield what ended in order; ``final``: the process is gone."""
        while True:
            self._open_segments()
            lines = self._read_operations(final=final)
            # After the operations: a definition is in its file before what refers to it.
            self.definitions.read(final=final)
            self._seen(self.definitions.last_t)
            for line in lines:
                record = json_object(line)
                if record is not None:  # else a torn line of a process that was killed
                    yield from self._take(record)
            if not lines:
                break
        for operation in list(self._expected.values()):
            if final or self.last - operation.begin - (operation.end or 0) > _EXPECTED_NS:
                yield self._over(operation)

    def begun(self) -> list[LiveOperation]:
        """Operations that began since the last call."""
        new, self._begun = self._begun, []
        return new

    def close(self) -> None:
        """Let go of all files."""
        self.definitions.close()
        for tail in self._segments:
            tail.close()
        self._segments.clear()
        self.gone = True

    def delete(self) -> None:
        """Remove the journal's files; what cannot be removed, or is not ours, stays."""
        if self._owner is None or not fmt.is_plain_name(self.base):
            return
        names = [fmt.definitions_name(self._path)]
        names += [fmt.segment_name(self._path, n) for n in range(1, self._next)]
        for name in names:
            fmt.remove_own(name, self._owner)

    # -- reading -----------------------------------------------------------------------------

    def _open_segments(self) -> None:
        """Open every segment that exists: an open file survives being dropped."""
        for record in self.definitions.listed["dropped"]:
            number = record.get("segment")
            if number is not None and number >= self._next:
                self.unread += number + 1 - self._next
                self._next = number + 1
        while True:
            try:
                self._segments.append(Tail(fmt.segment_name(self._path, self._next), self._owner))
            except OSError:
                return
            self._next += 1

    def _read_operations(self, *, final: bool) -> list[bytes]:
        while self._segments:
            last = len(self._segments) == 1
            lines = self._segments[0].lines(final=final or not last)
            if lines or last:
                return lines
            self._segments.pop(0).close()
        return []

    # -- records -----------------------------------------------------------------------------

    def _take(self, line: dict[str, Any]) -> Iterator[LiveOperation]:
        kind = next(iter(line), None)
        if kind not in _KINDS:
            return
        record = self.definitions.checker.record(kind, line)
        if record is None:
            return
        if kind == fmt.BEGIN:
            self._begin(record)
        elif kind in _FATES:
            number = record[kind]
            operation = self.in_flight.get(number) or self._expected.get(number)
            if operation is None:
                return
            self._seen(operation.begin + record["d"])
            fold(operation.record, kind, record)
            failed = operation.record.get("x")
            text = self.definitions.string(failed) or "?"
            operation.error = None if failed is None else text
            if operation.end is None:  # where it was waited for in vain before, it is once more
                self._expected.pop(number, None)
                self.in_flight[number] = operation
            elif "r" in record or (
                kind == fmt.COMPLETE
                and not fmt.ends_on_device(
                    operation.call.get("backend"), operation.call.get("device")
                )
            ):
                self.in_flight.pop(number, None)
                self._expected[number] = operation
            elif kind != fmt.ISSUED:
                yield self._over(operation)
        else:
            self._seen(record.get("t") or (record[kind] if kind in _TIMED else 0))

    def _begin(self, record: Record) -> None:
        number: int = record["b"]
        if number in self.in_flight or number in self._expected:
            return  # the copy at the head of a segment
        call = self.definitions.get("call", record.get("s")) or {}
        if "a" in record:
            call = completed(call, record["a"])
        self._seen(record["t"])
        parent = self.in_flight.get(record.get("p", -1))
        user = parse_traceparent(f"00-{record.get('sp')}")  # TRACE-SPAN-FLAGS
        operation = LiveOperation(self, record, call, parent, user)
        self.in_flight[number] = operation
        self._begun.append(operation)

    def _over(self, operation: LiveOperation) -> LiveOperation:
        self.in_flight.pop(operation.number, None)
        self._expected.pop(operation.number, None)
        return operation

    def _seen(self, t: int) -> None:
        self.last = max(self.last, t)


_FATES = (fmt.END, fmt.ISSUED, fmt.WAIT, fmt.COMPLETE, fmt.LOST)
_TIMED = (fmt.HEARTBEAT, fmt.STANDS_AT)
_KINDS = (fmt.BEGIN, *_FATES, *_TIMED, fmt.SEGMENT)
