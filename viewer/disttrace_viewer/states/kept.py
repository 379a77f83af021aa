"""Which operations of a process its state keeps.

What is not over; the newest operation of each thread and kind, of each
stream, and the newest of each stream that ended well; the first and the newest failure of each
call; constructors, and the composed operations in which processes come together; of each store key
the first, the last and the last finished use by each call. And whatever is around these.
"""

from __future__ import annotations

import disttrace.journal.format as fmt
from disttrace_viewer.load.fates import over
from disttrace_viewer.load.schema import Record
from disttrace_viewer.states.reading import Reading

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
    half = MOST_PENDING // 2
    built = [reading.built[n] for n in sorted(reading.built)]
    if len(built) > MOST_GROUPS:
        built = built[: MOST_GROUPS // 2] + built[-MOST_GROUPS // 2 :]
    keyed = [record for kept in list(reading.keys.values())[-MOST_KEYS:] for record in kept]
    for record in (
        *best,
        *(pending if len(pending) <= MOST_PENDING else pending[:half] + pending[-half:]),
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


def _stream(call: Record) -> tuple[object, ...] | None:
    """What numbers its operations; None for a call that has no numbers."""
    kind, op = call.get("kind"), call.get("op")
    if kind == fmt.COLLECTIVE:
        return (kind, call.get("group"), call.get("backend"))
    if kind == fmt.MESSAGE:
        return (op, call.get("group"), call.get("backend"), call.get("peer"), call.get("tag"))
    return None
