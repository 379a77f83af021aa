"""What this torch has and what of it cannot be seen: one sentence per gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace.capture.native import device_completion, flight_recorder


def _always(_: Any) -> bool:
    return True


def _hooks(c10d: Any) -> bool:
    return hasattr(c10d.ProcessGroup, "register_pre_hook")


def _kernels(c10d: Any) -> bool:
    return not _hooks(c10d)


def _hidden_reductions(c10d: Any) -> bool:
    """A boxed ReduceOp can be opened, or says its number itself (torch 2.6 and later)."""
    return _kernels(c10d) and not hasattr(c10d.AllreduceOptions, "asyncOp")


def _recorder_off(c10d: Any) -> bool:
    return hasattr(c10d, "_dump_nccl_trace") and flight_recorder.switched_off() is not None


# When a gap is there, and what it is.
GAPS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        _always,
        "Operations on one-sided windows (Window.put, get, signal), symmetric memory and RPC.",
    ),
    (_always, "Replays of CUDA graphs: the operations are recorded once, at capture."),
    (_always, "When asynchronous work is complete whose handle the program dropped."),
    (_always, "When an asynchronous message is complete that nobody waits for, on gloo."),
    (
        _always,
        "Calls of isend, irecv and P2POp that torch refuses at once, if the program goes on.",
    ),
    (
        _hooks,
        "The reduce operation and the tag of operations issued by C++: hooks do not tell them.",
    ),
    (
        _hooks,
        "Operations that C++ issues on groups that it made itself, until Python sees the group.",
    ),
    (
        _hidden_reductions,
        "The reduce operation of operations issued by C++: this torch shows it to nobody.",
    ),
)


def sentences() -> list[str]:
    """The gaps with the torch of this process."""
    off = [device_completion.blind()] if _recorder_off(c10d) else []
    return [*(sentence for holds, sentence in GAPS if holds(c10d)), *off]


def backends(c10d: Any) -> dict[str, str | None]:
    """Backends of this torch, with versions where torch tells them."""
    found: dict[str, str | None] = {}
    for name in ("gloo", "nccl", "mpi", "ucc", "xccl"):
        available = getattr(c10d, f"is_{name}_available", None)
        if available is not None and available():
            found[name] = None
    if "nccl" in found:
        try:
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception:  # no driver: the version cannot be asked for
            found["nccl"] = None
    return found
