"""Reduces one journal to the state of its process: a pure function of the journal's files.

Kept are, per process: what is not over; the newest operation of each thread and kind, of each
stream, and the newest of each stream that ended well; the first and the newest failure of each
call; constructors, and the composed operations in which processes come together; of each store key
the first, the last and the last finished use by each call. And whatever is around these.

With a ``window`` only so many bytes at the end of the newest segment are read, and its head, where
the begins stand that were in flight when it was opened.
"""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.definitions import Definitions, completed
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal, name_gaps, open_journal
from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.sample.sample import BUILDING
from disttrace_viewer.states.state import ROW, VERSION, State

WINDOW = 256 << 10
"""Bytes at the end of a journal that say where its process stands, but for rare cases."""
HEAD = 64 << 10
CHUNK = 1 << 20
MOST_PENDING = 256
MOST_KEYS = 256
MOST_GROUPS = 512
"""Of more constructors and creations than this only the first and the last half are kept."""
OVERRIDES = 1 << 30
"""Calls of one operation only, with fields of its own, are numbered from here."""

Record = dict[str, Any]


def reduce(files: Files, *, window: int | None = None) -> State | None:
    """The state of the process that wrote these files; None where they hold no journal."""
    problems = Problems()
    journal = open_journal(files, problems)
    if journal is None:
        return None
    name_gaps(journal, problems)
    reading = _Reading(journal.definitions)
    read = size = 0
    numbers = sorted(files.segments)
    for number in numbers:
        path = files.segments[number]
        length = _size(path)
        size += length
        if window is None:
            read += length
            for piece in _whole(path, problems):
                reading.take(piece)
        elif number == numbers[-1]:
            read += min(length, window)
            for piece in _tail(path, length, window, problems):
                reading.take(piece)
    return _state(journal, reading, problems, read=read, size=size)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _whole(path: str, problems: Problems) -> Iterator[bytes]:
    data = texts.read(path, problems).data
    start = 0
    while start < len(data):
        end = data.find(b"\n", min(start + CHUNK, len(data) - 1)) + 1
        yield data[start : end or len(data)]
        start = end or len(data)


def _tail(path: str, length: int, window: int, problems: Problems) -> Iterator[bytes]:
    if length <= window:
        yield from _whole(path, problems)
        return
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
            file.seek(length - window)
            data = file.read(window)
    except OSError:
        return
    # Copies of begins in flight stand at the head of a segment.
    copies = [line for line in head.split(b"\n")[1:-1] if line.endswith(b',"r":1}')]
    if copies:
        yield b"\n".join(copies) + b"\n"
    yield texts.clean(path, data[data.find(b"\n") + 1 :], problems).data


