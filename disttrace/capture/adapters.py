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


class LibraryCalls(NamedTuple):
    """Methods of ``owner``, or functions of a module, that bear the names of their operations.

    ``modules`` are those in which the program may find them. ``group`` is the attribute of the
    object, or else the argument, that holds its process group or the name of one; ``peer`` the
    argument that is the group rank of a message's other end.
    """

    library: str
    modules: tuple[str, ...]
    names: str
    owner: str | None = None
    group: str = "group"
    peer: str | None = None


def _pynccl(names: str, peer: str | None = None) -> LibraryCalls:
    """How vLLM and SGLang call NCCL by ctypes, with communicators of their own."""
    where = "distributed.device_communicators.pynccl"
    modules = (f"vllm.{where}", f"sglang.srt.{where}")
    return LibraryCalls("pynccl", modules, names, "PyNcclCommunicator", peer=peer)


ADAPTERS = (
    _pynccl("all_reduce all_gather all_gatherv reduce_scatter reduce_scatterv broadcast reduce"),
    _pynccl("send", peer="dst"),
    _pynccl("recv", peer="src"),
    # Dispatch and combine of experts' tokens, by NVLink and RDMA.
    LibraryCalls(
        "deep_ep",
        ("deep_ep", "deep_ep.buffer"),
        "dispatch combine internode_dispatch internode_combine low_latency_dispatch "
        "low_latency_combine",
        owner="Buffer",
    ),
    # Functions of torch that communicate by loads and stores between devices. Operators called as
    # torch.ops.symm_mem pass no function of Python, and are not seen.
    LibraryCalls(
        "symmetric_memory",
        ("torch.distributed._symmetric_memory",),
        "_fused_all_gather_matmul _fused_matmul_reduce_scatter _fused_all_gather_scaled_matmul "
        "_fused_scaled_matmul_reduce_scatter _low_contention_all_gather "
        "_low_contention_reduce_scatter",
        group="group_name",
    ),
    LibraryCalls("symmetric_memory", ("torch.distributed._symmetric_memory",), "rendezvous"),
    # nvshmem4py: collectives of a team, called on the host. A team is no process group: what its
    # members call is recorded, and not compared.
    LibraryCalls(
        "nvshmem",
        ("nvshmem.core",),
        "barrier sync reduce reducescatter fcollect alltoall broadcast put get put_signal "
        "signal_wait",
        group="process_group",
    ),
)


def install(capture: Capture) -> None:
    """Wait for each library to be imported by the program."""
    for one in ADAPTERS:
        arrived = functools.partial(capture.guard, PART, _patch, capture, one)
        for module in one.modules:
            capture.when_imported(module, arrived)


def _patch(capture: Capture, row: LibraryCalls, module: ModuleType) -> None:
    known = set(capture.engine.names(PART))
    for name in row.names.split():
        make = functools.partial(_wrapper, capture, row, name.lstrip("_"))
        owner = module.__dict__.get(row.owner or name)
        if row.owner is None:
            if callable(owner) and not hasattr(owner, "_disttrace"):
                capture.engine.value(PART, module, name, make(owner))
        elif isinstance(owner, type) and f"{owner.__name__}.{name}" not in known:
            capture.engine.attribute(PART, owner, name, make)


_within = local()
"""``calls``: of the thread that are recorded now: what a library's call calls in turn is part."""


def _wrapper(capture: Capture, row: LibraryCalls, op: str, original: Function) -> Function:
    signature = inspect.signature(original)
    guard = capture.guard

    def recorded(*args: Any, **kwargs: Any) -> Any:
        if getattr(_within, "calls", 0):
            return original(*args, **kwargs)
        begun = guard(PART, _begin, capture, row, op, signature, args, kwargs)
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
    row: LibraryCalls,
    op: str,
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
    declared = Declared(f"{row.library}.{op}", group, peers, {})
    entry = None if group is None else capture.groups.passed(group)
    operation = declared.begin(capture, sys._getframe(3), entry, backend=row.library, device=device)
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
            return None if kind in ("cpu", "meta") else kind
    return None
