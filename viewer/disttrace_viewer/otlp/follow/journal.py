"""Follows the journal of one process and turns its records into operations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.load.definitions import completed
from disttrace_viewer.load.ids import Context, parse_traceparent
from disttrace_viewer.load.schema import Record, json_object
from disttrace_viewer.otlp.follow.defined import Defined
from disttrace_viewer.otlp.follow.tail import Tail

IN_FLIGHT, OK, ERROR = "in_flight", "ok", "error"
"""What is known of an operation's outcome."""
_EXPECTED_NS = 10_000_000_000
"""What was seen complete may be waited for, and what was waited for in vain again: so long that is
expected.
"""


@dataclass(slots=True)
class Operation:
    """One operation; ``begin`` counts from the journal's ``t0``, the other times from it."""

    number: int
    call: Record
    begin: int
    thread: int
    seq: int | None
    key: str | list[str] | None
    bytes: int | None
    parent: Operation | None
    user: Context | None
    issued: int | None = None
    wait: int | None = None
    complete: int | None = None
    end: int | None = None
    error: str | None = None
    raised_on_issue: bool = False
    source: int | None = None
    device_ns: int | None = None
    unobserved: bool = False
    pending_sent: bool = False

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
        self.in_flight: dict[int, Operation] = {}
        self.last = 0
        """Newest time in the journal, from ``t0``."""
        self.gone = False
        self.unread = 0
        """Segments that were dropped before they could be read."""
        self._path = os.path.join(directory, base)
        self._defined = Defined(self._path, owner)
        self.definitions = self._defined.known
        self._segments: list[Tail] = []
        self._next = 1
        self._expected: dict[int, Operation] = {}
        """Those of which a wait may follow; else they were over when that was last seen."""
        self._begun: list[Operation] = []

    def poll(self, *, final: bool = False) -> Iterator[Operation]:
        """Read what is new, and yield operations that ended, in the order of their ends.

        ``final``: the process is gone, and so are holes that nobody will fill.
        """
        while True:
            self._open_segments()
            lines = self._read_operations(final=final)
            # After the operations: a definition is in its file before what refers to it.
            self._defined.read(final=final)
            self._seen(self.definitions.last_t)
            for line in lines:
                record = json_object(line)
                if record is not None:  # else a torn line of a process that was killed
                    yield from self._take(record)
            if not lines:
                break
        for operation in list(self._expected.values()):
            over = operation.complete if operation.end is None else operation.end
            if final or self.last - operation.begin - (over or 0) > _EXPECTED_NS:
                operation.end = over
                yield self._over(operation)

    def begun(self) -> list[Operation]:
        """Operations that began since the last time this was asked."""
        new, self._begun = self._begun, []
        return new

    def close(self) -> None:
        """Let go of all files."""
        self._defined.close()
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

    def _take(self, line: dict[str, Any]) -> Iterator[Operation]:
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
            _FATES[kind](self, operation, record)
            if operation.end is not None and number in self.in_flight:
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
        begin: int = record["t"]
        self._seen(begin)
        operation = Operation(
            number=number,
            call=call,
            begin=begin,
            thread=record.get("h", 0),
            seq=record.get("q"),
            key=record.get("k"),
            bytes=record.get("n", call.get("bytes")),
            parent=self.in_flight.get(record.get("p", -1)),
            user=parse_traceparent(f"00-{record.get('sp')}"),  # TRACE-SPAN-FLAGS
        )
        self.in_flight[number] = operation
        self._begun.append(operation)

    def _issued(self, operation: Operation, record: Record) -> None:
        operation.issued = record["d"]

    def _wait(self, operation: Operation, record: Record) -> None:
        if operation.wait is None:
            operation.wait = record["d"]
        if operation.end is not None:  # it was waited for in vain before
            self.in_flight[operation.number] = self._expected.pop(operation.number)
            operation.end = operation.error = None

    def _complete(self, operation: Operation, record: Record) -> None:
        operation.complete = record["d"]
        operation.device_ns = record.get("z")
        if fmt.ends_on_device(operation.call.get("backend"), operation.call.get("device")):
            operation.end = operation.complete
        else:
            self._expect(operation)

    def _expect(self, operation: Operation) -> None:
        self.in_flight.pop(operation.number, None)
        self._expected[operation.number] = operation

    def _end(self, operation: Operation, record: Record) -> None:
        self.in_flight[operation.number] = operation
        operation.end = record["d"]
        operation.issued = record.get("u", operation.issued)
        # A synchronous call waits from its issue on unless it says otherwise.
        operation.wait = record.get("v", record.get("u", operation.wait))
        operation.bytes = record.get("n", operation.bytes)
        operation.seq = record.get("q", operation.seq)
        operation.source = record.get("y")
        operation.raised_on_issue = bool(record.get("f"))
        if "x" in record:
            operation.error = self.definitions.string(record["x"]) or "Error"
        elif operation.wait is not None and operation.complete is None:
            operation.complete = operation.end
        if "r" in record:
            self._expect(operation)

    def _lost(self, operation: Operation, record: Record) -> None:
        self.in_flight[operation.number] = operation
        if operation.complete is not None:
            operation.end = operation.complete
        else:
            operation.end = record["d"]
            operation.unobserved = True

    def _over(self, operation: Operation) -> Operation:
        self.in_flight.pop(operation.number, None)
        self._expected.pop(operation.number, None)
        return operation

    def _seen(self, t: int) -> None:
        self.last = max(self.last, t)


_FATES = {
    fmt.END: JournalReader._end,
    fmt.ISSUED: JournalReader._issued,
    fmt.WAIT: JournalReader._wait,
    fmt.COMPLETE: JournalReader._complete,
    fmt.LOST: JournalReader._lost,
}
_TIMED = (fmt.HEARTBEAT, fmt.STANDS_AT)
_KINDS = (fmt.BEGIN, *_FATES, *_TIMED, fmt.SEGMENT)
