"""What a finding is worth where the evidence of its processes lacks what it rests on.

Evidence of other tools holds less than a journal. What stands in the records of both sides (their
operations, sizes, dtypes) is as certain as ever; what is concluded from the absence of a record is
not, for it may have been overwritten or never been made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import NOTE, WARNING, Finding
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import SYNCHRONIZING
from disttrace_viewer.trace.process import ATTACHED, DUMPED, JOURNAL
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import OTHER_TOOLS

RECORDED = frozenset({"op_mismatch", "shape_mismatch", "dtype_mismatch", "size_mismatch"})
"""Kinds that rest on what stands in records."""
OF_ENDS = frozenset({"straggler", "late_sender", "unwaited_work"})
"""Kinds that rest on when, or whether, operations ended."""
OF_ABSENCE = frozenset({"missing_participant", "unmatched_send", "unmatched_recv"})
"""Kinds that say that somebody did not come, which takes time to be true."""
OF_TIME = OF_ABSENCE | {"deadlock"}
"""Kinds of which it has to be known that the evidence of all is of one moment."""


def tempered(case: Case, finding: Finding) -> Finding | None:
    """The finding as far as the evidence bears it; None where it bears nothing of it."""
    of = _foreign(case, finding)
    if not of:
        return finding
    if finding.kind in OF_ENDS and not case.knows("ends", of):
        return None
    if finding.kind == "missing_participant" and _came_later(case, finding):
        return None
    recorded = finding.kind in RECORDED or finding.device
    if not recorded or not all(case.knows(what, of) for what in ("order", "rank")):
        finding = finding.doubted(OTHER_TOOLS)
    if finding.kind not in OF_TIME:
        return finding
    unheard = finding.kind in OF_ABSENCE and not case.knows("messages", of)
    if unheard and (len(finding.culprits) > 1 or _others_away(case)):
        finding = replace(finding, culprits=())  # it may be in a receive from another one
    if case.knows("stood", of):
        return finding
    if case.knows("occasion", of):
        # Without a hang there would be no dump.
        return replace(finding, severity=WARNING, settles=(*finding.settles, DATED))
    return replace(finding, severity=NOTE, hint=TIMES)


def worded(case: Case, finding: Finding) -> Finding:
    """The finding in the words of what was read: where no journal was, none is spoken of."""
    if any(process.source == JOURNAL for process in case.evidence.trace.processes):
        return finding
    hint = finding.hint and finding.hint.replace("journals", "files")
    settles = tuple(one.replace("journals", "files") for one in finding.settles)
    because = tuple(one.replace("is no journal", "is nothing") for one in finding.because)
    return replace(finding, hint=hint, settles=settles, because=because)


def _others_away(case: Case) -> bool:
    """Whether more than one rank that was dumped is in nothing recorded, or may be."""
    trace = case.evidence.trace
    dumped = [p.index for p in trace.processes if p.source == DUMPED]
    away = [*filter(case.outside, dumped), *(g.name for g in trace.groups if g.missing)]
    return bool(dumped) and len(away) > 1


def _came_later(case: Case, finding: Finding) -> bool:
    """Whether somebody is through with a collective that nobody completes alone: then all have
    come, and those that have not were dumped before the others.
    """
    sample = case.evidence.sample
    for wait in case.waits:
        if wait.exchange not in finding.scope.exchanges or wait.stream is None:
            continue
        if wait.op.call.op in SYNCHRONIZING and wait.op.seq is not None:
            members = sample.members(wait.stream, wait.op.seq).values()
            return any(one.status == "ok" for one in members)
    return False


def what_stays_open(case: Case, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What of the verdict stays open."""
    told = {p for f in findings if f.severity != NOTE for p in f.waiting}
    waiting = {wait.process for wait in case.open()} - told
    noted = {p for f in findings if f.severity == NOTE for p in f.waiting}
    if (waiting | noted) & case.evidence.timeless:
        return (TIMELESS,)
    processes = case.evidence.trace.processes
    if any(finding.severity != NOTE for finding in findings):
        return ()
    sources = {p.source for p in processes if p.source == "log" or "since" in p.lacks}
    return (*_dumps_tell(case), *(UNDECIDED[one] for one in sorted(sources & UNDECIDED.keys())))


