"""When a time limit ends a wait, whose it is, and what happens then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disttrace.journal.format import CONSTRUCTOR, STORE
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.operation import GROUPED, Op

GROUP, CALL, WATCHDOG, LAUNCHER = "group", "call", "watchdog", "launcher"
STORE_NS = 300_000_000_000
"""Of a store that was given none (``Store::kDefaultTimeout``)."""
HEARTBEAT_S = 480
"""torch's default of ``TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC``."""
_NCCL = {
    0: "nothing ends it, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 0",
    1: "NCCL's watchdog ends the process, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 1",
    2: "NCCL's watchdog aborts the communicator, since TORCH_NCCL_ASYNC_ERROR_HANDLING is 2",
    3: "NCCL's watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING is 3, the default)",
}
"""``ErrorHandlingMode`` of ``ProcessGroupNCCL.hpp``."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """``whose`` limit it is: a group's, a call's, a watchdog's or a launcher's."""

    at_s: float
    """Unix time."""
    limit_s: float
    whose: str
    what: str
    """Whose, in words: ``gloo's limit``."""
    then: str


def deadline(evidence: Evidence, ops: Iterable[Op]) -> Deadline | None:
    """The first limit that strikes of those on some waits; None where none is known."""
    found = [one for op in ops if (one := _of(evidence, op)) is not None]
    return min(found, key=lambda one: one.at_s, default=None)


def _of(evidence: Evidence, op: Op) -> Deadline | None:
    trace, call = evidence.trace, op.call
    given = call.args.get("timeout")
    process = trace.processes[op.process]
    whose, what = CALL, f"the timeout of {call.op}"
    limit_ns: float | None = None
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given > 0:
        limit_ns = given * 1e9
    elif call.kind == STORE or call.op == "TCPStore":
        of = None if call.store is None else trace.stores[call.store]
        base = of if of is None or of.base is None else trace.stores[of.base]
        limit_ns = (base.timeout_ns if base is not None else None) or STORE_NS
        what = "the store's limit"
    elif call.kind in GROUPED and call.group is not None:
        limit_ns = trace.groups[call.group].timeout_ns
        whose, what = GROUP, f"{call.backend or 'the group'}'s limit"
    if limit_ns is None:
        return None
    if process.is_agent:
        whose, what, then = LAUNCHER, "torchrun's limit", "torchrun gives the rendezvous up"
    elif call.kind in GROUPED and call.backend == "nccl":
        then = _of_nccl(process.env, limit_ns / 1e9)
    elif call.kind == STORE or call.kind == CONSTRUCTOR:
        then = f"{call.op} raises in the ranks that wait"
    else:
        then = f"{call.backend or call.op} raises in the ranks that wait"
    at_s = (op.begin_ns + limit_ns) / 1e9
    return Deadline(at_s, limit_ns / 1e9, whose, what, then)


def _of_nccl(env: Mapping[str, str], limit_s: float) -> str:
    def number(name: str, default: int) -> int:
        text = env.get(name, "")
        return int(text) if text.isdecimal() else default

    if number("TORCH_NCCL_BLOCKING_WAIT", 0):
        return "the wait raises, since TORCH_NCCL_BLOCKING_WAIT is set"
    mode = number("TORCH_NCCL_ASYNC_ERROR_HANDLING", 3)
    then = _NCCL.get(mode, _NCCL[3])
    beat_s = number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", HEARTBEAT_S)
    if number("TORCH_NCCL_ENABLE_MONITORING", 1) and beat_s < limit_s:
        then += (
            f"; where the watchdog itself is stuck, the heartbeat monitor ends the process after"
            f" {beat_s} s (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC)"
        )
    return then
