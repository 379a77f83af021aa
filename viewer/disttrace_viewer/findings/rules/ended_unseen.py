"""A worker failed before it used torch.distributed: only its launcher knows that it was there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope, why
from disttrace_viewer.findings.rules.lacking import journals
from disttrace_viewer.findings.rules.process_failed import look_for
from disttrace_viewer.findings.rules.unseen_workers import FAILED, Unseen, unseen_of, words
from disttrace_viewer.trace.process import Worker
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import NO_JOURNAL


def find(case: Case) -> Iterator[Finding]:
    """One finding per way to end in a launcher's last attempt, by time. After how an earlier one
    ended its launcher has begun anew; and live the journals of those who had ended long before the
    last attempt began are left out, so nobody can say there that they have none.
    """
    last = {
        p.index: max((w.attempt or 0 for w in p.workers), default=0)
        for p in case.evidence.trace.processes
    }
    alike: dict[tuple[int | None, int | None, bool], list[Unseen]] = {}
    for (attempt, _), one in unseen_of(case.evidence.trace).items():
        if one.worker.event == FAILED and (attempt or 0) == last[one.launcher]:
            alike.setdefault((attempt, one.worker.code, one.sure), []).append(one)
    for found in sorted(alike.values(), key=lambda each: min(one.worker.t_ns for one in each)):
        yield _finding(case, found)


def _finding(case: Case, found: list[Unseen]) -> Finding:
    ranks = sorted({one.rank for one in found})
    errors = {one.worker.error.partition("\n")[0] for one in found if one.worker.error}
    first, sure = found[0].worker, found[0].sure
    trace = case.evidence.trace
    stopped = {
        p.index
        for p in trace.processes
        if p.attempt == first.attempt and p.told is not None and p.told.event == "killed"
    }
    return Finding(
        kind="process_failed",
        summary=summary(ranks, first, sure=sure, errors=errors),
        because=why((not sure, NO_JOURNAL)),
        hint=hint(first, sure=sure),
        absent_ranks=tuple(ranks),
        at_ns=min(one.worker.t_ns for one in found),
        scope=Scope(
            absent=frozenset((None, rank) for rank in ranks),
            members=frozenset(one.launcher for one in found) | stopped,
        ),
        settles=() if sure else (journals(ranks),),
    )


_STDERR = "what it wrote on stderr"


def summary(ranks: Sequence[int], worker: Worker, *, sure: bool, errors: set[str]) -> str:
    """``worker``: one of those that ended alike; ``errors``: first lines of their error files."""
    error = f": {next(iter(errors))}" if len(errors) == 1 else ""
    how = words(worker, sure=sure, many=len(ranks) > 1)
    return f"{sentences.capital(sentences.ranks(ranks))} {how}{error}."


def hint(worker: Worker, *, sure: bool) -> str:
    """What to read."""
    if (worker.code or 0) < 0:
        return f"{look_for(worker.code)}, and at {_STDERR}, which is not recorded."
    if not sure:
        return f"Read {_STDERR}, and collect its journal if there is one."
    return f"Read {_STDERR}, which is not recorded: nothing is traced before torch is imported."
