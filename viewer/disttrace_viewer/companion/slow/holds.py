"""What the journal of one process says of its exchanges: how long it was away, and how long held.

Of a process the time between two releases is *away*, what it did by itself, up to the point from
which the next operation holds it, and *inside*, from there to that operation's end. All members
of a collective that waits for everybody are released together. So whoever came later than another
was inside for less by that much, and no clocks of hosts need to be compared for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import disttrace.journal.format as fmt
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.companion.slow.minutes import Minutes
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.trace.operation import SYNCHRONIZING
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording.quantities import file_name

_HOLD = (fmt.COLLECTIVE, fmt.MESSAGE, fmt.STORE)
MOST_OPEN = 10_000
"""Operations of which the end is awaited; of more the oldest ones are work that nobody awaits."""


class Held(NamedTuple):
    """One exchange of one process; times in nanoseconds, ``end`` on the clock of its journal.

    ``group`` is the number of its group there; ``place`` stands for operation and line, and is
    empty where nobody waits for all others.
    """

    group: int
    seq: int
    place: str
    away: int
    inside: int
    end: int


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    group: int | None
    place: str
    holds: bool
    of_store: bool
    on_device: bool


class _Open:
    __slots__ = ("begin", "call", "issued", "seq", "wait")

    def __init__(self, begin: int, call: _Call, seq: int | None) -> None:
        self.begin = begin
        self.call = call
        self.seq = seq
        self.issued = False
        self.wait: int | None = None


class Holds:
    """Of one journal, from any point of it on."""

    def __init__(self, definitions: Definitions, minutes: Minutes | None = None) -> None:
        """``minutes`` counts what is over."""
        self.places: dict[str, tuple[str, Frame | None]] = {}
        """Operation and the program's line by what stands for both."""
        self.away_ns = self.held_ns = 0
        """All that it was away, and held by operations, transfers included."""
        self.last_ns = 0
        """Newest time that was seen, on the journal's clock."""
        self._definitions = definitions
        self._minutes = minutes
        self._calls: dict[int, _Call] = {}
        self._open: dict[int, _Open] = {}
        self._newest = 0
        self._release: int | None = None

    def skipped(self) -> None:
        """What comes next does not follow on what was taken."""
        self._open.clear()
        self._release = None
        if self._minutes is not None:
            self._minutes.missed()

    def take(self, records: Iterable[dict[str, Any]]) -> Iterator[Held]:
        """The exchanges that these records end. What is none of the format is passed over."""
        for record in records:
            kind = next(iter(record), "")
            number = record.get(kind)
            if type(number) is not int:
                continue
            try:
                if kind == fmt.BEGIN:
                    self._begin(number, record)
                elif (one := self._open.get(number)) is None:
                    continue
                elif kind == fmt.ISSUED:
                    one.issued = True
                elif kind == fmt.WAIT:
                    one.wait = one.begin + record["d"]
                elif (kind == fmt.END and "r" not in record) or self._is_over(kind, one):
                    del self._open[number]
                    held = self._ended(number, one, record)
                    if held is not None:
                        yield held
            except (KeyError, TypeError):
                continue

    @staticmethod
    def _is_over(kind: str, one: _Open) -> bool:
        return kind == fmt.COMPLETE and one.call.on_device

    def _begin(self, number: int, record: dict[str, Any]) -> None:
        self.last_ns = max(self.last_ns, record["t"])
        if "r" in record:
            return  # a copy at the head of a segment
        call = self._call(record["s"])
        if call is None or not call.holds or (call.of_store and record.get("h")):
            return  # a thread beside the main one that asks a store holds nobody up
        self._open[number] = _Open(record["t"], call, record.get("q"))
        self._newest = max(self._newest, number)
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _ended(self, number: int, one: _Open, record: dict[str, Any]) -> Held | None:
        end = one.begin + record["d"]
        self.last_ns = max(self.last_ns, end)
        since: int | None = one.begin
        if type(record.get("z")) is int:
            since = end - record["z"]  # the device's own time: it began when its kernel did
        elif one.wait is not None:
            since = one.wait
        elif (one.issued or one.call.on_device) and number != self._newest:
            since = None  # the program went on meanwhile
        away = inside = 0
        before: int | None = None
        if since is not None:
            before, self._release = self._release, max(self._release or 0, end)
            inside = max(0, end - max(since, before or 0))
        if self._minutes is not None:
            self._minutes.add(one.call.number, one.begin, end, inside)
        if since is not None:
            if before is None:
                return None  # nobody knows how long it was away
            away = max(0, since - before)
            self.away_ns += away
            self.held_ns += inside
        seq = record.get("q", one.seq)
        if one.call.group is None or type(seq) is not int or record.get("f"):
            return None
        return Held(one.call.group, seq, one.call.place, away, inside, end)

    def _call(self, number: int) -> _Call | None:
        found = self._calls.get(number)
        if found is None and (call := self._definitions.get("call", number)) is not None:
            kind, op = call.get("kind"), str(call.get("op"))
            place = self._place(op, call.get("stack")) if op in SYNCHRONIZING else ""
            found = self._calls[number] = _Call(
                number=number,
                group=call.get("group") if kind == fmt.COLLECTIVE else None,
                place=place if kind == fmt.COLLECTIVE else "",
                holds=kind in _HOLD,
                of_store=kind == fmt.STORE,
                on_device=fmt.ends_on_device(call.get("backend"), call.get("device")),
            )
        return found

    def _place(self, op: str, stack: int | None) -> str:
        frame = innermost(tuple(Frame(*one) for one in self._definitions.frames(stack)))
        line = "" if frame is None else f"{file_name(frame.file)}:{frame.line}"
        place = hashlib.sha256(f"{op} {line}".encode("utf-8", "replace")).hexdigest()[:12]
        self.places[place] = (op, frame)
        return place
