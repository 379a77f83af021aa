"""The report of ``diagnose --json``: every key of the contract, always present."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from disttrace.journal.format import ranges_of
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.diagnosis.completeness import missing_ranks
from disttrace_viewer.evidence.outlook import RankActivity
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, Finding
from disttrace_viewer.merge.clock import UNKNOWN_NS
from disttrace_viewer.merge.jobs import newest
from disttrace_viewer.trace.model import Job, Location
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import JOURNAL, NonFinite, Process

FORMAT = 1
NO_HISTORY = (
    "Only where processes are was read, and not all that they did: stragglers, late senders, work"
    " that nobody waited for, and arguments in calls that are over were not looked at."
)


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether there is neither an error nor a warning."""
    return all(finding.severity == NOTE for finding in findings)


FOLD = 64
"""Jobs of more processes are folded in ``diagnose --json``, unless ``--full`` is given."""


def report(case: Case, findings: Sequence[Finding], *, full: bool = True) -> dict[str, Any]:
    """The report as plain values; unless ``full``, equal processes are one entry, ranks ranges."""
    if not full and len(case.evidence.trace.processes) > FOLD:
        return _folded(report(case, findings))
    sources = {p.source for p in case.evidence.trace.processes}
    return {
        "format": FORMAT,
        "healthy": healthy(findings),
        "evidence": sorted({"journals" if one == JOURNAL else one for one in sources}),
        "processes": [process(case, p) for p in by_rank(case.evidence.trace.processes)],
        "findings": [finding(case, f) for f in findings],
        "jobs": [_job(case, findings)],
        "said": [dict(one) for one in case.said],
        "coverage": coverage(case),
    }


def job_of(case: Case) -> Job:
    """The job that a report is on: of those that met, the one that was launched last."""
    return newest(case.evidence.trace.jobs)


def _job(case: Case, findings: Sequence[Finding]) -> dict[str, Any]:
    one = job_of(case)
    return {
        "id": one.id,
        "met": [job.id for job in case.evidence.trace.jobs if job.id != one.id],
        "healthy": healthy(findings),
        "findings": len(findings),
        "missing_ranks": list(missing_ranks(case.evidence.trace)),
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
            {**together[0], "ranks": _some_ranks(together), "count": len(together)}
            for together in alike.values()
        ],
        "findings": [_folded_finding(found) for found in whole["findings"]],
        "jobs": jobs,
        "coverage": coverage,
    }


def _folded_finding(found: dict[str, Any]) -> dict[str, Any]:
    places: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for where in found["locations"]:
        place = (where["file"], where["line"], where["function"], where["op"])
        places.setdefault(place, []).append(where)
    return {
        **found,
        "culprit_ranks": ranges_of(found["culprit_ranks"]),
        "waiting": found["waiting"][:FOLD],
        "waiting_ranks": ranges_of(found["waiting_ranks"]),
        "waiting_count": len(found["waiting"]),
        "locations": [
            {**together[0], "ranks": _some_ranks(together)} for together in places.values()
        ],
    }


def _some_ranks(items: Iterable[dict[str, Any]]) -> list[Any]:
    return ranges_of(sorted({item["rank"] for item in items if item["rank"] is not None}))


def by_rank(processes: Iterable[Process]) -> list[Process]:
    """Processes in the order in which people look for them: by rank, then those without one."""
    return sorted(processes, key=lambda p: (p.rank is None, p.rank or 0, p.index))


_OF_PROCESS = ("id", "job", "role", "rank", "local_rank", "world_size", "host", "pid", "attempt")


def process(case: Case, one: Process) -> dict[str, Any]:
    """One process and the last that it did."""
    return {
        **{name: getattr(one, name) for name in (*_OF_PROCESS, "source")},
        "state": case.evidence.ends[one.index].state,
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
    trace = case.evidence.trace
    where = case.evidence.location(op)
    return {
        "op": op.call.op,
        "group": trace.group_id(op.call),
        "seq": op.seq,
        "key": trace.full_key(op.call.index, op.key),
        "status": op.status,
        "begin_ns": op.begin_ns,
        "location": None if where is None else location(case, where),
    }


def location(case: Case, where: Location) -> dict[str, Any]:
    """One line of a program on which a process stands or stood."""
    one = case.evidence.trace.processes[where.process]
    return {
        "process": one.id,
        "rank": one.rank,
        **{name: getattr(where, name) for name in ("file", "line", "function", "op")},
    }


def finding(case: Case, found: Finding) -> dict[str, Any]:
    """One finding by the contract."""
    processes = case.evidence.trace.processes
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
        "deadline": None
        if (limit := found.deadline) is None
        else {
            "at": limit.at_s,
            "limit_s": limit.limit_s,
            "whose": limit.whose,
            "then": limit.then,
        },
        **({} if found.said_at is None else {"said_at": found.said_at}),
        **_by_rank(case, found),
        "job": job,
    }


def _by_rank(case: Case, found: Finding) -> dict[str, Any]:
    processes = case.evidence.trace.processes
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
        "rank": case.evidence.trace.processes[process].rank,
        "op": one.op,
        "seq": one.seq,
        "line": None if at is None else f"{at.file}:{at.line}",
        "at_ns": one.t_ns,
    }


def _activity(case: Case, one: RankActivity) -> dict[str, Any]:
    usage = one.usage
    return {
        "rank": case.evidence.trace.processes[one.process].rank,
        "state": one.state,
        "cpu": None if one.cpu is None else round(one.cpu, 3),
        "read_bytes": None if usage is None else usage.read,
        "written_bytes": None if usage is None else usage.written,
        "lines": [f"{frame.file}:{frame.line}" for frame in one.lines],
    }


def _ranks(case: Case, indices: Sequence[int], group: str | None = None) -> list[int]:
    trace = case.evidence.trace
    known = trace.group_by_id.get(group or "")
    return sorted({*trace.ranks_of(indices, None if known is None else known.index)})


def coverage(case: Case) -> dict[str, Any]:
    """What was read, what is missing, and what could not be seen."""
    trace = case.evidence.trace
    errors = [clock.error_ns for clock in trace.clocks]
    sentences: dict[str, None] = {}
    for one in trace.processes:
        sentences.update(dict.fromkeys(one.versions.get("not_captured") or ()))
        sentences.update(dict.fromkeys(one.notes))
    if not case.past.known:
        sentences[NO_HISTORY] = None
    counts = case.evidence.sample.counts
    return {
        "journals": [
            {
                "process": one.id,
                "state": "damaged" if one.damage else "dropped" if one.dropped else "whole",
                "records": counts.get(one.index, 0),
                "damage": list(one.damage),
            }
            for one in trace.processes
        ],
        "incomplete": list(case.incomplete),
        "missing_ranks": list(missing_ranks(trace)),
        "dropped": sum(d.operations or 0 for one in trace.processes for d in one.dropped),
        "clock_error_ns": max((e for e in errors if e != UNKNOWN_NS), default=0),
        "not_captured": list(sentences),
        "problems": [problem.sentence for problem in trace.problems],
        "other_jobs": [job.id for job in trace.other_jobs if job.id not in case.judged_too],
    }