def _dumps_tell(case: Case) -> tuple[str, ...]:
    """What dumps by which nothing is wrong cannot have told."""
    processes = case.evidence.trace.processes
    if any(p.source != DUMPED for p in processes):
        return ()
    if all("arguments" in p.lacks for p in processes):
        return (BLANK,)
    return (UNHEARD,) if any("messages" in p.lacks for p in processes) else ()


def _foreign(case: Case, finding: Finding) -> list[int]:
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.roots, *finding.scope.members}
    return [p for p in concerned if case.evidence.trace.processes[p].source != JOURNAL]


EARLY = "let it hang for longer before ending it: all was ended after a short wait"
"""Of a wait that was cut off so soon that it may have been about to end."""
DEFINITIONS = "collect the definitions (*.defs.jsonl) of the journals here that lack them"


TIMES = (
    "Copy dumps with their times (cp -p, rsync -t, tar), and ask ncclras twice, some seconds apart:"
    " then it is told whether this is a moment of a job that gets on, or a stall."
)
UNHEARD = "gloo's recorder keeps no sends and receives: a rank may be in one, or anywhere else."
BLANK = "the dumps hold no operation, so where the ranks are is not known."
DATED = (
    "copy the dumps with their times (cp -p, rsync -t, tar): they tell whether anything still moved"
    " when they were made"
)
TIMELESS = (
    "since when it is so is not known (files were copied or changed since, or it is one output of"
    " ncclras): who had not come by then may have been on the way."
)


UNDECIDED = {
    "log": "this log does not tell why the job ended, nor that it went well",
    "py-spy": "stacks of one moment show no rank that waits for another one; that one waits later"
    " they cannot show",
}
"""What was read of a kind of evidence that never shows that all is well."""


def unseen(trace: Trace, ranks: Sequence[int]) -> str:
    """Of ranks of which nothing was found."""
    they = "they" if len(ranks) > 1 else "it"
    if _all_of(trace, "log"):
        return f"of {sentences.ranks(ranks)} the log has no line"
    if _all_of(trace, "py-spy"):
        return f"of {sentences.ranks(ranks)} there is no stack, so nobody knows whether {they} came"
    if _all_of(trace, ATTACHED):
        does = "do" if len(ranks) > 1 else "does"
        return f"{sentences.ranks(ranks)} {does} not run here, so nobody knows whether {they} came"
    if _all_of(trace, "NCCL RAS"):
        return f"NCCL could not reach {sentences.ranks(ranks)}, so nobody knows whether {they} came"
    if trace.processes and all(p.source != JOURNAL for p in trace.processes):
        return (
            f"{sentences.ranks(ranks)} left no dump ({they} died, kept the GIL, or tore down), so"
            f" nobody knows whether {they} came"
        )
    return f"of {sentences.ranks(ranks)} no journal was found, so nobody knows whether {they} came"


def not_found(trace: Trace) -> str:
    """Of a rank of which nothing was found, by itself."""
    if _all_of(trace, "log"):
        return "the log has no line of it"
    if _all_of(trace, "py-spy"):
        return "there is no stack of it"
    if _all_of(trace, ATTACHED):
        return "does not run here (on another host, or it ended)"
    if _all_of(trace, "NCCL RAS"):
        return "NCCL could not reach it (it died, or its host or network did)"
    if trace.processes and all(p.source != JOURNAL for p in trace.processes):
        return "left no dump (it died, kept the GIL, or tore down; or its dump was not collected)"
    return "no journal found (was it started? was its journal collected?)"


def _all_of(trace: Trace, source: str) -> bool:
    return bool(trace.processes) and all(p.source == source for p in trace.processes)


def nowhere(lacks: Collection[str], since: str, *, many: bool) -> str:
    """Of processes of which nothing tells where they stand, to follow the subject."""
    have, they = ("have", "they") if many else ("has", "it")
    are = "are" if many else "is"
    message = f"; {they} may be in a send or receive" if "messages" in lacks else ""
    return (
        f"{have} enqueued nothing{since}, and where {they} {are}, this evidence does not"
        f" hold{message}"
    )


def journals(ranks: Iterable[int]) -> str:
    """Of ranks of which there is none, or not all."""
    return f"collect the journals of {sentences.ranks(ranks)}"


def lived(trace: Trace, mute: Sequence[int]) -> str:
    """What would settle it where the missing gave no sign of life."""
    who = sentences.processes(trace, mute)
    return f"see whether {who} still lived then (the host's log, dmesg)"
