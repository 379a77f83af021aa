"""Which torch's NCCL is imitated, and how: all that variables of the environment say."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Semantics:
    """How NCCL of a torch behaves, as far as a tracer can tell."""

    implementation: str  # the class of its backend
    backend: str
    sync_returns_work: bool  # else None, since torch 2.8
    tells_threads: bool
    entries: int  # of the recorder, where no variable says otherwise
    dump: str  # the function of torch's that gives entries

    @property
    def hooked(self) -> bool:
        """The recorder is written by a hook: it tells completion itself."""
        return self.dump == "_dump_fr_trace"


SEMANTICS = {
    "2.5": Semantics("ProcessGroupNCCL", "nccl-legacy", True, False, 0, "_dump_nccl_trace"),
    "2.8": Semantics("ProcessGroupNCCL", "nccl-legacy", False, False, 2000, "_dump_nccl_trace"),
    "2.13": Semantics("ProcessGroupNCCL", "nccl-legacy", False, True, 2000, "_dump_nccl_trace"),
    "2.15": Semantics("ProcessGroupNCCL2", "nccl2", True, True, 2000, "_dump_fr_trace"),
}
CHOSEN = SEMANTICS[os.environ.get("STANDIN_TORCH", "2.13")]
CREATION = os.environ.get("STANDIN_CREATION_S")
"""Seconds to make a communicator, in the first call of a group or a pair; None: it takes no call's
time, and waits for nobody."""
COMMUNICATORS = os.environ.get("STANDIN_COMMUNICATORS", "lazy")
"""When: ``lazy``, ``eager`` (with the group) or ``nonblocking`` (as ``lazy``, below an entry)."""
NOTICES = os.environ.get("STANDIN_NOTICES") == "1"
"""Whether the watchdog notices a broken connection, as over sockets and InfiniBand."""
DEVICE = os.environ.get("STANDIN_DEVICE") == "1"
"""Whether ``torch.cuda`` is imitated, too: events, graphs, a device that fails."""
ASYNC_ERRORS = int(os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or 3)
"""0: no watchdog; 1: it aborts and ends the process; 2: it aborts; 3: it ends the process."""
BLOCKING_WAIT = os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1"
