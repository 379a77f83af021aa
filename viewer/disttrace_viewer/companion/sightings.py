"""Writes down what this host's kernel says of the job's processes while some of them live.

A day later, on another host, or when all were killed in the end, no kernel tells any more which of
them had gone long before and which was stopped: it stands in their own journals then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import orjson

from disttrace.journal.format import DEF, SEEN_GONE, STOPPED, definitions_name, opened_own
from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.companion.machine.answer import Answer
from disttrace_viewer.trace.process import Process


def note(processes: Sequence[Process], but: Container[str] = frozenset()) -> None:
    """Look at those of this host; each thing worth keeping is in their journals once then.

    ``processes`` are of states, of which the first path is a journal's. Nothing is written of those
    with the ids ``but``, which only count among the living.
    """
    seen = [(one, look(one)) for one in processes]
    living = sum(bool(found.alive) and not one.is_agent for one, found in seen)
    for one, found in seen:
        if one.id in but:
            continue
        if found.alive is False and _is_untold(one, found.code):
            _write(one, SEEN_GONE, found.code, living)
        elif found.is_stopped and not _known(one, STOPPED):
            _write(one, STOPPED, None, living - 1)


def tell(processes: Sequence[Process], answers: Iterable[Answer]) -> None:
    """What was said of this host: in the journal of the process that it names, or else of the
    lowest rank of ``processes``.
    """
    own = sorted((p for p in processes if p.pid), key=lambda p: (p.rank is None, p.rank, p.pid))
    for one in answers:
        named = [p for p in own if p.pid == one.pid]
        for process in (named or own)[:1]:
            record = {
                DEF: "trouble",
                "t": time.perf_counter_ns() - process.t0,
                "ago": max(0, round((time.time() - one.at_s) * 1e9)),
                "by": one.by,
                "where": one.where,
                "name": one.name,
                "code": one.code,
                "mine": 1 if named else None,
                "text": one.text,
            }
            append(process, {key: value for key, value in record.items() if value is not None})


def _is_untold(process: Process, code: int | None) -> bool:
    """Whether its end is not on record, or is without the code that the kernel knows."""
    if process.told is not None or _known(process, SEEN_GONE):
        return False
    return process.exit is None or (process.exit.code is None and code is not None)


def _known(process: Process, state: str) -> bool:
    """Whether it was noted, and the process has given no sign of life since."""
    return any(one.state == state and one.t_ns >= process.last_ns for one in process.sightings)


def _write(process: Process, state: str, code: int | None, others: int) -> None:
    record = {DEF: "seen", "t": time.perf_counter_ns() - process.t0, "state": state}
    if code is not None:
        record["code"] = code
    append(process, {**record, "others": others})


def append(process: Process, record: Mapping[str, Any]) -> None:
    """Add a record to a journal that is there; its process may have been killed within a line."""
    path, line = definitions_name(process.paths[0]), orjson.dumps(record) + b"\n"
    try:
        with opened_own(path, os.O_RDWR | os.O_APPEND) as fd:
            end = os.fstat(fd).st_size
            torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
            os.write(fd, b"\n" + line if torn else line)
    except OSError:
        pass  # deleted meanwhile, or the disk is full: then nobody can tell later
