"""The head of the report: what ran where, what was recorded, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.process_ends import EXITED, FAILED, KILLED, RUNNING, UNKNOWN
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.model import Group, Job, Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.views.terminal import BAD, DIM, GOOD, HEAD, PLAIN, WAIT
from disttrace_viewer.wording.names import Names, clock_time, duration, few, number, spans

ROLES = (("agent", None), ("worker", None), ("child", "children"), ("main", "main processes"))
GROUPS, SENTENCES = 8, 6
"""Groups and sentences shown before the rest is counted."""
_STATE_STYLES = {
    FAILED: BAD,
    KILLED: BAD,
    STOPPED: WAIT,
    RUNNING: WAIT,
    UNKNOWN: WAIT,
    EXITED: GOOD,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, however it is wrapped."""

    label: str | None
    """What stands beside it; None: nothing, it is a title."""
    words: tuple[tuple[str, str], ...]
    """Texts, each with its style."""
    verbose: bool = False
    """Only shown to who wants to know all."""


def header_of(evidence: Evidence, exchanges: Exchanges, names: Names) -> tuple[Line, ...]:
    """All that stands above the first line of the sequence."""
    trace = exchanges.trace
    return (
        *(line for job in trace.jobs for line in _job(evidence, names, job)),
        *_groups(trace, exchanges, names),
        *_recorded(trace, names),
    )


def _program(process: Process) -> str:
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


def _job(evidence: Evidence, names: Names, job: Job) -> Iterator[Line]:
    trace = names.trace
    processes = [trace.processes[i] for i in job.processes]
    oldest = min(processes, key=lambda p: (p.parent in trace.by_id, not p.is_agent, p.start_ns))
    letter = names.letters.get(job.id)
    of = f"job {letter}  " if letter else ""
    yield Line(None, ((f"{of}{_program(oldest) or job.id}", HEAD),))
    when = f"{clock_time(job.start_ns)}, {duration(job.last_ns - job.start_ns)}"
    hosts = sorted({p.host for p in processes})
    where = f"  on {number(len(hosts), 'host')} ({few(hosts, 4)})  {job.id}"
    yield Line("ran", ((when, PLAIN), (where, DIM)))
    yield Line("processes", (*_who(processes), ("; ", PLAIN), *_states(evidence, processes)))
    if job.linked:
        met = few([names.letters.get(other, other) for other in job.linked], 6)
        yield Line("met", ((f"job {met} in a store", PLAIN),))
    torch = sorted({str(p.versions["torch"]) for p in processes if "torch" in p.versions})
    if torch:
        yield Line("torch", ((few(torch, 3), DIM),))


def _who(processes: Sequence[Process]) -> Iterator[tuple[str, str]]:
    roles, plural = Counter(p.role for p in processes), dict(ROLES)
    known = [role for role in (*plural, *sorted(set(roles) - set(plural))) if role in roles]
    text = ", ".join(number(roles[role], role, plural.get(role)) for role in known)
    ranks = sorted({p.rank for p in processes if p.rank is not None})
    if ranks:
        text += f"; {'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}"
        if size := max(p.world_size or 0 for p in processes):
            text += f" of {size}"
    yield text, PLAIN
    attempts = 1 + max(p.attempt or 0 for p in processes)
    if attempts > 1:
        yield f"; {attempts} attempts", WAIT


def _states(evidence: Evidence, processes: Sequence[Process]) -> Iterator[tuple[str, str]]:
    states = Counter(evidence.ends[p.index].state for p in processes)
    if [*states] == [EXITED]:
        yield "all exited", GOOD
        return
    for place, (state, count) in enumerate(states.most_common()):
        if place:
            yield ", ", PLAIN
        yield f"{count} {state}", _STATE_STYLES[state]


def _groups(trace: Trace, exchanges: Exchanges, names: Names) -> Iterator[Line]:
    collectives, messages = (
        Counter(dict(frame.group_by("group").len().iter_rows()))
        for frame in (exchanges.collectives, exchanges.messages)
    )
    busiest = sorted(trace.groups, key=lambda g: -(collectives[g.index] + messages[g.index]))
    shown = {group.index for group in busiest[:GROUPS]}
    for place, group in enumerate(g for g in trace.groups if g.index in shown):
        counted = ((collectives[group.index], "collective"), (messages[group.index], "message"))
        traffic = ", ".join(number(count, noun) for count, noun in counted if count)
        members = _members(group, names)
        backends = ", ".join(dict.fromkeys(group.backends.values())) or _bare(group)
        what = f"{names.group(group.index)}: {f'{members}, ' if members else ''}{backends}"
        missing = f"; no journal of {spans(group.missing)}" if group.missing else ""
        words = ((what, PLAIN), (f"  {traffic or 'unused'}", DIM), (missing, WAIT))
        yield Line("" if place else "groups", words)
    if more := len(trace.groups) - len(shown):
        yield Line("", ((f"and {number(more, 'more group')}", DIM),))


def _bare(group: Group) -> str:
    """The backend of a group made by hand: ``gloo`` for ProcessGroupGloo."""
    kind = group.type or ""
    return kind.removeprefix("ProcessGroup").lower() or "?"


def _members(group: Group, names: Names) -> str:
    if group.ranks is not None:
        return f"{'rank' if len(group.ranks) == 1 else 'ranks'} {spans(group.ranks)}"
    return names.processes(m.process for m in group.members)


def _recorded(trace: Trace, names: Names) -> Iterator[Line]:
    operations = number(trace.operations.height, "operation")
    read = f"{operations} in {number(len(trace.processes), 'journal')}"
    if len(trace.clocks) > 1:
        worst = max(clock.error_ns for clock in trace.clocks)
        read += f"; {len(trace.clocks)} clocks, aligned to within {duration(worst)}"
    problems = _problems(trace, names)
    if not problems:
        read += "; nothing missing, damaged or dropped"
    yield Line("recorded", ((read, PLAIN),))
    shown = problems[:SENTENCES]
    if more := len(problems) - len(shown):
        shown.append(f"and {number(more, 'more sentence')} like these")
    for sentence in shown:
        yield Line("", (("! ", WAIT), (sentence, PLAIN)))
    unseen = [str(s) for p in trace.processes for s in p.versions.get("not_captured") or ()]
    if unseen:
        yield Line("not captured", ((" ".join(dict.fromkeys(unseen)), DIM),), verbose=True)
    if others := trace.other_jobs:
        ids = few([job.id for job in others[::-1]], 2)
        text = f"{number(len(others), 'other job')} here ({ids}): --job ID|all"
        yield Line("also here", ((text, DIM),))


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