@dataclass
class _Reading:
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
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        try:
            records: Iterable[Any] = orjson.loads(b"[" + b",".join(lines) + b"]")
        except orjson.JSONDecodeError:
            records = self._one_by_one(lines)
        begin, end, other = self._begin, self._end, self._other
        for record in records:
            try:
                if "b" in record:
                    begin(record)
                elif "e" in record:
                    end(record)
                else:
                    other(record)
            except (KeyError, TypeError, AttributeError, ValueError):
                self.bad += 1

    def _one_by_one(self, lines: Iterable[bytes]) -> Iterator[Any]:
        for line in lines:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                self.bad += 1

    def _other(self, record: Record) -> None:
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

    def _begin(self, record: Record) -> None:
        number, call, t = record["b"], record.get("s", 0), record["t"]
        if type(number) is not int or type(t) is not int:
            raise TypeError
        if number in self.open:
            return  # a copy at the head of a segment
        self.open[number] = record
        self.count += 1
        thread = record.get("h", 0)
        self.newest[thread, call] = record
        if t > self.active.get(thread, 0):
            self.active[thread] = t
        if call not in self._known:
            self._learn(call)
        if "q" in record:
            self.latest[call] = record
            on_course = self._on_course.get(call)
            if on_course is not None:
                course, site = on_course
                if record["q"] == course[0] + 1:
                    course[2] = course[1]
                    course[0], course[1] = record["q"], (course[1] * 1_000_003 + site) & _HASH
                else:
                    course[3] = 0
        if call in self._kept_whole:
            self.built[number] = record
        if "p" in record and call in self._in_store:
            self.stores.setdefault(record["p"], record)
        if "k" in record:
            self._key(record, call)

    def _learn(self, call: int) -> None:
        self._known.add(call)
        found = self.definitions.numbered["call"].get(call) or {}
        op, kind = found.get("op") or "", found.get("kind")
        if kind == fmt.CONSTRUCTOR or (kind == fmt.COMPOSED and op.startswith(BUILDING)):
            self._kept_whole.add(call)
        if "store" in found:
            self._in_store[call] = found["store"]
        if kind == fmt.COLLECTIVE and "group" in found:
            stream = (found["group"], found.get("backend"))
            course = self.courses.setdefault(stream, [0, 0, 0, 1])
            site = repr((op, self.definitions.frames(found.get("stack"))))
            self._on_course[call] = (course, zlib.crc32(site.encode()))

    def _key(self, record: Record, call: int) -> None:
        keys = record["k"] if isinstance(record["k"], list) else [record["k"]]
        op = (self.definitions.numbered["call"].get(call) or {}).get("op")
        for key in keys:
            kept = self.keys.pop((call, key), None)  # to its end: the oldest go first
            self.keys[call, key] = (
                [record, record] if kept is None else [kept[0], record, *kept[2:]]
            )
            if op == "store.queue_push":
                queue = self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])
                queue[0] += 1

    def _end(self, record: Record) -> None:
        begin = self.open.pop(record["e"], None)
        if begin is None:
            return
        call, d = begin.get("s", 0), record["d"]
        begin["end"] = d
        if "u" in record:
            # A synchronous call waits from its issue on unless it says otherwise.
            begin["issued"] = record["u"]
            begin["wait"] = record.get("v", record["u"])
        elif "v" in record:
            begin["wait"] = record["v"]
        for name in ("q", "y", "x", "f"):
            if name in record:
                begin[name] = record[name]
        if "q" in record:
            self.latest[call] = begin
        if "y" in record:
            self.sourced[call, record["y"]] = begin
        at = begin["t"] + d
        if at > self.last_t:
            self.last_t = at
        if "complete" not in begin or "wait" in begin:
            thread = begin.get("h", 0)
            if at > self.active.get(thread, 0):
                self.active[thread] = at
        if "f" in record and call in self._on_course:
            course = self._on_course[call][0]  # it gives its number back
            if begin.get("q") == course[0]:
                course[0], course[1] = course[0] - 1, course[2]
            else:
                course[3] = 0
        if "x" in record:
            found = self.failed.setdefault((call, record["x"]), [begin])
            found[1:] = [begin]
        else:
            self._done(begin, call, d)

    def _done(self, begin: Record, call: int, end: int) -> None:
        self.done[call] = begin
        waited = end - begin.get("wait", 0)
        if waited > self.longest.get(call, -1):
            self.longest[call] = waited
        if "k" in begin:
            keys = begin["k"] if isinstance(begin["k"], list) else [begin["k"]]
            op = (self.definitions.numbered["call"].get(call) or {}).get("op")
            for key in keys:
                kept = self.keys.get((call, key))
                if kept is not None:
                    kept[2:] = [begin]
                if op == "store.queue_pop":
                    queue = self.queues.setdefault((self._in_store.get(call, 0), key), [0, 0])
                    queue[1] += 1

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
                if kind == "c" and _over(begin, self.definitions.numbered["call"].get(call) or {}):
                    self._done(begin, call, record["d"])
                return


_MARKS = (("i", "issued"), ("w", "wait"), ("c", "complete"), ("l", "lost"))


_HASH = (1 << 61) - 1


