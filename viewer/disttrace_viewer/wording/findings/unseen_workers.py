"""What a launcher knows of a worker that left no journal."""

from __future__ import annotations

from disttrace_viewer.analysis.liveness import signal_name
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
