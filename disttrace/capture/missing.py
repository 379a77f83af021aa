"""What this torch has and what of it cannot be seen: one sentence per gap."""

from __future__ import annotations

from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace import errors
from disttrace.capture.devices import flight_recorder, recorders

ALWAYS = (
    "Operations on one-sided windows (Window.put, get, signal) and torch.ops.symm_mem.",
    "Calls of torch.distributed.rpc: only the stores and groups by which its workers meet.",
    "Single operations of a replayed CUDA graph: each replay is one operation of each group in it.",
    "When asynchronous work is complete whose handle the program dropped.",
    "When an asynchronous message is complete that nobody waits for, on gloo.",
    "Calls of isend, irecv and P2POp that torch refuses at once, if the program goes on.",
)
WITH_HOOKS = (
    "The reduce operation and the tag of operations issued by C++: hooks do not tell them.",
    "Operations that C++ issues on groups that it made itself, until Python sees the group.",
)
# A boxed ReduceOp can be opened, or says its number itself, from torch 2.6 on.
HIDDEN = "The reduce operation of operations issued by C++: this torch shows it to nobody."


def sentences() -> list[str]:
    """The gaps with the torch of this process."""
    found = list(ALWAYS)
    if hasattr(c10d.ProcessGroup, "register_pre_hook"):
        found += WITH_HOOKS
    elif not hasattr(c10d.AllreduceOptions, "asyncOp"):
        found.append(HIDDEN)
    if hasattr(c10d, "_dump_nccl_trace") and flight_recorder.switched_off() is not None:
        found.append(recorders.blind())
    return found


def backends(c10d: Any) -> dict[str, str | None]:
    """Backends of this torch, with versions where torch tells them."""
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    available = [n for n in names if getattr(c10d, f"is_{n}_available", lambda: False)()]
    found: dict[str, str | None] = dict.fromkeys(available)
    if "nccl" in found:
        # Without a driver, and while torch is being imported, it cannot be asked for.
        version = errors.asked(lambda: torch.cuda.nccl.version())
        found["nccl"] = None if version is None else ".".join(map(str, version))
    return found
