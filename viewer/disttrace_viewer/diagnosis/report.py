"""The report of ``diagnose --json``, every key always present; and what of a job no journal holds:
what is in no record may have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from disttrace.journal.format import HEARTBEAT_NS, UNINSTALLED, ranges_of
from disttrace_viewer.analysis.process_ends import MISSED_NS
from disttrace_viewer.analysis.sample import Sample, innermost
from disttrace_viewer.evidence.wait import RankActivity
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, RuleFinding
from disttrace_viewer.merge.clock import UNKNOWN_NS
from disttrace_viewer.merge.jobs import newest
from disttrace_viewer.trace.model import CodeLocation, Group, JobTrace, LaunchedJob
from disttrace_viewer.trace.operation import SYNCHRONIZING, Op
from disttrace_viewer.trace.process import JOURNAL, Exit, NonFinite, Process
from disttrace_viewer.trace.values import dataclass, together

FORMAT = 1
NO_HISTORY = (
    "Only current positions were read, and not all that ranks did: stragglers, late senders, work"
    " that was never waited for, and arguments in calls that are over were not looked at."
)


def healthy(findings: Sequence[RuleFinding]) -> bool:
    """Whether there is neither an error nor a warning."""
    return all(finding.severity == NOTE for finding in findings)


FOLD = 64
"""Jobs of more processes are folded in ``diagnose --json``, unless ``--full`` is given."""


def report(case: Case, findings: Sequence[RuleFinding], *, full: bool = True) -> dict[str, Any]:
    """The report as plain values; unless ``full``, equal processes are one entry, ranks ranges."""
    if not full and len(case.trace.processes) > FOLD:
        return _folded(report(case, findings))
    known = case.trace.processes
    sources = {p.source for p in known}
    return {
        "format": FORMAT,
        "healthy": healthy(findings),
        "evidence": sorted({"journals" if one == JOURNAL else one for one in sources}),
        "processes": [process(case, known[i]) for i in case.by_rank(range(len(known)))],
        "findings": [finding(case, f) for f in findings],
        "jobs": [_job(case, findings)],
        "said": [dict(one) for one in case.said],
        "coverage": coverage(case),
    }


def job_of(case: Case) -> LaunchedJob:
    """The job that a report is on: of those that met, the one that was launched last."""
    return newest(case.trace.jobs)


def _job(case: Case, findings: Sequence[RuleFinding]) -> dict[str, Any]:
    one = job_of(case)
    return {
        "id": one.id,
        "met": [job.id for job in case.trace.jobs if job.id != one.id],
        "healthy": healthy(findings),
        "findings": len(findings),
        "missing_ranks": list(missing_ranks(case.trace)),
        "start_ns": one.start_ns,
        "last_ns": one.last_ns,
    }


def _folded(whole: dict[str, Any]) -> dict[str, Any]:
    """Processes that do the same at one place as one entry, with their ``ranks`` and ``count``."""
    culprits = {one for found in whole["findings"] for one in found["culprits"]}
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in whole["processes"]:
        last = one["last"] or {}
        where = last.get("location") or {}
        own = one["id"] if one["id"] in culprits else None
        place = (where.get("file"), where.get("line"), where.get("function"))
        did = (last.get("op"), last.get("seq"), last.get("key"), last.get("status"))
        alike.setdefault((own, one["role"], one["state"], *place, *map(str, did)), []).append(one)
    journals = whole["coverage"]["journals"]
    kept = [one for one in journals if one["state"] != "whole"]
    coverage = {**whole["coverage"], "journals": kept}
    coverage["whole"] = len(journals) - len(kept)
    coverage["records"] = sum(one["records"] for one in journals)
    coverage["missing_ranks"] = ranges_of(coverage["missing_ranks"])
    jobs = [{**one, "missing_ranks": ranges_of(one["missing_ranks"])} for one in whole["jobs"]]
    return {
        **whole,
        "folded": True,
        "processes": [
            {**like[0], "ranks": _some_ranks(like), "count": len(like)} for like in alike.values()
        ],
        "findings": [_folded_finding(found) for found in whole["findings"]],
        "jobs": jobs,
        "coverage": coverage,
    }


def _folded_finding(found: dict[str, Any]) -> dict[str, Any]:
    places = together(
        ((where["file"], where["line"], where["function"], where["op"]), where)
        for where in found["locations"]
    )
    return {
        **found,
        "culprit_ranks": ranges_of(found["culprit_ranks"]),
        "waiting": found["waiting"][:FOLD],
        "waiting_ranks": ranges_of(found["waiting_ranks"]),
        "waiting_count": len(found["waiting"]),
        "locations": [{**like[0], "ranks": _some_ranks(like)} for like in places.values()],
    }


def _some_ranks(items: Iterable[dict[str, Any]]) -> list[Any]:
    return ranges_of(sorted({item["rank"] for item in items if item["rank"] is not None}))


def process(case: Case, one: Process) -> dict[str, Any]:
    """One process and the last that it did."""
    names = ("id", "job", "role", "rank", "local_rank", "world_size", "host", "pid", "attempt")
    return {
        **{name: getattr(one, name) for name in (*names, "source")},
        "state": case.ends[one.index].state,
        "last": last(case, current(case, one.index)),
    }


def current(case: Case, index: int) -> Op | None:
    """The operation that holds a process up, else its newest."""
    waits = case.of_process.get(index)
    return waits[0].op if waits else case.last(index)


def last(case: Case, op: Op | None) -> dict[str, Any] | None:
    """The newest operation of a process."""
    if op is None:
        return None
    where = case.evidence.location(op)
    return {
        "op": op.call.op,
        "group": case.trace.group_id(op.call),
        "seq": op.seq,
        "key": case.trace.full_key(op.call.index, op.key),
        "status": op.status,
        "begin_ns": op.begin_ns,
        "location": None if where is None else location(case, where),
    }


def location(case: Case, where: CodeLocation) -> dict[str, Any]:
    """One line of a program on which a process stands or stood."""
    one = case.trace.processes[where.process]
    return {
        "process": one.id,
        "rank": one.rank,
        **{name: getattr(where, name) for name in ("file", "line", "function", "op")},
    }


def finding(case: Case, found: RuleFinding) -> dict[str, Any]:
    """One finding by the contract."""
    processes = case.trace.processes
    cycle = found.cycle
    concerned = (*found.culprits, *found.waiting)
    job = processes[concerned[0]].job if concerned else job_of(case).id
    if found.values is not None:
        consequences = list(found.consequences)
        more = {"said_at": found.said_at, "job": job, "consequences": consequences}
        return {**found.values, **more}
    return {
        **{name: getattr(found, name) for name in ("kind", "severity", "certainty")},
        "because": list(found.because),
        "summary": found.summary,
        "hint": found.hint,
        "culprits": [processes[i].id for i in found.culprits],
        "culprit_ranks": sorted({*_ranks(case, found.culprits, found.group), *found.absent_ranks}),
        "waiting": [processes[i].id for i in found.waiting],
        "waiting_ranks": _ranks(case, found.waiting, found.group),
        **{name: getattr(found, name) for name in ("device", "op", "group", "seq", "key")},
        "cycle": None
        if cycle is None
        else [[processes[a].id, word, processes[b].id] for a, word, b in cycle],
        "locations": [location(case, where) for where in found.locations],
        "consequences": list(found.consequences),
        "activity": [_activity(case, one) for one in found.activity],
        "deadline": (limit := found.deadline)
        and {"at": limit.at_s, **{n: getattr(limit, n) for n in ("limit_s", "whose", "then")}},
        **({} if found.said_at is None else {"said_at": found.said_at}),
        **_by_rank(case, found),
        "job": job,
    }


def _by_rank(case: Case, found: RuleFinding) -> dict[str, Any]:
    processes = case.trace.processes
    named = [{"rank": processes[i].rank, "names": list(names)} for i, names in found.parameters]
    callers = {str(processes[i].rank): line for i, line in found.callers}
    return {
        **({"parameters": named} if named else {}),
        **({"callers": callers} if callers else {}),
        **({} if found.nonfinite is None else {"nan": _nan(case, *found.nonfinite)}),
    }


def _nan(case: Case, process: int, one: NonFinite) -> dict[str, Any]:
    at = innermost(one.stack)
    return {
        "rank": case.trace.processes[process].rank,
        "op": one.op,
        "seq": one.seq,
        "line": None if at is None else f"{at.file}:{at.line}",
        "at_ns": one.t_ns,
    }


def _activity(case: Case, one: RankActivity) -> dict[str, Any]:
    usage = one.usage
    return {
        "rank": case.trace.processes[one.process].rank,
        "state": one.state,
        "cpu": None if one.cpu is None else round(one.cpu, 3),
        "read_bytes": None if usage is None else usage.read,
        "written_bytes": None if usage is None else usage.written,
        "lines": [f"{frame.file}:{frame.line}" for frame in one.lines],
    }


def _ranks(case: Case, indices: Sequence[int], group: str | None = None) -> list[int]:
    known = case.trace.group_by_id.get(group or "")
    return sorted({*case.trace.ranks_of(indices, None if known is None else known.index)})


def coverage(case: Case) -> dict[str, Any]:
    """What was read, what is missing, and what could not be seen."""
    errors = [clock.error_ns for clock in case.trace.clocks]
    not_captured = [
        sentence
        for one in case.trace.processes
        for sentence in (*(one.versions.get("not_captured") or ()), *one.notes)
    ] + ([] if case.past.known else [NO_HISTORY])
    counts = case.sample.counts
    return {
        "journals": [
            {
                "process": one.id,
                "state": "damaged" if one.damage else "dropped" if one.dropped else "whole",
                "records": counts.get(one.index, 0),
                "damage": list(one.damage),
            }
            for one in case.trace.processes
        ],
        "incomplete": list(case.incomplete),
        "missing_ranks": list(missing_ranks(case.trace)),
        "dropped": sum(one.dropped for one in case.trace.processes),
        "clock_error_ns": max((e for e in errors if e != UNKNOWN_NS), default=0),
        "not_captured": list(dict.fromkeys(not_captured)),
        "problems": [problem.sentence for problem in case.trace.problems],
        "other_jobs": [job.id for job in case.trace.other_jobs if job.id not in case.judged_too],
    }


REAL = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
"""Backends of which that is true; ``fake`` completes alone."""
FAKE = "fake"
ORDERLY = ("normal", "exit")
"""Ways to leave in which no call of the main thread is left without an end."""
SLACK = 1
"""Numbers by which a member may seem behind: its last record may be on its way to the disk."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Which journals lack something."""

    lost: Mapping[int, tuple[str, ...]]
    """By process: sentences about what is lost of its journal."""
    absent: tuple[int, ...]
    """Ranks of default groups of which no journal tells."""
    nameless: frozenset[int]
    """Processes of which it is unknown which member of the default group they were."""
    ranks: frozenset[int]
    """Ranks of the processes that lack something."""


