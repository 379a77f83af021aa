"""Processes and clocks from the definitions of all journals."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from disttrace_viewer.load.journals import Journal
from disttrace_viewer.merge.clock import Anchor, from_anchors, to_unix
from disttrace_viewer.trace.model import (
    Clock,
    Dropped,
    Exit,
    Failure,
    Frame,
    Note,
    Process,
    Stack,
    Thread,
    Worker,
)

ROLES = ("agent", "worker", "child", "main")


def processes_of(journals: Sequence[Journal]) -> tuple[tuple[Process, ...], tuple[Clock, ...]]:
    """One process per journal, in that order, and the clocks they go by."""
    clocks: list[Clock] = []
    place: dict[str, int] = {}
    for key in dict.fromkeys(map(_clock_key, journals)):
        sharing = [j for j in journals if _clock_key(j) == key]
        anchors = [anchor for j in sharing for anchor in _anchors(j)]
        place[key] = len(clocks)
        clocks.append(from_anchors(key, _host(sharing[0]), anchors))
    processes = [
        _process(index, journal, place[_clock_key(journal)], clocks)
        for index, journal in enumerate(journals)
    ]
    told: dict[tuple[str | None, int | None], Worker] = {
        (parent.id, worker.pid): worker
        for parent in processes
        for worker in parent.workers
        if worker.event != "started"
    }
    knowing = (replace(p, told=told.get((p.parent, p.pid))) for p in processes)
    return tuple(knowing), tuple(clocks)


def stack_of(journal: Journal, number: object) -> Stack:
    """A stack by its number in a journal; empty where it is not defined."""
    record = journal.definitions.numbered["stack"].get(number) if isinstance(number, int) else None
    frames = [] if record is None else record.get("frames")
    found = []
    for frame in frames if isinstance(frames, list) else []:
        if isinstance(frame, list) and len(frame) == 3:
            file, line, function = frame
            found.append(
                Frame(
                    journal.definitions.string(file) or "?",
                    line if isinstance(line, int) else 0,
                    journal.definitions.string(function) or "?",
                )
            )
    return tuple(found)


def _clock_key(journal: Journal) -> str:
    record = journal.definitions.process
    if not isinstance(record.get("t0"), int):
        return f"process:{journal.id}"
    return str(record.get("boot_id") or f"process:{journal.id}")


def _host(journal: Journal) -> str:
    return str(journal.definitions.process.get("host") or journal.from_name.get("host") or "?")


def _anchors(journal: Journal) -> list[Anchor]:
    record = journal.definitions.process
    t0 = record.get("t0")
    if not isinstance(t0, int):
        # Only the head of a segment is known: its file was begun before it was last written.
        head = journal.head_t or 0
        return [Anchor(head, journal.modified_ns, 1 << 62)]
    pairs = [(t0, record), *((t0 + _int(r, "t"), r) for r in journal.definitions.listed["clock"])]
    return [
        Anchor(monotonic, r["unix_ns"], _int(r, "error_ns"))
        for monotonic, r in pairs
        if isinstance(r.get("unix_ns"), int)
    ]


def _process(index: int, journal: Journal, clock: int, clocks: Sequence[Clock]) -> Process:
    definitions = journal.definitions
    record = {**definitions.process, **definitions.identity}
    t0 = _int(definitions.process, "t0")

    def unix(item: Mapping[str, Any], key: str = "t") -> int:
        return to_unix(clocks[clock], t0 + _int(item, key))

    exits = definitions.listed["exit"]
    role = record.get("role")
    role = role if role in ROLES else "unknown"
    env = {k: str(v) for k, v in _mapping(record, "env").items()}
    launched = role == "worker"
    start = record.get("start_ns")
    start_ns = start if isinstance(start, int) else to_unix(clocks[clock], t0)
    return Process(
        id=journal.id,
        index=index,
        job=str(record.get("job") or journal.from_name.get("job") or journal.id),
        role=role,
        rank=_number(record, "rank", env.get("RANK") if launched else None),
        local_rank=_number(record, "local_rank", env.get("LOCAL_RANK") if launched else None),
        world_size=_number(record, "world_size", env.get("WORLD_SIZE") if launched else None),
        host=_host(journal),
        boot_id=_text(record, "boot_id"),
        pid=_number(record, "pid", journal.from_name.get("pid")),
        ppid=_number(record, "ppid"),
        parent=_text(record, "parent"),
        attempt=_number(record, "attempt"),
        run=_text(record, "run"),
        argv=tuple(map(str, argv)) if isinstance(argv := record.get("argv"), list) else (),
        cwd=_text(record, "cwd"),
        python=_text(record, "python"),
        start_ns=start_ns,
        last_ns=max(start_ns, to_unix(clocks[clock], t0 + definitions.last_t)),
        heartbeat_ns=None,
        exit=_exit(journal, exits[-1], unix(exits[-1])) if exits else None,
        failures=tuple(
            Failure(
                t_ns=unix(item),
                type=str(item.get("type") or "?"),
                text=str(item.get("text") or ""),
                stack=stack_of(journal, item.get("stack")),
                thread=_int(item, "h"),
            )
            for item in definitions.listed["failure"]
        ),
        threads={
            number: Thread(number, str(item.get("name") or "?"), _number(item, "native"))
            for number, item in definitions.numbered["thread"].items()
        },
        stands_at={},
        samples=(),
        notes=tuple(
            Note(unix(item), str(item.get("text") or "")) for item in definitions.listed["note"]
        ),
        dropped=tuple(
            Dropped(
                segment=_int(item, "segment"),
                from_ns=unix(item, "from_t") if "from_t" in item else None,
                to_ns=unix(item, "to_t") if "to_t" in item else None,
                operations=_number(item, "operations"),
            )
            for item in definitions.listed["dropped"]
        ),
        workers=tuple(
            Worker(
                t_ns=unix(item),
                pid=_int(item, "pid"),
                event=str(item.get("event") or "?"),
                rank=_number(item, "rank"),
                attempt=_number(item, "attempt"),
                code=_code(item),
                error=_text(item, "error"),
            )
            for item in definitions.listed["worker"]
        ),
        told=None,  # the launcher's journal says it, once all are read
        node=next(
            (node for item in definitions.listed["rendezvous"] if (node := _text(item, "node"))),
            None,
        ),
        versions={k: v for k, v in definitions.versions.items() if k != "def"},
        env=env,
        settings=_mapping(record, "settings"),
        damage=(),
        paths=journal.files.paths,
        clock=clock,
        t0=t0,
    )


def _exit(journal: Journal, record: Mapping[str, Any], t_ns: int) -> Exit:
    return Exit(
        how=str(record.get("how") or "?"),
        code=_number(record, "code"),
        t_ns=t_ns,
        stack=stack_of(journal, record.get("stack")),
    )


def _code(record: Mapping[str, Any]) -> int | None:
    name = record.get("signal")
    if isinstance(name, str) and name in signal.Signals.__members__:
        return -int(signal.Signals[name])
    return _number(record, "code")


def _int(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def _number(record: Mapping[str, Any], key: str, other: str | None = None) -> int | None:
    value = record.get(key)
    if isinstance(value, int):
        return value
    for text in (value, other):
        if isinstance(text, str) and text.lstrip("-").isdigit():
            return int(text)
    return None


def _text(record: Mapping[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def _mapping(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
