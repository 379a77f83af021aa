"""Adapters: communication of other libraries, recorded as its own program would declare it.

None of these libraries is imported; what the table names of each is patched when the program
imports it. A call is recorded as ``disttrace.operation`` records a block. One that only enqueues on
a device is over when an event behind it is; one that is captured into a CUDA graph belongs to its
replays.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch.distributed.distributed_c10d as c10d

from disttrace.capture.instrumentation.declared import Declared
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import Function
from disttrace.foreign import ours
from disttrace.journal.originals import local
from disttrace.recording.operation import Operation

PART = "operations of other libraries"
_HOSTS = ("cpu", "meta")


class LibraryCall(NamedTuple):
    """A method, or a function of the module: what it is called, and with whom it communicates.

    ``group`` is the attribute of the object, or else the argument, that holds its process group or
    the name of one; ``peer`` the argument that is the group rank of a message's other end.
    """

    name: str
    op: str
    owner: str | None = None
    group: str = "group"
    peer: str | None = None


class Adapter(NamedTuple):
    """``modules`` are those in which the program may find what ``rows`` name."""

    library: str
    modules: tuple[str, ...]
    rows: tuple[LibraryCall, ...]


def _calls(names: str, owner: str | None = None, group: str = "group") -> list[LibraryCall]:
    """Rows of calls that bear the names of their operations."""
    return [LibraryCall(name, name, owner, group) for name in names.split()]


_PYNCCL = "PyNcclCommunicator"
_SYMMETRIC_MEMORY = (
    "_fused_all_gather_matmul",
    "_fused_matmul_reduce_scatter",
    "_fused_all_gather_scaled_matmul",
    "_fused_scaled_matmul_reduce_scatter",
    "_low_contention_all_gather",
    "_low_contention_reduce_scatter",
)
ADAPTERS = (
    # How vLLM and SGLang call NCCL by ctypes, with communicators of their own.
    Adapter(
        "pynccl",
        modules=(
            "vllm.distributed.device_communicators.pynccl",
            "sglang.srt.distributed.device_communicators.pynccl",
        ),
        rows=(
            *_calls("all_reduce all_gather all_gatherv reduce_scatter reduce_scatterv", _PYNCCL),
            *_calls("broadcast reduce", _PYNCCL),
            LibraryCall("send", "send", _PYNCCL, peer="dst"),
            LibraryCall("recv", "recv", _PYNCCL, peer="src"),
        ),
    ),
    # Dispatch and combine of experts' tokens, by NVLink and RDMA.
    Adapter(
        "deep_ep",
        modules=("deep_ep", "deep_ep.buffer"),
        rows=(
            *_calls("dispatch combine internode_dispatch internode_combine", "Buffer"),
            *_calls("low_latency_dispatch low_latency_combine", "Buffer"),
        ),
    ),
    # Functions of torch that communicate by loads and stores between devices. Operators called as
    # torch.ops.symm_mem pass no function of Python, and are not seen.
    Adapter(
        "symmetric_memory",
        modules=("torch.distributed._symmetric_memory",),
        rows=(
            *(LibraryCall(n, n.lstrip("_"), group="group_name") for n in _SYMMETRIC_MEMORY),
            LibraryCall("rendezvous", "rendezvous"),
        ),
    ),
    # nvshmem4py: collectives of a team, called on the host. A team is no process group: what its
    # members call is recorded, and not compared.
    Adapter(
        "nvshmem",
        modules=("nvshmem.core",),
        rows=(
            *_calls("barrier sync reduce reducescatter fcollect alltoall", group="process_group"),
            *_calls("broadcast put get put_signal signal_wait", group="process_group"),
        ),
    ),
)


def install(capture: Capture) -> None:
    """Wait for each library to be imported by the program."""
    for one in ADAPTERS:
        arrived = functools.partial(capture.guard, PART, _patch, capture, one)
        for module in one.modules:
            capture.when_imported(module, arrived)


def _patch(capture: Capture, adapter: Adapter, module: ModuleType) -> None:
    names = set(capture.engine.names(PART))
    for row in adapter.rows:
        make = functools.partial(_wrapper, capture, adapter.library, row)
        owner = module.__dict__.get(row.owner or row.name)
        if row.owner is None:
            if callable(owner) and not hasattr(owner, "_disttrace"):
                capture.engine.value(PART, module, row.name, make(owner))
        elif isinstance(owner, type) and f"{owner.__name__}.{row.name}" not in names:
            capture.engine.attribute(PART, owner, row.name, make)


_within = local()
"""``calls``: of the thread that are recorded now: what a library's call calls in turn is part."""


def _wrapper(capture: Capture, library: str, row: LibraryCall, original: Function) -> Function:
    signature = inspect.signature(original)
    guard = capture.guard

    def recorded(*args: Any, **kwargs: Any) -> Any:
        if getattr(_within, "calls", 0):
            return original(*args, **kwargs)
        begun = guard(PART, _begin, capture, library, row, signature, args, kwargs)
        _within.calls = 1
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _within.calls = 0
            if begun is not None:
                capture.leave(PART, begun[0], error)
            raise
        _within.calls = 0
        if begun is not None:
            guard(PART, _returned, capture, *begun)
        return result

    recorded._disttrace = True  # type: ignore[attr-defined]
    return functools.wraps(original)(recorded) if row.owner is None else recorded


def _begin(
    capture: Capture,
    library: str,
    row: LibraryCall,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Operation, Any, str | None] | None:
    """The operation, and where it is on a device the stream on which it is enqueued, and which."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except ours(TypeError):  # the library will raise it
        return None
    owner = args[0] if row.owner is not None and args else None
    if getattr(owner, "disabled", False) is True:  # it will return at once
        return None
    group = getattr(owner, row.group, None) if owner is not None else given.get(row.group)
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    peers = None if row.peer is None else [int(given[row.peer])]
    device = _device(given)
    declared = Declared(f"{library}.{row.op}", group, peers, {})
    entry = None if group is None else capture.groups.passed(group)
    operation = declared.begin(capture, sys._getframe(3), entry, backend=library, device=device)
    return operation, given.get("stream"), device


def _returned(capture: Capture, operation: Operation, stream: Any, device: str | None) -> None:
    if device is None:
        capture.leave(PART, operation)
    else:
        capture.step_out(operation)
        capture.recorder.issued(operation)
        capture.works.device.enqueued(operation, stream)


def _device(given: Mapping[str, Any]) -> str | None:
    """Of the first tensor among the arguments; None where the host does it."""
    for value in given.values():
        kind = getattr(getattr(value, "device", None), "type", None)
        if isinstance(kind, str) and hasattr(value, "dtype"):
            return None if kind in _HOSTS else kind
    return None