def gaps_of(trace: JobTrace, sample: Sample) -> Gaps:
    """What is missing, by the journals' own account and by that of their peers."""
    lost = {p.index: p.losses for p in trace.processes if p.losses}
    for process, sentence in (*_behind(trace, sample), *_unended(trace, sample)):
        lost.setdefault(process, (sentence,))
    members = {m.process for group in trace.groups if group.default for m in group.members}
    # One that bears a rank that another bears too, and by its records joined as neither, may
    # have been any.
    bearers = Counter((p.attempt, p.rank) for p in trace.processes if not p.is_agent)
    named = {
        p.index
        for p in trace.processes
        if p.is_agent or (p.rank is not None and bearers[p.attempt, p.rank] == 1)
    }
    return Gaps(
        lost=lost,
        absent=missing_ranks(trace),
        nameless=frozenset(lost) - members - named,
        ranks=frozenset(r for p in lost if (r := trace.processes[p].rank) is not None),
    )


def missing_ranks(trace: JobTrace) -> tuple[int, ...]:
    """Ranks of default groups without a journal of theirs; a dry run (``fake``) has one process."""
    found: set[int] = set()
    for group in trace.groups:
        if group.default and {*group.backends.values()} != {FAKE}:
            ranks = (group.ranks or range(group.size or 0))[: group.size]
            places = (m.rank for m in group.members if m.rank is not None)
            named = {*ranks} - {ranks[at] for at in places if at < len(ranks)} - trace.elsewhere
            found |= named - _of_other_size(trace, group) if named else named
    return tuple(sorted(found))


