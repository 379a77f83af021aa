"""The judge, which alone calls the rules: how sure they are, and the verdict on merged states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.analysis.past import NOTHING, Past
from disttrace_viewer.analysis.process_ends import CASCADE, CLEAN, OWN, SILENT, TOGETHER_NS
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.diagnosis.positions import outlook
from disttrace_viewer.diagnosis.report import Gaps, gaps_of, healthy
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.mismatches import KINDS
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.evidence.wait import Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, SEVERITIES, RuleFinding
from disttrace_viewer.findings.rules import downgraded, outside, straggler, unmatched
from disttrace_viewer.findings.rules.divergence import root_cause_of
from disttrace_viewer.findings.rules.groups import by_names
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.state import Merged
from disttrace_viewer.trace.model import Blame, JobTrace
from disttrace_viewer.trace.process import Problem
from disttrace_viewer.trace.values import dataclass, replace, together
from disttrace_viewer.wording import sentences

SEEN = KINDS | {
    *("size_mismatch", "not_in_group", "duplicate_rank", "straggler", "late_sender"),
    *("divergence", "value_divergence"),
}
"""Kinds that rest on what is in records, and not on what is in none."""


def judged(
    case: Case, findings: Sequence[RuleFinding]
) -> tuple[tuple[RuleFinding, ...], tuple[str, ...]]:
    """The findings that hold whatever lost records held, and sentences about what is missing."""
    gaps = gaps_of(case.trace, case.sample)
    if any(not job.known for job in case.trace.other_jobs):
        # Journals without definitions lie here, maybe of ranks that are absent.
        more = "collect the definitions (*.defs.jsonl) of the journals here that lack them"
        findings = [
            f.doubted(sentences.NO_DEFINITIONS, absent_ranks=(), settles=(*f.settles, more))
            if f.absent_ranks
            else f
            for f in findings
        ]
    if not gaps.lost and not gaps.absent:
        return tuple(findings), ()
    kept = [f for f in findings if f.severity == NOTE or _holds(case, gaps, f)]
    if gaps.absent:
        kept = [_unblamed(f, gaps) if _may_follow(case, f) else f for f in kept]
    kept = [_unblamed(f, gaps) if _may_be_crossed(case, gaps, f) else f for f in kept]
    return tuple(kept), tuple(_sentences(gaps, case.trace))


def _may_follow(case: Case, finding: RuleFinding) -> bool:
    """Whether a rank without a journal may have ended the one that is blamed."""
    if all(case.trace.processes[p].source == "log" for p in finding.culprits):
        return False  # its own words, and likely no more
    if finding.kind == "process_failed":
        return bool(finding.culprits) and not _failed_first(case, finding)
    return finding.kind in outside.OF_ABSENCE and any(
        case.ends[p].how in (SILENT, OWN, CASCADE)
        and case.evidence.cut_ns - case.ends[p].t_ns > TOGETHER_NS
        for p in finding.culprits
    )


def _may_be_crossed(case: Case, gaps: Gaps, finding: RuleFinding) -> bool:
    """Whether a lost journal may be of one that waits for those here: a wrong address."""
    if finding.kind not in outside.OF_ABSENCE or not finding.culprits:
        return False
    known = {*finding.waiting, *finding.culprits}
    if not gaps.absent and not any(process not in known for process in gaps.lost):
        return False
    return any(
        wait.process in finding.waiting
        and not known.isdisjoint(wait.targets)
        and unmatched.possible(case, wait)
        for wait in case.waits
    )


def _unblamed(finding: RuleFinding, gaps: Gaps) -> RuleFinding:
    """What happened, without saying whose doing it was."""
    more = outside.journals({*gaps.absent, *gaps.ranks})
    return finding.doubted(
        sentences.NOT_WHOLE,
        culprits=(),
        settles=tuple(dict.fromkeys((*finding.settles, more))),
    )


def _holds(case: Case, gaps: Gaps, finding: RuleFinding) -> bool:
    if finding.kind in SEEN:
        return True
    if not gaps.lost:
        return True  # a rank may never have been started: that is a finding and no gap
    if any(process in gaps.lost for process in finding.culprits):
        return False
    if finding.kind == "process_failed":
        return not finding.culprits or _failed_first(case, finding)
    if finding.waiting and all(process in gaps.lost for process in finding.waiting):
        return False  # their waiting may have ended in what is lost
    if finding.absent_ranks and (gaps.nameless or gaps.ranks & {*finding.absent_ranks}):
        return False
    if finding.kind == "rendezvous_unreachable":
        return False  # who listens may be among them
    if finding.cycle is not None:
        return not any(p in gaps.lost for a, _, b in finding.cycle for p in (a, b))
    return bool(finding.culprits or finding.absent_ranks)


def _failed_first(case: Case, finding: RuleFinding) -> bool:
    """Whether it failed by its own record, before others did or noticed a loss."""
    evidence = case.evidence
    first = min((evidence.ends[p] for p in finding.culprits), key=lambda end: end.t_ns)
    if evidence.first_broken_ns is not None and first.t_ns > evidence.first_broken_ns:
        return False
    # An agent fails because one of its workers did; and what a call raised may be another's doing.
    return first.failure is not None and not any(
        evidence.trace.processes[p].is_agent or p in evidence.raised for p in finding.culprits
    )


def _sentences(gaps: Gaps, trace: JobTrace) -> Iterator[str]:
    for found in gaps.lost.values():
        yield from found
    for rank in gaps.absent:
        if rank in gaps.ranks:
            yield f"rank {rank}: its journal does not say what it did."
        elif len(gaps.nameless) >= len(gaps.absent):
            yield f"rank {rank}: no journal names this rank."
        else:
            yield f"rank {rank}: {outside.not_found(trace)}."


def judge(evidence: Evidence, past: Past = NOTHING) -> tuple[Case, tuple[RuleFinding, ...]]:
    """The case and its findings, errors first; each carries its consequences as sentences.

    Where journals are lost, findings that these might contradict are left out, and
    ``Case.incomplete`` states what is missing.
    """
    case = Case(evidence, past=past)
    for rule in RULES:
        for finding in rule(case):
            _take(case, finding)
    found = downgraded.traced_to(case, case.findings)
    case.findings = [
        outlook(case, downgraded.resolved(case, root_cause_of(case, one))) for one in found
    ]
    findings, case.incomplete = judged(case, fold(case))
    findings = tuple(outside.worded(case, one) for one in findings)
    case.incomplete += outside.what_stays_open(case, findings)
    return case, findings


def _take(case: Case, finding: RuleFinding) -> None:
    finding = straggler.as_note(case, downgraded.as_note(case, finding))
    found = outside.downgraded(case, finding)
    if found is not None:
        case.add(downgraded.with_handled(case, by_names(case, found)))


@dataclass(frozen=True)
class Verdict:
    """Findings, errors first, and what they were found in."""

    case: Case
    findings: tuple[RuleFinding, ...]
    bases: tuple[str, ...] = ()
    """The paths of journals without their suffixes."""

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return healthy(self.findings)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What is missing of the job's journals, as sentences; none: the verdict rests on all."""
        return self.case.incomplete

    @property
    def blame(self) -> Blame:
        """By which waiting that never ended was caused: the one table of it."""
        known = {id(one.scope): one.culprits for one in self.findings}
        of: dict[int, tuple[int, ...]] = {}
        for wait, number in self.case.owner.items():
            culprits = known.get(id(self.case.findings[number].scope), ())
            of.update({wait.process: culprits} if culprits else {})
        faults = [f for f in self.findings if f.severity == ERROR or (f.culprits and f.activity)]
        of.update(
            {p: one.culprits for one in reversed(faults) if one.culprits for p in one.waiting}
        )
        where = {at.process: at for one in reversed(faults) for at in reversed(one.locations)}
        return Blame(of, {p: f"{at.file}:{at.line}" for p, at in where.items()})


