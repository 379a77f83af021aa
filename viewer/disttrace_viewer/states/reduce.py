"""Reduces one journal to the state of its process: a pure function of the journal's files.

Kept are: what is not over; the newest operation of each thread and kind, of each stream, and the
newest of each stream that ended well; the first and the newest failure of each call; constructors,
and the composed operations in which processes come together; of each store key the first, the last
and the last finished use by each call. And whatever is around these.

With a ``window`` only so many bytes at the end of the newest segment are read, and its head, where
the begins stand that were in flight when it was opened.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.load import files as load_files
from disttrace_viewer.load import text as texts
from disttrace_viewer.load.definitions import Definitions, completed
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.fates import completed_at, over
from disttrace_viewer.load.journals import Journal, name_gaps, open_journal
from disttrace_viewer.load.problems import CUT_OFF, Problems
from disttrace_viewer.load.schema import Record
from disttrace_viewer.merge.clock import ExchangeStream
from disttrace_viewer.merge.tables import ByIdentity
from disttrace_viewer.states.history import MOST_DIFFERENT, CallOrder, packed
from disttrace_viewer.states.reading import Reading
from disttrace_viewer.states.state import OpRow, State

WINDOW = 256 << 10
"""Bytes at the end of a journal that say where its process stands, but for rare cases."""
HEAD = 64 << 10
CHUNK, LINES = 1 << 20, 1 << 14
"""Of a segment so much is read at once."""
MOST_STREAMS = 4
"""Streams of collectives of which exchanges are kept, by which clocks are set right."""
MOST_LISTED = 256
"""Of records that go on for as long as a job runs: the first and the last half."""
_LAST = {"digest": MOST_LISTED, "activity": 4}
"""Of these the newest count."""
OVERRIDES = 1 << 30
"""Calls with fields that an operation changed are numbered from here."""


def reduce(files: Files, *, window: int | None = None, history: bool = False) -> State | None:
    """The state of the process that wrote these files, if any; ``history`` of its collectives."""
    problems = Problems()
    journal = open_journal(files, problems)
    if journal is None:
        return None
    name_gaps(journal, problems)
    past: dict[tuple[int, str | None], CallOrder] | None = {} if history else None
    reading = Reading(journal.definitions, history=past, recent=window is not None)
    read = size = 0
    most = sys.maxsize if window is None else window
    segments = {} if journal.orphaned else files.segments
    for number, path in sorted(segments.items()):
        length = load_files.size(path)
        size += length
        if window is None or number == max(segments):
            read += min(length, most)
            for piece in _tail(path, length, most, problems):
                reading.take(piece)
    return _state(journal, reading, problems, read=read, size=size)


def state_of(journal: Journal, lines: Iterator[bytes]) -> State:
    """The state of a process of which segments hold these lines; with its collectives."""
    problems = Problems()
    name_gaps(journal, problems)
    reading = Reading(journal.definitions, history={})
    while piece := b"\n".join(islice(lines, LINES)):
        reading.take(piece)
    return _state(journal, reading, problems, read=0, size=0)


def _whole(path: str, problems: Problems) -> Iterator[bytes]:
    data = texts.segment(path, problems).data
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
        head = load_files.part(path, 0, HEAD)
        data = load_files.part(path, length - window, window)
        ahead = len(data) - len(data.rstrip(b"\0"))
        if ahead:  # of a mapping, which reaches beyond what was written
            data = load_files.part(path, max(0, length - window - ahead), window)
    except OSError:
        return
    # Copies of begins in flight stand at the head of a segment.
    copies = [line for line in head.split(b"\n")[1:-1] if line.endswith(b',"r":1}')]
    if copies:
        yield b"\n".join(copies) + b"\n"
    yield texts.clean(path, data[data.find(b"\n") + 1 :], problems).data


def _state(
    journal: Journal, reading: Reading, problems: Problems, *, read: int, size: int
) -> State:
    definitions, signs = journal.definitions, reading.signs
    calls = definitions.numbered["call"]
    if (dumped := definitions.stack_at_end(stack for _, stack in signs.samples)) is not None:
        last = max(signs.last_t, definitions.last_t, *reading.active.values())
        signs.stands[0] = (last, dumped)
    reading.settle()
    own: dict[int, Record] = {}
    numbers: dict[tuple[int, str], int] = {}
    rows, used = [], set()
    for record in chosen(reading):
        call = record.get("s", 0)
        if isinstance(record.get("a"), dict):
            number = numbers.setdefault((call, repr(record["a"])), OVERRIDES + len(own))
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
    waiting = {
        row[OpRow.CALL]
        for row in rows
        if OpRow.value(row, OpRow.END) is None or len(row) > OpRow.ERROR
    }
    history = _past(reading, used)
    process = {k: v for k, v in definitions.process.items() if k in _PROCESS}
    # A command may be anything; that a process asked to be ended is for others to know.
    if (definitions.process.get("settings") or {}).get("on_stall") == "abort":
        process["settings"] = {"on_stall": "abort"}
    return State(
        id=journal.id,
        base=journal.files.base,
        named=journal.from_name,
        modified_ns=journal.modified_ns,
        read=read,
        size=size,
        process=process,
        identity=definitions.identity,
        versions={k: v for k, v in definitions.versions.items() if k in ("torch", "not_captured")},
        source=definitions.source,
        listed={
            kind: found[-_LAST[kind] :] if kind in _LAST else _ends(found, MOST_LISTED)
            for kind, found in definitions.listed.items()
            if found
        },
        numbered=_referred(
            definitions, {n: calls[n] for n in used if n in calls} | own, rows, reading
        ),
        ops=rows,
        count=reading.count,
        longest=[[call, ns] for call, ns in reading.longest.items() if call in waiting],
        active=[[*one] for one in reading.active.items()],
        queues=[[store, key, *counts] for (store, key), counts in reading.queues.items()],
        courses=[[*key, *course[:3]] for key, course in reading.courses.items() if course[3]],
        met=_met(reading),
        beat=reading.signs.beat,
        last_t=max(reading.signs.last_t, definitions.last_t, *reading.active.values()),
        stands=[
            # The last one is what it stands at, or a dump took that place.
            *([0, *at] for at in signs.samples if at != signs.stands.get(0)),
            *([h, *at, signs.first.get((h, at[1]), at[0])] for h, at in signs.stands.items()),
        ],
        history=history,
        problems=[
            *([p.path, p.kind, p.sentence] for p in problems.found()),
            *([path, CUT_OFF, ""] for path in problems.cut_off),
        ],
    )


def _met(reading: Reading) -> list[list[Any]]:
    """The newest exchanges of the largest streams of collectives, and of the newest messages."""
    groups = reading.definitions.numbered["group"]

    def order(stream: ExchangeStream) -> tuple[int, int]:
        collective = stream[0] is None
        size = (groups.get(stream[1]) or {}).get("size") or 0
        return (-size if collective else 0, -reading.met[stream][-1][1])

    kept = sorted((one for one, rows in reading.met.items() if rows), key=order)
    collectives = [one for one in kept if one[0] is None][:MOST_STREAMS]
    messages = [one for one in kept if one[0] is not None][: 2 * MOST_STREAMS]
    return [[*one, list(reading.met[one])] for one in (*collectives, *messages)]


def _past(reading: Reading, used: set[int]) -> list[list[Any]] | None:
    """The calls of each stream as ``State.history`` has them; those in them are ``used``."""
    if reading.history is None:
        return None
    found = []
    for stream, past in reading.history.items():
        calls, first = past.all(), [past.first]
        text = None if calls is None else _few(calls)
        if calls is not None and text is None and not reading.recent:
            first = []
            calls = array(calls.typecode, map(reading.first_of_site.__getitem__, calls))
            text = _few(calls)
        if calls is not None and text is not None:
            found.append([*stream, text, *first])
            used |= {*calls}
    return found


def _few(calls: array[int]) -> str | None:
    return packed(calls) if len({*calls}) <= MOST_DIFFERENT else None


_PROCESS = frozenset(
    (
        *("process", "parent", "job", "job_source", "run", "attempt", "host", "boot_id", "pid"),
        *("start_ns", "role", "env", "argv", "cwd", "t0", "unix_ns", "error_ns"),
        *("pid_ns", "time_ns", "ticks"),
    )
)


def _row(record: Record, call: int, keys: Record) -> list[Any]:
    end = record.get("end")
    if end is None and over(record, keys):
        end = record.get("complete")
    row = [
        *(record["b"], call, record["t"], end),
        *map(record.get, ("h", "p", "q", "k", "issued", "wait")),
        completed_at(record),
        *map(record.get, ("y", "x", "f")),
        *(1 if mark in record else None for mark in ("lost", "asked")),
    ]
    for place, value in enumerate(row):
        if value is not None and type(value) is not int and place != OpRow.KEY:
            row[place] = None
    while row[-1] is None:
        row.pop()
    return row


def _referred(
    definitions: Definitions,
    calls: dict[int, Record],
    rows: list[list[Any]],
    reading: Reading,
) -> dict[str, dict[int, Any]]:
    """The definitions that kept ones refer to, and every group."""
    numbered = definitions.numbered
    stacks = {call["stack"] for call in calls.values() if "stack" in call}
    stores = {call["store"] for call in calls.values() if "store" in call}
    stores |= {group["store"] for group in numbered["group"].values() if "store" in group}
    stores |= {n for n, store in numbered["store"].items() if store.get("base", n) == n}
    stores |= {store for store, _ in reading.queues}
    stacks |= {stack for _, stack in (*reading.signs.stands.values(), *reading.signs.samples)}
    for kind in ("failure", "handling", "exit", "digest", "nonfinite", "unreduced"):
        stacks |= {item["stack"] for item in definitions.listed[kind] if "stack" in item}
    errors = {OpRow.value(row, OpRow.ERROR) for row in rows} - {None}
    return {
        "string": {n: definitions.string(n) for n in errors},
        "stack": {n: definitions.frames(n) for n in stacks if n in numbered["stack"]},
        "thread": {
            n: _bare_of(t) for n, t in numbered["thread"].items() if n in reading.active or n == 0
        },
        "store": {n: _bare_of(store) for n, store in numbered["store"].items() if n in stores},
        "group": {
            n: _bare_of(group)
            if group.get("ranks") is None
            else {**_bare_of(group), "ranks": _ranges(group["ranks"])}
            for n, group in numbered["group"].items()
        },
        "call": {n: _bare_of(call) for n, call in calls.items()},
    }


_ranges = ByIdentity(fmt.ranges_of).of
_bare_of = ByIdentity(
    lambda record: {k: v for k, v in record.items() if k not in ("def", "n") and v is not None}
).of
"""Of records, which the journals of a job mostly share: so are the definitions of its states."""


MOST_PENDING = 256
MOST_KEYS = 256
MOST_GROUPS = 512
"""Of more constructors and creations than this only the first and the last half are kept."""
_NO_CALL: Record = {}
_TOGETHER = (fmt.COLLECTIVE, "recv")
"""Operations that end after another process has come."""


def chosen(reading: Reading) -> list[Record]:
    """The kept begins by number."""
    calls = reading.definitions.numbered["call"]
    found: dict[int, Record] = {}
    begun: dict[object, Record] = {}
    for (thread, number), record in reading.newest.items():
        call = calls.get(number) or _NO_CALL
        kind = call.get("kind")
        begin = record["b"]
        key: object = (thread, kind)
        if key not in begun or begun[key]["b"] < begin:
            begun[key] = record
        by_user = kind != fmt.STORE or call.get("origin") != "c++"
        if by_user and (thread not in begun or begun[thread]["b"] < begin):
            begun[thread] = record
    numbered: dict[object, Record] = {}
    met: Record | None = None
    streams: dict[int, tuple[object, ...] | None] = {}
    for kept in (reading.latest, reading.done):
        done = kept is reading.done
        for number, record in kept.items():
            if number not in streams:
                streams[number] = _stream(calls.get(number) or _NO_CALL)
            stream = streams[number]
            if stream is None:
                continue
            if "q" in record and "f" not in record:
                key = (done, stream)
                if key not in numbered or numbered[key]["q"] < record["q"]:
                    numbered[key] = record
            if done and stream[0] in _TOGETHER and (met is None or met["t"] < record["t"]):
                met = record
    best = [*begun.values(), *numbered.values(), *([] if met is None else [met])]
    pending = [
        r
        for r in reading.open.values()
        if not ("lost" in r or "x" in r or over(r, calls.get(r.get("s", 0)) or {}))
    ]
    built = _ends([reading.built[n] for n in sorted(reading.built)], MOST_GROUPS)
    keyed = [record for kept in list(reading.keys.values())[-MOST_KEYS:] for record in kept]
    for record in (
        *best,
        *_ends(pending, MOST_PENDING),
        *(record for kept in reading.failed.values() for record in kept),
        *built,
        *reading.sourced.values(),
        *keyed,
        *(
            reading.stores[n]
            for n, record in reading.built.items()
            if n in reading.stores and ("end" not in record or "x" in record)
        ),
    ):
        found[record["b"]] = record
    everything = {**reading.open, **reading.built}
    for record in list(found.values()):
        above = everything.get(record.get("p", -1))
        while above is not None and above["b"] not in found:
            found[above["b"]] = above
            above = everything.get(above.get("p", -1))
    return [found[number] for number in sorted(found)]


def _ends(found: list[Record], most: int) -> list[Record]:
    """All, or of more than so many the first and the last half."""
    return found if len(found) <= most else found[: most // 2] + found[-most // 2 :]


def _stream(call: Record) -> tuple[object, ...] | None:
    """What numbers its operations; None for a call that has no numbers."""
    kind, op = call.get("kind"), call.get("op")
    if kind == fmt.COLLECTIVE:
        return (kind, call.get("group"), call.get("backend"))
    if kind == fmt.MESSAGE:
        return (op, call.get("group"), call.get("backend"), call.get("peer"), call.get("tag"))
    return None
