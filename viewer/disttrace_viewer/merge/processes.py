"""Processes and clocks from the definitions of all journals."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any

from disttrace.journal.format import EXEC
from disttrace_viewer.load.definitions import NONE
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.load.schema import Record
from disttrace_viewer.merge.clock import UNKNOWN_NS, to_unix
from disttrace_viewer.merge.launches import same
from disttrace_viewer.trace import process as values
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.process import Clock, Frame, Process, Stack
from disttrace_viewer.trace.values import replace

_AS_RECORDED = ("job_source", "boot_id", "parent", "cwd", "pid_ns", "time_ns", "ticks")
_AS_DEFINED = ("rank", "local_rank", "world_size", "attempt", "versions", "env")
_LISTED: dict[str, tuple[str, Any]] = {
    "workers": ("worker", values.Worker),
    "sightings": ("seen", values.Sighting),
    "troubles": ("trouble", values.Trouble),
    "usage": ("activity", values.Usage),
    "digests": ("digest", values.Digest),
    "nonfinite": ("nonfinite", values.NonFinite),
    "unreduced": ("unreduced", values.Unreduced),
}
"""By field of a process the records that it is made of, each of them a value."""
_RENAMED = {
    "thread": ("h", 0),
    "pid": ("pid", 0),
    "over_ns": ("over", 0),
    "cpu_ns": ("cpu", 0),
    "number": ("q", None),
    "seq": ("q", None),
    "value": ("v", None),
}
"""Fields of values by those of records, with what they are where these are not there."""


def clocks_of(journals: Iterable[Journal]) -> tuple[dict[str, int], tuple[Clock, ...]]:
    """The clocks of journals, and by the key of each its place among them.

    Processes of one boot share the monotonic clock exactly, so they need one offset between them;
    the reading of both times that was taken fastest is the best one. How far readings differ tells
    how far the wall clock was corrected meanwhile, which shifts all of them alike.
    """
    found: dict[str, list[Clock]] = {}
    for journal in journals:
        found.setdefault(_clock_key(journal), []).extend(_readings(journal))
    best = (min(of, key=_rank, default=Clock(offset_ns=0, error_ns=0)) for of in found.values())
    return {key: place for place, key in enumerate(found)}, tuple(best)


def _rank(clock: Clock) -> tuple[int, int]:
    return (clock.error_ns, clock.origin_ns)


def tell(processes: list[Process]) -> None:
    """Write down in processes what those that launched them report of them."""
    _became(processes)
    told: dict[tuple[str | None, int | None], values.Worker] = {
        (parent.id, worker.pid): worker
        for parent in processes
        for worker in parent.workers
        if worker.event != "started"
    }
    for index, process in enumerate(processes):
        word = told.get((process.parent, process.pid)) if told else None
        ended = process.exit
        if word is not None and (ended is None or ended.how != EXEC):
            processes[index] = replace(process, reported=word)


def _became(processes: list[Process]) -> None:
    """Bring together programs that followed one another in one process of the kernel (``exec``):
    each but the last ended with the next one's begin, and its place among the ranks is the last
    one's. A process that switched tracing off and on again has two journals of one program."""

    def identity(p: Process) -> tuple[object, ...] | None:
        known = (p.boot_id, p.pid_ns, p.pid, p.ticks)
        return None if None in known else (*known, p.time_ns)

    for indices in same(processes, identity).values():
        found = [processes[i] for i in indices]
        if len(found) < 2:
            continue
        found.sort(key=lambda process: process.t0)
        before = found[0]
        for process in found[1:]:
            ended = before.exit
            if ended is None or ended.how == EXEC:
                last = values.Exit(EXEC, None, process.start_ns - 1) if ended is None else ended
                processes[before.index] = replace(before, exit=last)
                process = replace(
                    process,
                    parent=before.parent or before.id,
                    role=before.role if process.role == "child" else process.role,
                    rank=before.rank if process.rank is None else process.rank,
                    local_rank=before.local_rank if process.rank is None else process.local_rank,
                    world_size=process.world_size or before.world_size,
                    attempt=before.attempt if process.attempt is None else process.attempt,
                )
                processes[process.index] = process
            before = process


def stack_of(journal: Journal, number: int | None) -> Stack:
    """A stack by its number in a journal; empty where it is not defined."""
    return tuple(starmap(Frame, journal.definitions.frames(number)))


