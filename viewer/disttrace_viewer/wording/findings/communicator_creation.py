"""A communicator is being made: of what, for how long, and that all are in it."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import quantities, sentences


def name(backend: str | None) -> str:
    """``NCCL`` for every implementation of it."""
    text = (backend or "the backend").partition("-")[0]
    return "NCCL" if text in ("nccl", "nccl2", "ncclx") else text.upper() if backend else text


def summary(
    trace: Trace, op: Op, who: Sequence[int], lasts_ns: int, *, backend: str, first: bool
) -> str:
    """``first``: of its group, or of its pair; else the first of its sort there."""
    group = trace.group_of(op.call)
    at = f"{quantities.roughly(lasts_ns)} so far"
    call = f"{sentences.operation(trace, op)} at {sentences.line(op)}"
    if op.call.kind == "message":
        both, what = "both are in it", f"the pair of {sentences.processes(trace, who)}"
    else:
        both = "all members are in it"
        what = sentences.group(group) if group is not None else _made(trace, op, who)
    if not first:
        return f"{backend} prepares its first {call}: {at}, {both}."
    return f"{backend} makes the communicator of {what}: {at}, {both} ({call})."


def hint(backend: str, limit_ns: int) -> str:
    """When it will be taken for a stall."""
    more = " NCCL_DEBUG=INFO shows how far it is." if backend == "NCCL" else ""
    return (
        f"{backend} connects all members before the first of them is served; this is told as a"
        f" stall after {quantities.roughly(limit_ns)}, a quarter of the group's time-out.{more}"
    )


def _made(trace: Trace, op: Op, who: Sequence[int]) -> str:
    """The group that a call makes."""
    if op.call.op == "init_process_group":
        return "the default group"
    return f"the group of {sentences.processes(trace, who)}"
