"""The parts of the instrumentation, in the order in which they are installed, and their gaps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from disttrace import dynamo, foreign
from disttrace.capture import adapters, digests, launcher
from disttrace.capture.before_2_15 import dispatcher, relays
from disttrace.capture.devices import completion, flight_recorder, recorders
from disttrace.capture.instrumentation import (
    constructors,
    declared,
    functions,
    parameters,
    process_group,
    store,
    subclasses,
    work,
)
from disttrace.capture.native import functional, hooks
from disttrace.capture.wrapping import context
from disttrace.capture.wrapping.context import Capture


def activate(capture: Capture) -> None:
    """Install every part that this torch has; one that fails is left out and named once."""
    context.current = capture
    for part, install in parts():
        capture.guard(part, install, capture)

    def compile_none_of_ours(_: object) -> None:
        """torch.compile must not compile what runs inside a compiled region."""
        there = list(sys.modules.items())  # at once: another thread may import
        dynamo.skip_module(*(m for n, m in there if m and n.startswith("disttrace.")))

    capture.when_imported("torch._dynamo", compile_none_of_ours)


def parts() -> list[tuple[str, Callable[[Capture], None]]]:
    """What messages call a part, and what installs it, in that order."""
    by_hooks = ((hooks.PART, hooks.install),)
    by_kernels = ((dispatcher.PART, dispatcher.install), (relays.PART, relays.install))
    return [
        (digests.PART, digests.install),  # looks at inputs within the others' wrappers
        (store.FROM_CXX, store.install_proxies),
        (constructors.PART, constructors.install),
        (store.PART, store.install),
        (process_group.PART, process_group.install),
        (process_group.REFUSED, process_group.install_refused),
        (work.QUERIES, work.install_queries),
        (completion.PART, completion.install),
        (work.PART, work.install),
        *(by_hooks if hooks.supported() else by_kernels),  # what C++ issues
        (functional.PART, functional.install),
        (functions.PART, functions.install),
        (process_group.COALESCED, process_group.install_coalescing),
        (declared.PART, declared.install),
        (parameters.PART, parameters.install),
        (subclasses.PART, subclasses.install),
        (launcher.PART, launcher.install),
        (adapters.PART, adapters.install),
    ]


ALWAYS = (
    "Operations on one-sided windows (Window.put, get, signal) and torch.ops.symm_mem.",
    "Calls of torch.distributed.rpc: only the stores and groups by which its workers meet.",
    "Single operations of a replayed CUDA graph: each replay is one operation of each group in it.",
    "When asynchronous work is complete whose handle the program dropped.",
    "When an asynchronous message is complete that no call waits for, on gloo.",
    "Calls of isend, irecv and P2POp that torch refuses at once, if the program goes on.",
)
WITH_HOOKS = (
    "The reduce operation and the tag of operations issued by C++: hooks do not tell them.",
    "Operations that C++ issues on groups that it made itself, until Python sees the group.",
)
# A boxed ReduceOp can be opened, or has its number itself, from torch 2.6 on.
HIDDEN = "The reduce operation of operations issued by C++: this torch does not show it."


def not_captured() -> list[str]:
    """What tracing does not see with the torch of this process."""
    missing = list(ALWAYS)
    if hooks.supported():
        missing += WITH_HOOKS
    elif not hasattr(c10d.AllreduceOptions, "asyncOp"):
        missing.append(HIDDEN)
    if hasattr(c10d, "_dump_nccl_trace") and flight_recorder.switched_off() is not None:
        missing.append(recorders.blind())
    return missing


def backends(c10d: Any) -> dict[str, str | None]:
    """Backends of this torch, with versions where torch tells them."""
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    available = [n for n in names if getattr(c10d, f"is_{n}_available", lambda: False)()]
    found: dict[str, str | None] = dict.fromkeys(available)
    if "nccl" in found:
        # Without a driver, and while torch is being imported, it cannot be had.
        version = foreign.attempt(lambda: torch.cuda.nccl.version())
        found["nccl"] = None if version is None else ".".join(map(str, version))
    return found