def _over(record: Record, call: Record) -> bool:
    """Whether it has ended; a wait for what a device ends is over when that was seen complete."""
    if "end" in record or "complete" not in record:
        return "end" in record
    return "wait" not in record or fmt.ends_on_device(call.get("backend"), call.get("device"))


def _chosen(reading: _Reading) -> list[Record]:
    """The kept begins by number, see the module's docstring."""
    calls = reading.definitions.numbered["call"]
    found: dict[int, Record] = {}
    best: dict[object, Record] = {}

    def newest(key: object, record: Record, by: str = "b") -> None:
        other = best.get(key)
        if other is None or record[by] > other[by]:
            best[key] = record

    for (thread, number), record in reading.newest.items():
        call = calls.get(number) or {}
        newest(("kind", thread, call.get("kind")), record)
        if not (call.get("kind") == fmt.STORE and call.get("origin") == "c++"):
            newest(("thread", thread), record)
    for kept in (reading.latest, reading.done):
        for number, record in kept.items():
            call = calls.get(number) or {}
            kind = call.get("kind")
            if kind in (fmt.COLLECTIVE, fmt.MESSAGE) and "q" in record and "f" not in record:
                names = ("group", "backend", "op", "peer", "tag")
                chosen = names[:2] if kind == fmt.COLLECTIVE else names
                stream = tuple(call.get(name) for name in chosen)
                newest((kept is reading.done, kind, stream), record, by="q")
            if kept is reading.done and (kind == fmt.COLLECTIVE or call.get("op") == "recv"):
                newest("met", record, by="t")
    pending = [
        r
        for r in reading.open.values()
        if not ("lost" in r or "x" in r or _over(r, calls.get(r.get("s", 0)) or {}))
    ]
    half = MOST_PENDING // 2
    built = [reading.built[n] for n in sorted(reading.built)]
    keyed = [record for kept in list(reading.keys.values())[-MOST_KEYS:] for record in kept]
    for record in (
        *best.values(),
        *(pending if len(pending) <= MOST_PENDING else pending[:half] + pending[-half:]),
        *(record for kept in reading.failed.values() for record in kept),
        *(
            built
            if len(built) <= MOST_GROUPS
            else built[: MOST_GROUPS // 2] + built[-MOST_GROUPS // 2 :]
        ),
        *reading.sourced.values(),
        *keyed,
        *(reading.stores[n] for n in reading.built if n in reading.stores),
    ):
        found[record["b"]] = record
    everything = {**reading.open, **reading.built}
    for record in list(found.values()):
        above = everything.get(record.get("p", -1))
        while above is not None and above["b"] not in found:
            found[above["b"]] = above
            above = everything.get(above.get("p", -1))
    return [found[number] for number in sorted(found)]


def _state(
    journal: Journal, reading: _Reading, problems: Problems, *, read: int, size: int
) -> State:
    definitions = journal.definitions
    calls = definitions.numbered["call"]
    own: dict[int, Record] = {}
    rows, used = [], set()
    for record in _chosen(reading):
        call = record.get("s", 0)
        if isinstance(record.get("a"), dict):
            number = OVERRIDES + len(own)
            own[number] = {**completed(calls.get(call) or {}, record["a"]), "n": number}
            call = number
        else:
            used.add(call)
        rows.append(_row(record, call, own.get(call) or calls.get(call) or {}))
    if len(reading.keys) > MOST_KEYS:
        problems.add(
            journal.files.paths[0],
            "keys",
            f"used {len(reading.keys):,} store keys, of which the newest {MOST_KEYS} are in its"
            " state.",
        )
    if reading.bad:
        problems.add(
            journal.files.paths[0], "noise", f"{reading.bad:,} lines not readable; left out."
        )
    waiting = {row[1] for row in rows}
    numbered = _referred(
        definitions, {n: calls[n] for n in used if n in calls} | own, rows, reading
    )
    return {
        "state": VERSION,
        "format": definitions.process.get("format"),
        "id": journal.id,
        "base": journal.files.base,
        "named": journal.from_name,
        "modified_ns": journal.modified_ns,
        "head_t": journal.head_t,
        "segment": max(journal.files.segments, default=0),
        "read": read,
        "size": size,
        "process": {k: v for k, v in definitions.process.items() if k in _PROCESS},
        "identity": definitions.identity,
        "versions": {k: v for k, v in definitions.versions.items() if k in _VERSIONS},
        "listed": {kind: found for kind, found in definitions.listed.items() if found},
        "numbered": numbered,
        "ops": rows,
        "count": reading.count,
        "longest": [[call, ns] for call, ns in reading.longest.items() if call in waiting],
        "active": list(reading.active.items()),
        "queues": [[store, key, *counts] for (store, key), counts in reading.queues.items()],
        "courses": [[*key, *course[:3]] for key, course in reading.courses.items() if course[3]],
        "beat": reading.beat,
        "last_t": max(reading.last_t, definitions.last_t, *reading.active.values()),
        "stands": [[thread, *at] for thread, at in reading.stands.items()],
        "problems": [
            *([p.path, p.kind, p.sentence] for p in problems.found()),
            *([path, CUT_OFF, ""] for path in problems.cut_off),
        ],
    }


_PROCESS = frozenset(
    (
        *("process", "parent", "job", "job_source", "run", "attempt", "host", "boot_id", "pid"),
        *("start_ns", "role", "env", "argv", "cwd", "t0", "unix_ns", "error_ns"),
    )
)
_VERSIONS = frozenset(("torch", "not_captured"))


def _row(record: Record, call: int, keys: Record) -> list[Any]:
    completed_at = record.get("complete")
    end = record.get("end")
    if end is None and _over(record, keys):
        end = completed_at
    if completed_at is None and "wait" in record and "x" not in record:
        completed_at = record.get("end")
    row = [
        record["b"],
        call,
        record["t"],
        end,
        record.get("h"),
        record.get("p"),
        record.get("q"),
        record.get("k"),
        record.get("issued"),
        record.get("wait"),
        completed_at,
        record.get("y"),
        record.get("x"),
        record.get("f"),
        1 if "lost" in record else None,
    ]
    for place, value in enumerate(row):
        if value is not None and type(value) is not int and place != ROW.index("key"):
            row[place] = None
    while row[-1] is None:
        row.pop()
    return row


def _referred(
    definitions: Definitions, calls: dict[int, Record], rows: list[list[Any]], reading: _Reading
) -> dict[str, dict[int, Any]]:
    """The definitions that kept ones refer to, and every store and group."""
    numbered = definitions.numbered
    stacks = {call["stack"] for call in calls.values() if "stack" in call}
    stacks |= {stack for _, stack in reading.stands.values()}
    for kind in ("failure", "exit"):
        stacks |= {item["stack"] for item in definitions.listed[kind] if "stack" in item}
    kept = {n: numbered["stack"][n] for n in stacks if n in numbered["stack"]}
    strings = {
        n for stack in kept.values() for f, _, name in stack.get("frames") or () for n in (f, name)
    }
    strings |= {row[12] for row in rows if len(row) > 12 and row[12] is not None}
    return {
        "string": {n: definitions.string(n) for n in strings},
        "stack": {n: stack.get("frames") or [] for n, stack in kept.items()},
        "thread": {
            n: _bare(t) for n, t in numbered["thread"].items() if n in reading.active or n == 0
        },
        "store": {n: _bare(store) for n, store in numbered["store"].items()},
        "group": {
            n: _bare(group)
            if group.get("ranks") is None
            else {**_bare(group), "ranks": _ranges(group["ranks"])}
            for n, group in numbered["group"].items()
        },
        "call": {n: _bare(call) for n, call in calls.items()},
    }


@functools.lru_cache(maxsize=1 << 12)
def _ranges(ranks: tuple[int, ...]) -> list[Any]:
    """The same for all members of a group, and nobody changes it."""
    return fmt.ranges_of(ranks)


def _bare(record: Record) -> Record:
    return {k: v for k, v in record.items() if k not in ("def", "n") and v is not None}
