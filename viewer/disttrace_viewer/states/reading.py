"""What the records of a journal's segments say, as far as a state keeps it.

Records are taken by the batch, begins first: a loop in which each record is dispatched by itself
took most of the time of a verdict on a large job.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.sample.sample import BUILDING

Record = dict[str, Any]
_INTEGERS = {int}
_MARKS = (("i", "issued"), ("w", "wait"), ("c", "complete"), ("l", "lost"))
_HASH = (1 << 61) - 1


@dataclass
class Reading:
    """What a journal's segments say, record by record. A begin is one dictionary all along: what
    becomes of it is added to it.
    """

    definitions: Definitions
    count: int = 0
    last_t: int = 0
    beat: int | None = None
    stands: dict[int, tuple[int, int]] = field(default_factory=dict)
    open: dict[int, Record] = field(default_factory=dict)
    newest: dict[tuple[int, int], Record] = field(default_factory=dict)
    """By thread and call."""
    latest: dict[int, Record] = field(default_factory=dict)
    """The newest numbered one by call."""
    done: dict[int, Record] = field(default_factory=dict)
    """The newest that ended well by call."""
    longest: dict[int, int] = field(default_factory=dict)
    active: dict[int, int] = field(default_factory=dict)
    failed: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    built: dict[int, Record] = field(default_factory=dict)
    keys: dict[tuple[int, str], list[Record]] = field(default_factory=dict)
    queues: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    stores: dict[int, Record] = field(default_factory=dict)
    """The first operation in a store inside of each composed one."""
    sourced: dict[tuple[int, int], Record] = field(default_factory=dict)
    courses: dict[tuple[int, str | None], list[int]] = field(default_factory=dict)
    """By stream of collectives: newest number, hash of all call sites up to it and before it, and
    whether none was left out.
    """
    bad: int = 0
    _kept_whole: set[int] = field(default_factory=set)
    """Calls of which every operation is kept."""
    _known: set[int] = field(default_factory=set)
    _in_store: dict[int, int] = field(default_factory=dict)
    _on_course: dict[int, tuple[list[int], int]] = field(default_factory=dict)

    def take(self, data: bytes) -> None:
        """Whole lines of a segment."""
        try:
            records: list[Any] = orjson.loads(b"[%b]" % data.rstrip(b"\n").replace(b"\n", b","))
        except orjson.JSONDecodeError:
            records = list(self._one_by_one(data.rstrip(b"\n").split(b"\n")))
        if not set(map(type, records)) <= {dict}:
            whole = [record for record in records if type(record) is dict]
            self.bad, records = self.bad + len(records) - len(whole), whole
        start = 0
        if b'"f":' in data:
            # What was refused gives back its number, which the next begin takes: up to here first.
            for place, record in enumerate(records):
                if "f" in record:
                    self._batch(records[start : place + 1])
                    start = place + 1
        self._batch(records[start:] if start else records)

    def _one_by_one(self, lines: Iterable[bytes]) -> Iterator[Any]:
        for line in lines:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                self.bad += 1

    def _batch(self, records: list[Record]) -> None:
        begins: list[Record] = []
        others: list[Record] = []
        if records and "seg" in records[0]:
            self._other(records[0])
            del records[0]
        for record in records:
            (begins if "b" in record else others).append(record)
        self._begin(begins)
        self._go_on(others)

    # -- begins -------------------------------------------------------------------------------

    def _begin(self, records: list[Record]) -> None:
        known = self.open
        if not _are_numbers(records):
            whole = [record for record in records if _is_begin(record)]
            self.bad, records = self.bad + len(records) - len(whole), whole
        # One that is known is a copy at the head of a segment.
        begun = {n: record for record in records if (n := record["b"]) not in known}
        known.update(begun)
        self.count += len(begun)
        new = begun.values()
        recent = {(r.get("h", 0), r.get("s", 0)): r for r in new}
        self.newest.update(recent)
        active = self.active
        for (thread, call), record in recent.items():
            if record["t"] > active.get(thread, 0):
                active[thread] = record["t"]
            if call not in self._known:
                self._learn(call)
        numbered = [r for r in new if "q" in r]
        self.latest.update({r.get("s", 0): r for r in numbered})
        on_course = self._on_course
        for record in numbered:
            found = on_course.get(record.get("s", 0))
            if found is not None:
                course, site = found
                number = record["q"]
                if number == course[0] + 1:
                    before = course[2] = course[1]
                    course[0], course[1] = number, (before * 1_000_003 + site) & _HASH
                else:
                    course[3] = 0
        kept_whole = self._kept_whole
        for record in [r for r in new if "p" in r or "k" in r or r.get("s", 0) in kept_whole]:
            call = record.get("s", 0)
            if call in kept_whole:
                self.built[record["b"]] = record
            if "p" in record and call in self._in_store:
                self.stores.setdefault(record["p"], record)
            if "k" in record:
                self._key(record, call)

    def _learn(self, call: int) -> None:
        self._known.add(call)
        found = self._call(call)
        op, kind = found.get("op") or "", found.get("kind")
        if kind == fmt.CONSTRUCTOR or (kind == fmt.COMPOSED and op.startswith(BUILDING)):
            self._kept_whole.add(call)
        if "store" in found:
            self._in_store[call] = found["store"]
        if kind == fmt.COLLECTIVE and "group" in found:
            stream = (found["group"], found.get("backend"))
            course = self.courses.setdefault(stream, [0, 0, 0, 1])
            site = _site(op, tuple(self.definitions.frames(found.get("stack"))))
            self._on_course[call] = (course, site)

    def _call(self, number: int) -> Mapping[str, Any]:
        return self.definitions.numbered["call"].get(number) or {}

    def _key(self, record: Record, call: int) -> None:
        op = self._call(call).get("op")
        for key in _keys(record):
            kept = self.keys.pop((call, key), None)  # to its end: the oldest go first
            self.keys[call, key] = (
                [record, record] if kept is None else [kept[0], record, *kept[2:]]
            )
            if op == "store.queue_push":
                self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])[0] += 1

    # -- what becomes of them -----------------------------------------------------------------

    def _go_on(self, records: list[Record]) -> None:
        pop, done, longest, active = self.open.pop, self.done, self.longest, self.active
        last_t = self.last_t
        if not _are_numbers(records):
            whole = [r for r in records if set(map(type, r.values())) == _INTEGERS or "o" in r]
            self.bad, records = self.bad + len(records) - len(whole), whole
        for record in records:
            if "e" not in record:
                self._other(record)
                continue
            begin = pop(record["e"], None)
            if begin is None:
                continue
            call = begin.get("s", 0)
            begin["end"] = d = record.get("d", 0)
            if "u" in record:
                # A synchronous call waits from its issue on unless it says otherwise.
                begin["issued"] = issued = record["u"]
                begin["wait"] = record.get("v", issued)
            elif "v" in record:
                begin["wait"] = record["v"]
            at = begin["t"] + d
            if at > last_t:
                last_t = at
            if "wait" in begin or "complete" not in begin:
                thread = begin.get("h", 0)
                if at > active.get(thread, 0):
                    active[thread] = at
            more = len(record) > 3 or (len(record) > 2 and "u" not in record)
            if more and self._unusual(begin, record, call):
                continue
            done[call] = begin
            waited = d - begin.get("wait", 0)
            if waited > longest.get(call, -1):
                longest[call] = waited
            if "k" in begin:
                self._key_done(begin, call)
        self.last_t = max(last_t, self.last_t)

    def _unusual(self, begin: Record, record: Record, call: int) -> bool:
        """What few ends tell: numbers, sources, errors. Whether it ended in an error."""
        for name in ("q", "y", "x", "f"):
            if name in record:
                begin[name] = record[name]
        if "q" in record:
            self.latest[call] = begin
        if "y" in record:
            self.sourced[call, record["y"]] = begin
        if "f" in record and call in self._on_course:
            course = self._on_course[call][0]  # it gives its number back
            if begin.get("q") == course[0]:
                course[0], course[1] = course[0] - 1, course[2]
            else:
                course[3] = 0
        if "x" not in record:
            return False
        found = self.failed.setdefault((call, record["x"]), [begin])
        found[1:] = [begin]
        return True

    def _done(self, begin: Record, call: int, end: int) -> None:
        self.done[call] = begin
        waited = end - begin.get("wait", 0)
        if waited > self.longest.get(call, -1):
            self.longest[call] = waited
        if "k" in begin:
            self._key_done(begin, call)

    def _key_done(self, begin: Record, call: int) -> None:
        op = self._call(call).get("op")
        for key in _keys(begin):
            kept = self.keys.get((call, key))
            if kept is not None:
                kept[2:] = [begin]
            if op == "store.queue_pop":
                self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])[1] += 1

    def _other(self, record: Record) -> None:
        try:
            if (t := record.get("hb")) is not None:
                self.beat = max(t, self.beat or 0)
                self.last_t = max(self.last_t, t)
            elif (t := record.get("at")) is not None:
                thread = record.get("h", 0)
                if t >= self.stands.get(thread, (0, 0))[0]:
                    self.stands[thread] = (t, record.get("k", 0))
                self.last_t = max(self.last_t, t)
            elif "seg" in record:
                self.last_t = max(self.last_t, record.get("t", 0))
            else:
                self._mark(record)
        except (KeyError, TypeError):
            self.bad += 1

    def _mark(self, record: Record) -> None:
        for kind, name in _MARKS:
            if kind in record:
                begin = self.open.get(record[kind])
                if begin is None:
                    return
                begin.setdefault(name, record["d"])
                thread = begin.get("h", 0)
                at = begin["t"] + record["d"]
                if kind in ("i", "w"):
                    self.active[thread] = max(at, self.active.get(thread, 0))
                self.last_t = max(self.last_t, at)
                call = begin.get("s", 0)
                if kind == "c" and over(begin, self._call(call)):
                    self._done(begin, call, record["d"])
                return


@functools.lru_cache(maxsize=1 << 12)
def _site(op: str, frames: tuple[tuple[str, int, str], ...]) -> int:
    """The same number for a call site in all processes, which mostly share theirs."""
    return zlib.crc32(repr((op, [*frames])).encode())


def over(record: Record, call: Mapping[str, Any]) -> bool:
    """Whether it has ended; a wait for what a device ends is over when that was seen complete."""
    if "end" in record or "complete" not in record:
        return "end" in record
    return "wait" not in record or fmt.ends_on_device(call.get("backend"), call.get("device"))


def _are_numbers(records: list[Record]) -> bool:
    """Whether all values are whole numbers, as most are; asked of all at once."""
    values = itertools.chain.from_iterable(map(dict.values, records))
    return set(map(type, values)) <= _INTEGERS and all("t" in r for r in records if "b" in r)


def _is_begin(record: Record) -> bool:
    """Whether what a begin needs is there, of the types that the format has."""
    whole = all(type(record.get(name, 0)) is int for name in ("s", "h", "p", "q"))
    keys = _keys(record) if "k" in record else ()
    named = type(keys) in (list, tuple) and all(type(key) is str for key in keys)
    return whole and named and type(record["b"]) is type(record.get("t")) is int


def _keys(record: Record) -> list[str]:
    key = record["k"]
    return key if isinstance(key, list) else [key]
