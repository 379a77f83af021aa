"""The head of the report: what ran where, what was recorded, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Group, Job, Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording.names import Names
from disttrace_viewer.wording.quantities import duration, few, number, spans

ROLES = (("agent", None), ("worker", None), ("child", "children"), ("main", "main processes"))


@dataclass(frozen=True, slots=True)
class JobHead:
    """One launch."""

    letter: str
    id: str
    program: str
    start_ns: int
    duration_ns: int
    hosts: tuple[str, ...]
    roles: tuple[tuple[str, int], ...]
    """(role, how many), in the order of ``ROLES``."""
    ranks: tuple[int, ...]
    world_size: int | None
    states: tuple[tuple[str, int], ...]
    attempts: int
    torch: tuple[str, ...]
    linked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupHead:
    """One group, or several that are alike in all but their name."""

    name: str
    ranks: str
    backends: str
    size: int | None
    missing: tuple[int, ...]
    collectives: int
    messages: int


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands above the first line of the sequence."""

    jobs: tuple[JobHead, ...]
    groups: tuple[GroupHead, ...]
    journals: int
    operations: int
    problems: tuple[str, ...]
    """What is missing, damaged or dropped, a sentence each."""
    unseen: tuple[str, ...]
    """What this tracing could not see, a sentence each."""
    clocks: str | None
    others: str | None
    """What else lies in the folder."""


def header_of(evidence: Evidence, exchanges: Exchanges, names: Names) -> Header:
    """The head for a trace."""
    trace = exchanges.trace
    return Header(
        jobs=tuple(_job(evidence, names, job) for job in trace.jobs),
        groups=_groups(trace, exchanges, names),
        journals=len(trace.processes),
        operations=trace.operations.height,
        problems=tuple(_problems(trace, names)),
        unseen=tuple(
            dict.fromkeys(
                str(sentence)
                for p in trace.processes
                for sentence in p.versions.get("not_captured") or ()
            )
        ),
        clocks=_clocks(trace),
        others=_others(trace.other_jobs),
    )


def program(process: Process) -> str:
    """The command without interpreter and folders: ``torchrun --nproc-per-node 2 train.py``."""
    words = list(process.argv)
    if len(words) > 1 and words[0].rsplit("/", 1)[-1].startswith(("python", "pypy")):
        words = words[1:]
        while len(words) > 1 and words[0] in ("-u", "-m", "-X", "faulthandler"):
            words = words[1:]
    words = [word.rsplit("/", 1)[-1] if "/" in word and "=" not in word else word for word in words]
    if words and words[0] in ("run.py", "torch.distributed.run", "__main__.py"):
        words[0] = "torchrun"
    return " ".join(words)


def _job(evidence: Evidence, names: Names, job: Job) -> JobHead:
    trace = names.trace
    processes = [trace.processes[i] for i in job.processes]
    roles = Counter(p.role for p in processes)
    oldest = min(processes, key=lambda p: (p.parent in trace.by_id, not p.is_agent, p.start_ns))
    known = [role for role, _ in ROLES]
    return JobHead(
        letter=names.letters.get(job.id, ""),
        id=job.id,
        program=program(oldest),
        start_ns=job.start_ns,
        duration_ns=job.last_ns - job.start_ns,
        hosts=tuple(sorted({p.host for p in processes})),
        roles=tuple(
            (role, roles[role])
            for role in [*known, *sorted(set(roles) - set(known))]
            if role in roles
        ),
        ranks=tuple(sorted({p.rank for p in processes if p.rank is not None})),
        world_size=max((p.world_size for p in processes if p.world_size), default=None),
        states=tuple(Counter(evidence.ends[p.index].state for p in processes).most_common()),
        attempts=1 + max((p.attempt or 0 for p in processes), default=0),
        torch=tuple(sorted({str(p.versions["torch"]) for p in processes if "torch" in p.versions})),
        linked=tuple(names.letters.get(other, other) for other in job.linked),
    )


def _groups(trace: Trace, exchanges: Exchanges, names: Names) -> tuple[GroupHead, ...]:
    collectives = dict(exchanges.collectives.group_by("group").len().iter_rows())
    messages = dict(exchanges.messages.group_by("group").len().iter_rows())
    return tuple(
        GroupHead(
            name=names.group(group.index),
            ranks=_members(group, names),
            backends=", ".join(dict.fromkeys(group.backends.values())) or _bare(group),
            size=group.size,
            missing=group.missing,
            collectives=collectives.get(group.index, 0),
            messages=messages.get(group.index, 0),
        )
        for group in trace.groups
    )


def _bare(group: Group) -> str:
    """The backend of a group made by hand: ``gloo`` for ProcessGroupGloo."""
    kind = group.type or ""
    return kind.removeprefix("ProcessGroup").lower() or "?"


def _members(group: Group, names: Names) -> str:
    if group.ranks is not None:
        return f"{'rank' if len(group.ranks) == 1 else 'ranks'} {spans(group.ranks)}"
    return names.processes(m.process for m in group.members)


def _problems(trace: Trace, names: Names) -> list[str]:
    found = [problem.sentence for problem in trace.problems]
    for job in trace.jobs:
        processes = [trace.processes[i] for i in job.processes]
        size = max((p.world_size or 0 for p in processes), default=0)
        seen = {p.rank for p in processes}
        absent = [rank for rank in range(size) if rank not in seen]
        if absent and len(absent) < size:
            letter = names.letters.get(job.id)
            of = f" of job {letter}" if letter else ""
            noun = "rank" if len(absent) == 1 else "ranks"
            found.append(
                f"No journal of {noun} {spans(absent)}{of}: not started, not traced,"
                " or the journal was not collected."
            )
    for process in trace.processes:
        if process.dropped:
            count = sum(d.operations or 0 for d in process.dropped)
            oldest = (
                f"the oldest {number(count, 'operation')}" if count else "its oldest operations"
            )
            found.append(
                f"{names.process(process.index)}: {oldest} were dropped to stay within"
                " DISTTRACE_MAX_MB."
            )
    notes: dict[str, list[int]] = {}
    for process in trace.processes:
        for note in process.notes:
            notes.setdefault(note, []).append(process.index)
    found.extend(f"{names.processes(who)}: {text}" for text, who in notes.items())
    return list(dict.fromkeys(found))


def _clocks(trace: Trace) -> str | None:
    if len(trace.clocks) < 2:
        return None
    worst = max(clock.error_ns for clock in trace.clocks)
    return f"{len(trace.clocks)} clocks, aligned to within {duration(worst)}"


def _others(jobs: Sequence[Job]) -> str | None:
    if not jobs:
        return None
    ids = few([job.id for job in jobs[::-1]], 2)
    return f"{number(len(jobs), 'other job')} here ({ids}): --job ID|all"