def _of_other_size(trace: JobTrace, group: Group) -> set[int]:
    """Ranks that meet there and take the world for larger or smaller: their journals are there."""
    here = (group.place, group.prefix, _tries(trace, group))
    return {
        member.rank
        for other in trace.groups
        if other.default
        and other.place is not None
        and other.size != group.size
        and (other.place, other.prefix, _tries(trace, other)) == here
        for member in other.members
        if member.rank is not None
    }


def _tries(trace: JobTrace, group: Group) -> set[int | None]:
    """The attempts that a group is of."""
    return {trace.processes[member.process].attempt for member in group.members}


def _behind(trace: JobTrace, sample: Sample) -> Iterator[tuple[int, str]]:
    """Members that must have begun what others completed with them, but have no record of it."""
    for (number, backend), members in sample.streams.items():
        if number is None or backend not in REAL:
            continue
        group = trace.groups[number]
        done = max(map(_completed, members.values()))
        for member in group.members:
            one, kept = trace.processes[member.process], members.get(member.rank or 0, ())
            last = kept[-1].seq or 0 if kept else 0
            if member.rank is not None and last + SLACK < done and not _silent(one):
                name = "the default group" if group.default else f"group {group.name}"
                what = f"its journal ends at #{last:,} of {name}, but others completed #{done:,}"
                yield one.index, f"{one.label}: {what} with it; what it did since is not known."


