"""Where the processes of a job are: equal places folded into ranges of ranks, culprits first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disttrace_viewer.analysis.liveness import DISK, STOPPED
from disttrace_viewer.analysis.node_rendezvous import AGENT
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.peer_addresses import words
from disttrace_viewer.analysis.process_ends import SILENT
from disttrace_viewer.diagnosis.report import state
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.wording import sentences


@dataclass(frozen=True, slots=True)
class Place:
    """What some processes do, and where in the program."""

    doing: str
    at: str
    state: str
    processes: tuple[int, ...]
    longest_ns: int
    culprit: bool

    def line(self, case: Case) -> str:
        """``ranks 0-60, 62, 63  in all_reduce #6 of the default group  train.py:10  52.6 s``."""
        who = sentences.processes(case.evidence.trace, self.processes)
        age = sentences.span(self.longest_ns) if self.longest_ns else ""
        parts = (who, "" if self.state == "running" else self.state, self.doing, self.at, age)
        return "  ".join(part for part in parts if part)


def positions(case: Case, findings: Sequence[Finding]) -> list[str]:
    """One line per place, those of culprits first, then the fewest."""
    return [place.line(case) for place in places(case, findings)]


def places(case: Case, findings: Sequence[Finding]) -> list[Place]:
    """Processes that do the same in the same place, as one."""
    culprits = {i for f in findings for i in f.culprits}
    waiting = {i for f in findings for i in f.waiting}
    found: dict[tuple[bool, str, str, str], list[int]] = {}
    ages: dict[tuple[bool, str, str, str], int] = {}
    for process in case.evidence.trace.processes:
        if process.role == AGENT and process.index not in culprits | waiting:
            continue  # it looks after its workers, wherever it is
        doing, at, age = _doing(case, process.index)
        key = (process.index in culprits, doing, at, state(case, process.index))
        found.setdefault(key, []).append(process.index)
        ages[key] = max(age, ages.get(key, 0))
    keys = sorted(
        found, key=lambda k: (not k[0], not waiting & set(found[k]), len(found[k]), found[k])
    )
    return [Place(k[1], k[2], k[3], tuple(found[k]), ages[k], k[0]) for k in keys]


def _doing(case: Case, index: int) -> tuple[str, str, int]:
    """What a process does, where, and for how many nanoseconds that has lasted."""
    evidence, trace = case.evidence, case.evidence.trace
    waits = case.of_process.get(index)
    if waits:
        op = waits[0].op
        where = frame(trace, op)
        at = "" if where is None else sentences.standing(where)
        return f"in {sentences.operation(trace, op)}", at, evidence.age_ns(op)
    end = evidence.ends[index]
    if end.over and end.how != SILENT:
        return words(evidence, index), "", 0
    sample = evidence.stands(index)
    if end.held is not None or sample is not None or end.over:
        since = 0
        last = evidence.last.get(index)
        if sample is not None and last is not None and not end.over:
            since = max(0, evidence.cut_ns - (last.end_ns or last.begin_ns))
        at = "" if sample is None else sentences.standing(sample, evidence.inside(index))
        silent = words(evidence, index) if end.over and sample is None else NOWHERE
        return _HELD.get(end.held or "", silent), at, since
    last = evidence.last.get(index)
    if last is None:
        return "no operation yet", "", 0
    done = "in" if last.pending else "last"
    return f"{done} {sentences.operation(trace, last)}", sentences.place(frame(trace, last)), 0


NOWHERE = "not in any collective"
_HELD = {
    STOPPED: "stopped (SIGSTOP, or a debugger)",
    DISK: "in uninterruptible sleep (disk, NFS or a driver)",
}