def verdict(
    merged: Merged,
    *,
    only: Collection[str] | None = None,
    stall_ns: int = STALL_NS,
    look: Look = look,
    problems: Sequence[Problem] = (),
) -> Verdict:
    """What is wrong with some processes (by id; default: all), as far as their states tell.

    What needs history is left out, and the report show it. A finding is certain only if the
    journals of those concerned were read in full for their states.
    """
    unfinished, bases = merged.partial, merged.survey.paths
    trace, sample = trace_of(merged, only=only, more=problems)
    partial = frozenset(i for i, p in enumerate(trace.processes) if p.id in unfinished)
    evidence = Evidence(trace, sample, stall_ns=stall_ns, look=look, partial=partial)
    return Verdict(*judge(evidence), bases=bases)


def fold(case: Case) -> tuple[RuleFinding, ...]:
    """All findings with consequences, errors first; a repeated attempt's behind the last one's."""
    waits = together((owner, wait) for wait, owner in case.owner.items())
    ends = together((owner, process) for process, owner in case.end_owner.items())
    folded = []
    for number, finding in enumerate(case.findings):
        mine = waits.get(number, [])
        # Who waits because of a finding that has no culprit itself.
        held = tuple(sorted({wait.process for wait in mine} - set(finding.culprits)))
        reported = _consequence_sentences(case, finding, mine, ends.get(number, []))
        reported += _uncaught(case, finding, (*finding.consequences, *reported))
        folded.append(
            replace(
                finding,
                waiting=finding.waiting or held,
                consequences=(*finding.consequences, *reported),
            )
        )
    return tuple(
        sorted(
            folded,
            key=lambda f: (
                SEVERITIES.index(f.severity),
                downgraded.attempts(case, f)[1] is not None,
            ),
        )
    )