def _unended(trace: JobTrace, sample: Sample) -> Iterator[tuple[int, str]]:
    """Processes that exited normally while, by their journal, the main thread was in a call."""
    for op in sample.pending:
        one = trace.processes[op.process]
        held = op.thread == 0 and op.issued_ns is None and op.call.asynchronous is not True
        if held and one.exit is not None and one.exit.how in ORDERLY and op.call.origin != "c++":
            if _interrupted(one, one.exit, op):
                continue
            what = f"its journal has no end of {op.call.op}, yet the process exited"
            yield one.index, f"{one.label}: {what}; what it did since is not known."


def _interrupted(one: Process, last: Exit, op: Op) -> bool:
    """Whether a signal's exception took it out of the call: it left with an error, and its journal,
    where heartbeats went on after the begin and nearly to the end, can have lost nothing else.
    """
    beat_ns = one.heartbeat_ns or 0
    badly = bool(last.causes) or last.code not in (None, 0)
    return badly and beat_ns - op.begin_ns > HEARTBEAT_NS and last.t_ns - beat_ns < MISSED_NS


def _completed(kept: tuple[Op, ...]) -> int:
    """The last number of a stream that a member completed when all others had to be in it."""
    done = 0
    for op in kept:
        if op.pending or op.error is not None or op.seq is None:
            break  # kept, as all are that are not over; those between are over
        if op.call.op in SYNCHRONIZING:
            done = op.seq
    return done


def _silent(process: Process) -> bool:
    """Whether it records no more, is evidence of one moment, or only reported by another one."""
    if process.source != JOURNAL or not process.paths:
        return True
    return process.exit is not None and process.exit.how == UNINSTALLED
