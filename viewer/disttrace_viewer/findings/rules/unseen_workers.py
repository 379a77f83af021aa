"""Workers of which only their launcher knows: they ended, or have not begun, without a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Worker

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


def unseen_of(trace: Trace) -> Mapping[tuple[int | None, int], Unseen]:
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
