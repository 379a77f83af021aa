"""What the records of a journal's segments hold, as far as a state retains it.

Records are taken by the batch, begins first: to dispatch each by itself took most of the time of a
verdict on a large job.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.analysis.sample import BUILDING
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.load.fates import MARKS, Signs, over, wait_again, write_end, write_rest
from disttrace_viewer.load.schema import Record
from disttrace_viewer.load.text import has_long_number
from disttrace_viewer.merge.clock import ExchangeStream, stream_of_exchanges
from disttrace_viewer.states.history import CallOrder, hashed, site_of
from disttrace_viewer.trace.model import named
from disttrace_viewer.trace.values import dataclass, field

INTEGERS = {int}
_PLAIN = re.compile(rb'\{(?:"b":,"t":|"(?:[ac-z]|[a-z]{2,})":)(?:,"[a-z]+":)*\}')


@functools.lru_cache(maxsize=1 << 10)
def _is_plain(shape: bytes) -> bool:
    """Whether a line, here without its digits, has whole numbers only. A journal has a dozen of
    shapes, and to look at each value took longer.
    """
    return _PLAIN.fullmatch(shape) is not None


def is_begin(record: Record) -> bool:
    """Whether what a begin needs is there, of the types that the format has."""
    whole = all(type(record.get(name, 0)) is int for name in ("s", "h", "p", "q"))
    found = keys_of(record) if "k" in record else ()
    named = type(found) in (list, tuple) and all(type(key) is str for key in found)
    return whole and named and type(record["b"]) is type(record.get("t")) is int


def keys_of(record: Record) -> list[str]:
    """The store keys of an operation."""
    key = record["k"]
    return key if isinstance(key, list) else [key]


def is_creation(call: Mapping[str, Any]) -> bool:
    """Whether a call makes a group or a store, or is a part of that."""
    kind = call.get("kind")
    composed = kind == fmt.COMPOSED and (call.get("op") or "").startswith(BUILDING)
    return composed or kind == fmt.CONSTRUCTOR


MOST_MET = 8
"""Of so many newest exchanges of a stream it is kept when they began and ended."""
MOST_STOOD = 4
"""Of so many newest samples of the main thread it is kept where it stood."""
_NEWEST = 64
"""Of ends read together so many are looked at for them."""
BETWEEN_NS = 3_000_000_000
"""Who tries again does so at least so often."""


@dataclass
class Reading:
    """What a journal's segments hold. What becomes of an operation is added to its begin."""

    definitions: Definitions
    count: int = 0
    signs: Signs = field(
        default_factory=lambda: Signs(samples=deque(maxlen=MOST_STOOD), thinned=True)
    )
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
    given_up: dict[int, Record] = field(default_factory=dict)
    """Operations of which a wait reached its time limit, and that may be waited for again."""
    built: dict[int, Record] = field(default_factory=dict)
    keys: dict[tuple[int, str], list[Record]] = field(default_factory=dict)
    queues: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    stores: dict[int, Record] = field(default_factory=dict)
    """The first operation in a store inside of each composed one."""
    sourced: dict[tuple[int, int], Record] = field(default_factory=dict)
    courses: dict[tuple[int, str | None], list[int]] = field(default_factory=dict)
    """By stream: newest number, hash of call sites up to it, before it, and whether it is whole."""
    history: dict[tuple[int, str | None], CallOrder] | None = None
    """The calls of each stream, where that is requested."""
    recent: bool = False
    """The history is of the end only."""
    first_of_site: dict[int, int] = field(default_factory=dict)
    """By call the first one of its site, where there is a history."""
    met: dict[ExchangeStream, deque[tuple[int, int, int]]] = field(default_factory=dict)
    """Number, begin and end of the newest exchanges of each stream that bound clocks."""
    bad: int = 0
    _kept_whole: set[int] = field(default_factory=set)
    """Calls of which every operation is kept."""
    _known: set[int] = field(default_factory=set)
    _in_store: dict[int, int] = field(default_factory=dict)
    _on_course: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    _past: dict[int, CallOrder] = field(default_factory=dict)
    _meets: dict[int, deque[tuple[int, int, int]]] = field(default_factory=dict)
    """By call where its stream notes exchanges."""
    _sites: dict[int, int] = field(default_factory=dict)
    """The first call of each, where there is a history."""
    _threads: bool = False
    """Whether any but the first thread did anything."""

    def take(self, data: bytes) -> None:
        if data.startswith(b'{"seg":'):
            head, _, data = data.partition(b"\n")
            for record in self._one_by_one([head]):
                self._other(record)
        data = data.rstrip(b"\n")
        self._threads |= b'"h":' in data
        shapes = {*data.translate(None, b"0123456789").split(b"\n")}
        plain = all(map(_is_plain, shapes)) and not has_long_number(data)
        try:
            records: list[Any] = orjson.loads(b"[%b]" % data.replace(b"\n", b","))
        except orjson.JSONDecodeError:
            records = list(self._one_by_one(data.split(b"\n")))
        if not set(map(type, records)) <= {dict}:
            whole = [record for record in records if type(record) is dict]
            self.bad, records = self.bad + len(records) - len(whole), whole
        start = 0
        if b'"f":' in data:
            # What was refused gives back its number, which the next begin takes: up to here first.
            for place, record in enumerate(records):
                if "f" in record:
                    self._batch(records[start : place + 1], plain)
                    start = place + 1
        self._batch(records[start:] if start else records, plain)

    def _one_by_one(self, lines: Iterable[bytes]) -> Iterator[Any]:
        for line in lines:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                self.bad += 1

    def _batch(self, records: list[Record], plain: bool) -> None:
        begins = [record for record in records if "b" in record]
        others = [record for record in records if "b" not in record]
        if not plain:
            begins = [record for record in begins if is_begin(record)]
            others = [r for r in others if set(map(type, r.values())) == INTEGERS or "o" in r]
            self.bad += len(records) - len(begins) - len(others)
        self._begin(begins)
        self._go_on(others)

    # -- begins -------------------------------------------------------------------------------

    def _begin(self, records: list[Record]) -> None:
        known = self.open
        begun = {record["b"]: record for record in records}
        for also in (known, self.given_up):
            if not also.keys().isdisjoint(begun):
                # One that is known is a copy at the head of a segment.
                begun = {number: r for number, r in begun.items() if number not in also}
        known.update(begun)
        self.count += len(begun)
        new = begun.values()
        if self._threads:
            recent = {(r.get("h", 0), r.get("s", 0)): r for r in new}
        else:
            recent = {(0, call): r for call, r in {r.get("s", 0): r for r in new}.items()}
        self.newest.update(recent)
        active = self.active
        for (thread, call), record in recent.items():
            if record["t"] > active.get(thread, 0):
                active[thread] = record["t"]
            if call not in self._known:
                self._learn(call)
        numbered = [r for r in new if "q" in r]
        latest = {r.get("s", 0): r for r in numbered}
        self.latest.update(latest)
        self._follow(numbered)
        kept_whole = self._kept_whole
        special = [r for r in new if "p" in r or "k" in r or r.get("s", 0) in kept_whole]
        for record in special:
            call = record.get("s", 0)
            if call in kept_whole:
                self.built[record["b"]] = record
            if "p" in record and call in self._in_store:
                self.stores.setdefault(record["p"], record)
            if "k" in record:
                self._key(record, call)

    def _follow(self, numbered: list[Record]) -> None:
        """Hash the call sites of collectives, stream by stream."""
        if self.history is not None:
            for record in numbered:
                if (past := self._past.get(record.get("s", 0))) is not None:
                    past.note(record["q"], record.get("s", 0))
        on_course = self._on_course
        streams: dict[int, tuple[list[int], list[int], list[int]]] = {}
        for record in numbered:
            found = on_course.get(record.get("s", 0))
            if found is not None:
                course, site = found
                stream = streams.get(id(course))
                if stream is None:
                    stream = streams[id(course)] = (course, [], [])
                stream[1].append(record["q"])
                stream[2].append(site)
        for course, numbers, sites in streams.values():
            first = course[0] + 1
            if numbers == list(range(first, first + len(numbers))):
                course[0] += len(numbers)
                course[1:3] = hashed(course[1], tuple(sites))
            else:
                course[3] = 0  # and for ever: what it holds counts no more

    def _learn(self, call: int) -> None:
        self._known.add(call)
        found = self._call(call)
        op, kind = found.get("op") or "", found.get("kind")
        if is_creation(found):
            self._kept_whole.add(call)
        if "store" in found:
            self._in_store[call] = found["store"]
        joint = stream_of_exchanges(found)
        if joint is not None:
            self._meets[call] = self.met.setdefault(joint, deque(maxlen=MOST_MET))
        if kind == fmt.COLLECTIVE and "group" in found:
            stream = (found["group"], found.get("backend"))
            course = self.courses.setdefault(stream, [0, 0, 0, 1])
            site = site_of(
                named(op, found.get("args") or {}),
                tuple(self.definitions.frames(found.get("stack"))),
            )
            self._on_course[call] = (course, site)
            if self.history is not None:
                self.first_of_site[call] = self._sites.setdefault(site, call)
                self._past[call] = self.history.setdefault(stream, CallOrder(anywhere=self.recent))

    def _call(self, number: int) -> Mapping[str, Any]:
        return self.definitions.numbered["call"].get(number) or {}

    def _key(self, record: Record, call: int) -> None:
        op = self._call(call).get("op")
        for key in keys_of(record):
            kept = self.keys.pop((call, key), None)  # to its end: the oldest go first
            self.keys[call, key] = (
                [record, record] if kept is None else [kept[0], record, *kept[2:]]
            )
            if op == "store.queue_push":
                self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])[0] += 1

    # -- what becomes of them -----------------------------------------------------------------

    def _go_on(self, records: list[Record]) -> None:
        pop, active = self.open.pop, self.active
        last_t = self.signs.last_t
        longest, done, ended = self.longest, self.done, []
        for record in records:
            if "e" not in record:
                self._other(record)
                continue
            begin = pop(record["e"], None)
            if begin is None:
                continue
            call = begin.get("s", 0)
            d = write_end(begin, record)
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
            ended.append(begin)
        for begin in ended[-_NEWEST:]:
            self._exchange_ended(begin)
        self.signs.last_t = max(last_t, self.signs.last_t)

    def _exchange_ended(self, begin: Record) -> None:
        """An exchange ended well: so long after the last one came."""
        stream = self._meets.get(begin.get("s", 0))
        if stream is not None and "q" in begin and "a" not in begin:
            end = begin["complete"] if begin.get("end") is None else begin["end"]
            stream.append((begin["q"], begin["t"], begin["t"] + end))

    def _unusual(self, begin: Record, record: Record, call: int) -> bool:
        """The rare fields of an end: numbers, sources, errors. Whether it ended in an error."""
        write_rest(begin, record)
        if "q" in record:
            self.latest[call] = begin
        if "y" in record:
            self.sourced[call, record["y"]] = begin
        if "f" in record and "q" in begin and call in self._on_course:
            course = self._on_course[call][0]  # it gives its number back
            if begin.get("q") == course[0]:
                course[0], course[1] = course[0] - 1, course[2]
            else:
                course[3] = 0
            if call in self._past:
                self._past[call].refused(begin["q"])
        if "x" not in record:
            return False
        found = self.failed.setdefault((call, record["x"]), [begin])
        found[1:] = [begin]
        if "r" in record:
            self.given_up[begin["b"]] = begin
        return True

    def _done(self, begin: Record, call: int, end: int) -> None:
        self.done[call] = begin
        self._exchange_ended(begin)
        waited = end - begin.get("wait", 0)
        if waited > self.longest.get(call, -1):
            self.longest[call] = waited
        if "k" in begin:
            self._key_done(begin, call)

    def _key_done(self, begin: Record, call: int) -> None:
        op = self._call(call).get("op")
        for key in keys_of(begin):
            kept = self.keys.get((call, key))
            if kept is not None:
                kept[2:] = [begin]
            if op == "store.queue_pop":
                self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])[1] += 1

    def _other(self, record: Record) -> None:
        kind = next(iter(record), "")
        try:
            if kind not in MARKS:
                self.signs.take(kind, record)
            elif kind in (fmt.ISSUED, fmt.WAIT):
                self._went_on(record[kind], MARKS[kind], record["d"])
            else:
                self._mark(kind, record)
        except (KeyError, TypeError):
            self.bad += 1

    def _mark(self, kind: str, record: Record) -> None:
        begin = self.open.get(record[kind])
        if begin is None:
            return
        begin.setdefault(MARKS[kind], record["d"])
        if kind == fmt.ASKED:
            return
        self.signs.last_t = max(self.signs.last_t, begin["t"] + record["d"])
        call = begin.get("s", 0)
        if kind == fmt.COMPLETE and over(begin, self._call(call)):
            self._done(begin, call, record["d"])

    def _went_on(self, number: int, name: str, after: int) -> None:
        """An operation was issued, or is waited for, so many ns after its begin."""
        begin = self.open.get(number)
        if begin is None and name == "wait":
            begin = self._again(number)
        if begin is not None:
            begin.setdefault(name, after)
            thread, at = begin.get("h", 0), begin["t"] + after
            if at > self.active.get(thread, 0):
                self.active[thread] = at
            if at > self.signs.last_t:
                self.signs.last_t = at

    def _again(self, number: int) -> Record | None:
        """An operation that is waited for once more: one wait, as old as the first of them."""
        begin = self.given_up.pop(number, None)
        if begin is not None:
            self.open[number] = begin
            begin["again"] = begin.get("again", 0) + 1
            wait_again(begin)
        return begin

    def settle(self) -> None:
        """Between two tries, take a wait that is tried again and again for one; not where its
        thread has gone on, or the program has ended."""
        if self.definitions.listed["exit"] or self.definitions.listed["failure"]:
            return
        for number, begin in list(self.given_up.items()):
            at = begin["t"] + begin["end"]
            alone = self.active.get(begin.get("h", 0), 0) <= at
            if "again" in begin and alone and self.signs.last_t - at <= BETWEEN_NS:
                self._again(number)
