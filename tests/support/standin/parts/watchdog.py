"""What NCCL's watchdog does where an operation times out, or a connection breaks.

By ``TORCH_NCCL_ASYNC_ERROR_HANDLING``: 1 aborts and ends the process, 2 aborts, 3 ends it.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from typing import Any

import torch._C._distributed_c10d as c10d

from .semantics import ASYNC_ERRORS, BLOCKING_WAIT, NOTICES
from .wire import start, wire

_PERIOD_S = 0.1
_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_running: list[bool] = []


def watch(group: Any) -> None:
    """Look after what the group has in flight."""
    _groups.add(group)
    if ASYNC_ERRORS and not BLOCKING_WAIT and not _running:  # torch starts none then
        _running.append(True)
        start(_run)


def _run() -> None:
    while True:
        time.sleep(_PERIOD_S)
        for group in list(_groups):
            for operation in list(group.open):
                if not operation.done.is_set():
                    _look(group, operation)


def _look(group: Any, operation: Any) -> None:
    ran_s = time.monotonic() - operation.enqueued
    if ran_s > group.timeout_s:
        said, what = "TIMEOUT", f"ran for {ran_s * 1e3:.0f} milliseconds before timing out."
    elif NOTICES and wire().gone & set(group.members):
        said, what = "COMM_ERROR", "NCCL error: remote process exited or there was a network error"
    else:
        return
    if hasattr(c10d, "ErrorType"):
        group.error = getattr(c10d.ErrorType, said)
    work = f"WorkNCCL(SeqNum={operation.seq}, OpType={operation.name.upper()})"
    heading = f"[rank{wire().rank}]:[E ProcessGroupNCCL.cpp] [PG ID {group.number}] "
    caught = "Watchdog caught collective operation timeout: " if said == "TIMEOUT" else ""
    sys.stderr.write(f"{heading}{caught}{work} {what}\n")
    if ASYNC_ERRORS in (1, 2):
        group.abort_all()
        time.sleep(1.0)  # the host goes on meanwhile, and may be asked
    if ASYNC_ERRORS in (1, 3):
        sys.stderr.write(f"{heading}To avoid data inconsistency, we are taking the process down.\n")
        sys.stderr.flush()
        os.abort()


os.register_at_fork(after_in_child=_running.clear)
