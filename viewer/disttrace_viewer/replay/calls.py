"""The calls of a job as values: what a program would have to call to do the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.replay.sequences import ISSUE, WAIT, Action, Key, Script

STAYS, ENDS, FAILS, KILLED = "stays", "ends", "fails", "killed"


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank. Ranks are global; ``group`` is an index into ``Job.groups``."""

    op: str
    group: int
    key: Key | None
    message: bool
    asynchronous: bool
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    reduce_op: str | None
    root: int | None
    peer: int | None
    tag: int
    batch: int | None
    where: str
    """``train.py:137``."""
    begin_ns: int
    over: bool
    """It ended well in the recording."""


@dataclass(slots=True)
class Rank:
    """What one rank does: by thread whether it issues a call or waits for one, and its end."""

    threads: dict[int, list[tuple[str, Call]]] = field(default_factory=dict)
    end: str = ENDS
    word: str = ""
    """Where it stays, or with what it fails."""


@dataclass(slots=True)
class Job:
    """Ranks by number, and the members of each group; the first one is the default group."""

    ranks: dict[int, Rank]
    groups: list[tuple[int, ...]]

    @property
    def count(self) -> int:
        """Calls of all ranks."""
        issued = (
            what for r in self.ranks.values() for steps in r.threads.values() for what, _ in steps
        )
        return sum(what == ISSUE for what in issued)


def job_of(scripts: Sequence[Script], evidence: Evidence, findings: Sequence[Finding]) -> Job:
    """The calls of the ranks of a job."""
    failed = {i for one in findings if one.kind == "process_failed" for i in one.culprits}
    processes = {process.id: process for process in evidence.trace.processes}
    groups: dict[str, int] = {}
    members: list[tuple[int, ...]] = []
    found: dict[int, Rank] = {}
    pending = {(op.process, op.number) for op in evidence.pending}
    for script in sorted(scripts, key=lambda one: not _has_default(one.journal.definitions)):
        process = processes[script.journal.id]
        if process.rank is None or process.rank in found:
            continue
        definitions = script.journal.definitions
        for number, group in sorted(definitions.numbered["group"].items()):
            gid, ranks = definitions.group_id(number), group.get("ranks")
            if gid is not None and ranks and gid not in groups:
                groups[gid] = len(members)
                members.append(tuple(ranks))
        rank = found[process.rank] = Rank(_steps(script, groups, members, process.index, pending))
        _end(rank, evidence, process.index, failed)
    return Job(found, members)


def _has_default(definitions: Definitions) -> bool:
    return any(group.get("default") for group in definitions.numbered["group"].values())


def _steps(
    script: Script,
    groups: Mapping[str, int],
    members: Sequence[tuple[int, ...]],
    process: int,
    pending: set[tuple[int, int]],
) -> dict[int, list[tuple[str, Call]]]:
    definitions = script.journal.definitions
    calls: dict[int, Call] = {}
    threads: dict[int, list[tuple[str, Call]]] = {}
    for thread, steps in script.threads.items():
        for step in steps:
            action = step.action
            gid = definitions.group_id(action.call.get("group", -1))
            if action.refused or gid is None or gid not in groups:
                continue
            if id(action) not in calls:
                over = (process, action.number) not in pending and not action.broken
                calls[id(action)] = _call(action, groups[gid], members, definitions, over)
            threads.setdefault(thread, []).append((step.what, calls[id(action)]))
    for issued in threads.values():
        # Whatever C++ waits for (DDP's reducer) is waited for without a word.
        waited = {id(call) for what, call in issued if what == WAIT}
        issued += [(WAIT, call) for _, call in issued if not call.over and id(call) not in waited]
    return threads


def _call(
    action: Action,
    group: int,
    members: Sequence[tuple[int, ...]],
    definitions: Definitions,
    over: bool,
) -> Call:
    call: Mapping[str, Any] = action.call
    ranks = members[group]

    def everywhere(rank: int | None) -> int | None:
        return ranks[rank] if rank is not None and 0 <= rank < len(ranks) else None

    frames = definitions.frames(call.get("stack"))
    return Call(
        op=call.get("op") or "barrier",
        group=group,
        key=action.key,
        message=call.get("kind") == "message",
        asynchronous=call.get("async") is not False,
        shapes=call.get("shapes") or (),
        dtypes=call.get("dtypes") or (),
        reduce_op=call.get("reduce_op"),
        root=everywhere(call.get("root")),
        peer=everywhere(call.get("peer")),
        tag=call.get("tag") or 0,
        batch=action.batch,
        where=f"{frames[0][0].rpartition('/')[2]}:{frames[0][1]}" if frames else "",
        begin_ns=action.at_ns,
        over=over,
    )


def _end(rank: Rank, evidence: Evidence, process: int, failed: Collection[int]) -> None:
    """Who was ended from outside, or since others were, stood until then."""
    end = evidence.ends[process]
    if process in failed and end.failure is not None:
        rank.end, rank.word = FAILS, f"{end.failure.type}: {end.failure.text}"
    elif process in failed and end.how != CLEAN:
        rank.end = KILLED if end.code is None or end.code < 0 else FAILS
        rank.word = f"exit code {end.code}"
    elif end.how != CLEAN:
        at = evidence.whereabouts(process)
        rank.end, rank.word = STAYS, "" if at is None else f"{at.file.rpartition('/')[2]}:{at.line}"


def named(found: Sequence[Finding], evidence: Evidence) -> frozenset[int]:
    """The ranks that findings blame."""
    processes = evidence.trace.processes
    ranks = (processes[i].rank for one in found for i in one.culprits)
    absent = (rank for one in found for rank in one.absent_ranks)
    return frozenset(rank for rank in (*ranks, *absent) if rank is not None)