def _consequence_sentences(
    case: Case, finding: RuleFinding, explained: Iterable[Wait], ends: Iterable[int]
) -> list[str]:
    trace, evidence, failed = case.trace, case.evidence, finding.kind == "process_failed"
    waits: dict[tuple[bool, str], list[int]] = {}
    groups: dict[str, int | None] = {}
    for wait in explained:
        in_it = wait.exchange in finding.scope.exchanges
        if in_it or (wait.stream, wait.op.seq) == finding.scope.stream:
            continue  # the finding tells of it
        if wait.process in finding.waiting and not (failed and finding.culprits):
            continue
        over = wait.op.error is not None or evidence.ends[wait.process].over
        what = f"{sentences.operation(trace, wait.op)}{sentences.aside(frame(wait.op))}"
        waits.setdefault((over, what), []).append(wait.process)
        groups[what] = wait.op.call.group
    reported = [
        f"{sentences.subject(trace, who, within=groups[what])}"
        f" {'waited' if over else 'wait' if len(who) > 1 else 'waits'} in {what}."
        for (over, what), who in waits.items()
    ]
    # Those of which it tells; and who was ended from outside when all was over follows from none.
    apart = {*case.cut_off, *(finding.culprits or (finding.waiting if failed else ()))}
    ended = together(
        (sentences.pattern(end_of(evidence, process)), process)
        for process in ends
        if process not in apart and evidence.ends[process].how != CLEAN
    )
    reported += [
        f"{sentences.subject(trace, who)}"
        f" {sentences.ended(end_of(evidence, who[0]), many=len(who) > 1)}."
        for who in ended.values()
    ]
    return reported


def _uncaught(case: Case, finding: RuleFinding, reported: Iterable[str]) -> list[str]:
    """Uncaught exceptions of the named processes that no sentence of the finding quotes."""
    quoted = " ".join((finding.summary, *reported))
    ends = {p: end_of(case.evidence, p) for p in (*finding.culprits, *finding.waiting)}
    failed = {p: one for p, end in ends.items() if (one := end.failure) and not end.interrupted}
    raised = together((sentences.pattern(ends[process]), process) for process in failed)
    return [
        f"{sentences.subject(case.trace, who)} {sentences.ended(ends[who[0]])}."
        for who in raised.values()
        if not any(sentences.raised(failed[process]) in quoted for process in who)
    ]
