"""Something ended the job, or one rank, from outside by SIGINT: no rank is to blame."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.process_ends import MISSED_NS, SILENT, STOPPED_AGENT
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import ended


def find(case: Case) -> Iterator[RuleFinding]:
    """A note where the whole job was interrupted; an error where ranks were, and others were not.

    A rank that others had been waiting for when it was interrupted broke nothing by that.
    """
    found = [i for i, end in enumerate(case.evidence.ends) if end.interrupted]
    if case.evidence.interrupted_ns is None:
        broke = [p for p in found if not case.witnesses.awaited_before(p)]
        if broke and len(case.trace.processes) > 1:
            yield _finding(case, broke, whole=False)
        return
    # Which of its ranks seem to have lived until then depends on when they last wrote anything.
    stopped = [i for i in found if any(map(_stopped, case.trace.processes[i].failures))]
    ranks = [i for i in found if not case.trace.processes[i].is_agent]
    if found:
        yield _finding(case, stopped or ranks or found, whole=True)


def _stopped(failure: Failure) -> bool:
    """Whether it is torchrun's word of the signal that it got."""
    return failure.type == STOPPED_AGENT


def _finding(case: Case, who: list[int], *, whole: bool) -> RuleFinding:
    evidence, trace = case.evidence, case.trace
    first = min(who, key=lambda p: evidence.ends[p].t_ns)
    texts = (f.text for p in trace.processes for f in filter(_stopped, p.failures))
    torchrun, where = (next(texts, None), None) if whole else (None, evidence.whereabouts(first))
    were = "were" if len(who) > 1 else "was"
    reported = "SIGINT" if torchrun is None else f"torchrun: {torchrun}"
    at = "" if where is None else f" at {sentences.is_at(where)}"
    then = "; what ranks report after that follows from it" if whole else ""
    return RuleFinding(
        kind="process_failed",
        severity=NOTE if whole else ERROR,
        summary=f"{sentences.subject(trace, who)} {were} interrupted from outside"
        f" ({reported}){at}{then}.",
        hint="Ctrl-C was pressed, or something sent the signal: a shell, a scheduler, a"
        " notebook. What stood before is the verdict.",
        waiting=(),
        at_ns=evidence.ends[first].t_ns,
        locations=outside.locations(case, who),
        scope=Scope() if whole else Scope.of(roots=who, members=case.witnesses.broke_after(who)),
    )


def find_orphaned(case: Case) -> Iterator[RuleFinding]:
    """One note per launcher that was seen to be gone, and gave no word of an end."""
    trace, evidence = case.trace, case.evidence
    for launcher in trace.processes:
        end, gone_ns = evidence.ends[launcher.index], evidence.seen[launcher.index].gone_ns
        if not launcher.is_agent or end.how != SILENT or end.interrupted or not gone_ns:
            continue
        left = [
            p
            for p in trace.children.get(launcher.id, ())
            if trace.processes[p].rank is not None
            and trace.processes[p].last_ns > gone_ns + MISSED_NS
        ]
        if left:
            yield RuleFinding(
                kind="process_failed",
                severity=NOTE,
                summary=f"{sentences.subject(trace, [launcher.index])} {ended(end, surely=True)},"
                f" and {sentences.processes(trace, left)} lived on.",
                hint="No launcher restarts these ranks, or ends them with the rest of the job: end"
                " them by hand if they hold ports or devices still.",
                at_ns=gone_ns,
            )
