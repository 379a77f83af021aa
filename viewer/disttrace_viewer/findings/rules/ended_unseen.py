"""A worker failed before it used torch.distributed: only its launcher knows that it was there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.analysis.sample import together
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding, Scope, why
from disttrace_viewer.findings.rules.outside import journals
from disttrace_viewer.findings.rules.process_failed import look_for
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import Worker
from disttrace_viewer.trace.values import dataclass
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per way to end in a launcher's last attempt, by time. After how an earlier one
    ended its launcher has begun anew; and live the journals of those who had ended long before the
    last attempt began are left out, so it cannot be told there that they have none.
    """
    last = {
        p.index: max((w.attempt or 0 for w in p.workers), default=0) for p in case.trace.processes
    }
    alike = together(
        ((attempt, one.worker.code, one.sure), one)
        for (attempt, _), one in unseen_of(case.trace).items()
        if one.worker.event == FAILED and (attempt or 0) == last[one.launcher]
    )
    for found in sorted(alike.values(), key=lambda each: min(one.worker.t_ns for one in each)):
        yield _finding(case, found)


def _finding(case: Case, found: list[Unseen]) -> RuleFinding:
    ranks = sorted({one.rank for one in found})
    errors = {one.worker.error.partition("\n")[0] for one in found if one.worker.error}
    error = f": {next(iter(errors))}" if len(errors) == 1 else ""
    first, sure = found[0].worker, found[0].sure
    how = words(first, sure=sure, many=len(ranks) > 1)
    stderr = "what it wrote on stderr"
    hint = f"Read {stderr}, which is not recorded: nothing is traced before torch is imported."
    if (first.code or 0) < 0:
        hint = f"{look_for(first.code)}, and at {stderr}, which is not recorded."
    elif not sure:
        hint = f"Read {stderr}, and collect its journal if there is one."
    stopped = {
        p.index
        for p in case.trace.processes
        if p.attempt == first.attempt and p.told is not None and p.told.event == "killed"
    }
    return RuleFinding(
        kind="process_failed",
        summary=f"{sentences.capital(sentences.ranks(ranks))} {how}{error}.",
        because=why((not sure, sentences.NO_JOURNAL)),
        hint=hint,
        absent_ranks=tuple(ranks),
        at_ns=min(one.worker.t_ns for one in found),
        scope=Scope.of(absent=ranks, members={one.launcher for one in found} | stopped),
        settles=() if sure else (journals(ranks),),
    )


STARTED, KILLED = "started", "killed"


def words(worker: Worker, *, sure: bool, many: bool = False) -> str:
    """``ended with exit code 1 before it used torch.distributed``, to follow it as a subject.

    ``sure``: it is known that it used nothing of that; ``many``: several ended alike.
    """
    if worker.event == STARTED:
        return f"was started (pid {worker.pid}) and has no journal yet"
    how = "ended"
    if worker.code is not None and worker.code < 0:
        how = f"ended by {signal_name(worker.code)}"
    elif worker.code is not None:
        how = f"ended with exit code {worker.code}"
    if sure and worker.event == KILLED:
        return (
            f"was started (pid {worker.pid}) and had not used torch.distributed until its launcher"
            " ended it"
        )
    if sure:
        return f"{how} before {'they' if many else 'it'} used torch.distributed"
    return f"{how}, and no journal of {'them' if many else 'it'} was found"


FAILED, EXITED = "failed", "exited"


@dataclass(frozen=True, slots=True)
class Unseen:
    """A launched process without a journal, by the last that its launcher wrote of it."""

    launcher: int
    rank: int
    worker: Worker
    joined: bool
    """Others have it in their default group, so it did have a journal, or was not traced."""

    @property
    def sure(self) -> bool:
        """Whether it is known that it used nothing that would have been recorded."""
        return not (self.worker.left_journal or self.joined)

    @property
    def lived(self) -> bool:
        """Whether it was there until its launcher ended it, or still is."""
        return not self.joined and (
            self.worker.event == STARTED or (self.sure and self.worker.event == KILLED)
        )


def unseen_of(trace: JobTrace) -> Mapping[tuple[int | None, int], Unseen]:
    """By attempt and rank."""
    known = {(p.parent, p.pid) for p in trace.processes}
    ranks = {(p.attempt, p.rank) for p in trace.processes if p.rank is not None}
    joined = {
        group.global_rank(member) if group.ranks else member
        for group in trace.groups
        if group.default
        for member in group.missing
    }
    found: dict[tuple[int | None, int], Unseen] = {}
    for process in trace.processes:
        for worker in process.workers:
            key = worker.attempt, worker.rank or 0
            if worker.rank is None or (process.id, worker.pid) in known or key in ranks:
                continue
            if worker.rank in trace.elsewhere:
                continue
            found[key] = Unseen(process.index, worker.rank, worker, worker.rank in joined)
    return found