def _clock_key(journal: Journal) -> str:
    record = journal.definitions.process
    if "t0" not in record:
        return f"process:{journal.id}"
    return record.get("boot_id") or f"process:{journal.id}"


def _readings(journal: Journal) -> list[Clock]:
    """The clock by each monotonic reading and unix time that were taken together."""
    record = journal.definitions.process
    t0 = record.get("t0")
    if t0 is None:
        return [_read(0, journal.modified_ns, UNKNOWN_NS)]
    pairs = [(t0, record)]
    pairs += [(t0 + r.get("t", 0), r) for r in journal.definitions.listed["clock"]]
    return [
        _read(monotonic, r["unix_ns"], r.get("error_ns", 0))
        for monotonic, r in pairs
        if "unix_ns" in r
    ]


def _read(monotonic_ns: int, unix_ns: int, error_ns: int) -> Clock:
    return Clock(offset_ns=unix_ns - monotonic_ns, error_ns=error_ns, origin_ns=monotonic_ns)


def process_of(
    index: int, journal: Journal, places: Mapping[str, int], clocks: Sequence[Clock]
) -> Process:
    """The process that wrote a journal, as far as definitions tell."""
    clock = places[_clock_key(journal)]
    definitions, named = journal.definitions, journal.from_name
    record, listed = definitions.process, definitions.listed
    t0 = record.get("t0", 0)

    def unix(item: Record) -> int:
        return to_unix(clocks[clock], t0 + item.get("t", 0))

    def made(kind: Any, item: Record, **more: Any) -> Any:
        """A record as a value, by the names of its fields; what it lacks is null or the default."""
        found = {**dict.fromkeys(kind._fields), **kind._field_defaults}
        for name, value in item.items():
            if name in found:
                found[name] = tuple(value) if isinstance(value, list) else value
        known = {
            "t_ns": unix(item) - item.get("ago", 0),
            "stack": stack_of(journal, item.get("stack")),
            "group": definitions.group_id(item["group"]) or "" if "group" in item else "",
            "left_journal": item.get("journal") is not False,
            "code": _code(item),
            **{name: item.get(name) or "?" for name in ("type", "how", "event", "state")},
            **{name: item.get(key, default) for name, (key, default) in _RENAMED.items()},
        }
        return kind(**found | {name: known[name] for name in known if name in found} | more)

    def failure(item: Record) -> values.Failure:
        return made(values.Failure, item, text=item.get("text") or "")  # type: ignore[no-any-return]

    handled = {item.get("h", 0): item for item in listed["handling"]}
    start_ns = record.get("start_ns", to_unix(clocks[clock], t0))
    ended = definitions.exit
    known: dict[str, Any] = {name: record.get(name) for name in _AS_RECORDED}
    known |= {name: getattr(definitions, name) for name in _AS_DEFINED}
    known |= {
        name: tuple([made(type_, item) for item in listed[kind]])
        for name, (kind, type_) in _LISTED.items()
    }
    known["usage"] = tuple(one for one in known["usage"] if one.over_ns)
    return Process(
        id=journal.id,
        index=index,
        job=record.get("job") or named.get("job") or journal.id,
        role=definitions.role or "unknown",
        host=record.get("host") or named.get("host") or "?",
        pid=record.get("pid", whole(named.get("pid") or "")),
        argv=tuple(record.get("argv") or ()),
        start_ns=start_ns,
        last_ns=max(start_ns, to_unix(clocks[clock], t0 + definitions.last_t)),
        exit=None if ended is None else made(values.Exit, ended),
        failures=tuple(map(failure, listed["failure"])),
        handling=tuple(failure(item) for item in handled.values() if "type" in item),
        threads={
            number: item.get("name") or "?"
            for number, item in definitions.numbered["thread"].items()
        },
        latest_samples={},
        notes=tuple(item.get("text") or "" for item in listed["note"]),
        dropped=bool(listed["dropped"]),
        node=next((item["node"] for item in listed["rendezvous"] if "node" in item), None),
        **known,
        settings=record.get("settings") or NONE,
        paths=journal.files.paths,
        clock=clock,
        t0=t0,
        source=definitions.source.get("kind") or values.JOURNAL,
        lacks=frozenset(definitions.source.get("lacks") or ()),
        reports=tuple(one for one in definitions.source.get("reports") or () if "kind" in one),
    )


def _code(record: Record) -> int | None:
    name = record.get("signal", "")
    return -int(signal.Signals[name]) if name in signal.Signals.__members__ else record.get("code")
