"""How processes ended, as far as journals and this host's /proc tell; what was in flight then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.liveness import look, signal_name
from disttrace_viewer.analysis.thread_stacks import latest_samples
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Frame, Process, Stack, Trace
from disttrace_viewer.views.terminal.rows import Flight
from disttrace_viewer.wording.names import Names, place
from disttrace_viewer.wording.operations import Describer, brief

KILLED = "killed"
"""A launcher's word for one that ended after it had been told to."""
SAME_NS = 1_000_000_000
"""Processes that fall silent within this time are told in one line."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Processes that did not end well, and in which way."""

    t_ns: int
    what: str
    processes: tuple[int, ...]
    place: str | None


def alive(process: Process) -> bool:
    """Whether the process is known to run now."""
    return process.exit is None and look(process).alive is True


def state(process: Process) -> str:
    """``ended``, ``failed``, ``running``, ``stopped`` (its launcher told it to end), or ``silent``:
    it ended without an exit record.
    """
    told = process.told
    if process.exit is not None or (told is not None and told.event != KILLED):
        return "failed" if process.failure is not None or _code(process) else "ended"
    if alive(process):
        return "running"
    if process.failure is not None:
        return "failed"
    return "silent" if told is None else "stopped"


def _code(process: Process) -> int | None:
    """The exit code as itself or its launcher tells it; -N for signal N."""
    own = None if process.exit is None else process.exit.code
    told = process.told
    return told.code if told is not None and told.event != KILLED else own


def endings_of(trace: Trace) -> tuple[Ending, ...]:
    """Bad ends, one line for those that are alike."""
    found: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for process in trace.processes:
        how = state(process)
        if how not in ("failed", "silent", "stopped"):
            continue
        what, where, when = _how(process, how)
        found.setdefault((what, where), []).append((when, process.index))
    ends = []
    for (what, where), processes in found.items():
        processes.sort()
        ends.append(Ending(processes[0][0], what, tuple(i for _, i in processes), where))
    return tuple(sorted(ends, key=lambda e: e.t_ns))


def _how(process: Process, how: str) -> tuple[str, str | None, int]:
    failure = process.failure
    if failure is not None:
        told = brief(f"{failure.type}: {failure.text.strip()}".rstrip(": "))
        return f"raised {told}", user_place(failure.stack), failure.t_ns
    if how == "stopped" and process.told is not None:
        number = process.told.code or 0
        by = f" ({signal_name(number)})" if number < 0 else ""
        return f"was stopped by its launcher{by}", None, process.last_ns
    code = _code(process)
    if how == "failed" and code is not None and code < 0:
        return f"was ended by {signal_name(code)}", None, process.last_ns
    if how == "failed":
        own = process.exit
        called = " by os._exit" if own is not None and own.how == "os._exit" else ""
        where = None if own is None or not own.stack else user_place(own.stack)
        when = process.last_ns if own is None else own.t_ns
        return f"ended with code {code}{called}", where, when
    return (
        "ended without an exit record (SIGKILL, out of memory, or a native crash)",
        None,
        process.last_ns,
    )


def flights_of(trace: Trace, names: Names, *, limit: int = 200) -> tuple[Flight, ...]:
    """Operations in flight where the recording stops, innermost per thread, oldest first."""
    describer = Describer(trace, names)
    pending = trace.operations.filter(IN_FLIGHT & ~pl.col("lost"))
    outer = pending.select("process", pl.col("parent").alias("number")).drop_nulls()
    pending = pending.join(outer, on=["process", "number"], how="anti", maintain_order="left")
    grouped: dict[tuple[str, str | None, bool], list[tuple[int, int]]] = {}
    states = {p: state(trace.processes[p]) for p in pending["process"].unique().to_list()}
    for row in pending.iter_rows(named=True):
        process = trace.processes[row["process"]]
        gone = states[process.index] != "running"
        until = until_ns(process, trace)
        key = (describer.title(row), place(trace.stack(row["call"])), gone)
        grouped.setdefault(key, []).append((until - row["begin_ns"], process.index))
    flights = [
        Flight(
            what=what,
            processes=tuple(dict.fromkeys(i for _, i in sorted(found, key=lambda f: f[1]))),
            age_ns=max(age for age, _ in found),
            place=where,
            ended=gone,
        )
        for (what, where, gone), found in grouped.items()
    ]
    return tuple(sorted(flights, key=lambda f: -f.age_ns)[:limit])


def samples_of(trace: Trace, flights: Sequence[Flight]) -> tuple[Flight, ...]:
    """Where those stand that are in no operation while others are, as far as they noted it."""
    busy = {index for flight in flights for index in flight.processes}
    grouped: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for index, stands in latest_samples(trace).items():
        process = trace.processes[index]
        where = user_place(stands.stack)
        how = state(process)
        if index in busy or process.role == "agent" or where is None or how == "ended":
            continue
        age = until_ns(process, trace) - stands.t_ns
        grouped.setdefault((where, how != "running"), []).append((age, index))
    return tuple(
        Flight(
            what="outside communication",
            processes=tuple(index for _, index in found),
            age_ns=max(0, max(age for age, _ in found)),
            place=where,
            ended=gone,
            outside=True,
        )
        for (where, gone), found in grouped.items()
    )


def user_place(stack: Stack) -> str | None:
    """The innermost frame that is the user's, else the innermost."""
    return place(tuple(frame for frame in stack if not _foreign(frame)) or stack)


def _foreign(frame: Frame) -> bool:
    return any(
        part in frame.file for part in ("/torch/", "/site-packages/", "/lib/python", "<frozen")
    )


def until_ns(process: Process, trace: Trace) -> int:
    """To when an operation of a process is in flight: its exit, now, or the newest record."""
    if process.exit is not None:
        return process.exit.t_ns
    return trace.read_ns if alive(process) else trace.end_ns
