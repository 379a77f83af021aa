"""One operation as a value (only what is unusual becomes one), its bandwidth, its error.

Torch has no types for errors: that others went away, did not come, or a limit was met is known by
the texts of gloo, NCCL, TCPStore and TensorPipe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from disttrace.journal.format import COLLECTIVE, MESSAGE, ends_on_device
from disttrace_viewer.trace.model import Call, JobTrace
from disttrace_viewer.trace.process import Stack
from disttrace_viewer.trace.values import dataclass, fields

if TYPE_CHECKING:
    import polars as pl

SYNCHRONIZING = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
"""Collectives that no rank completes before all members have begun them."""
GROUPED = (COLLECTIVE, MESSAGE)
"""Kinds of operations that members of a group do together."""
CREATING = ("init_process_group", "new_group", "split_group")
"""Operations that make a group."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A row of the operations table with its call. Times are unix nanoseconds."""

    process: int
    number: int
    call: Call
    thread: int
    parent: int | None
    seq: int | None
    key: int | None
    source: int | None
    error: str | None
    refused: bool
    lost: bool
    asked: bool
    begin_ns: int
    issued_ns: int | None
    wait_begin_ns: int | None
    complete_ns: int | None
    end_ns: int | None
    awaited_at: Stack = ()
    """Where the main thread waits for this one's, if that runs nothing of the program's (a pool).
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> tuple[int, int]:
        """Process and number: what no other operation of the trace has."""
        return (self.process, self.number)

    @property
    def pending(self) -> bool:
        """Begun and not known to be over."""
        return self.end_ns is None and self.error is None and not self.lost

    @property
    def since_ns(self) -> int:
        """Since when a thread waits in it."""
        return self.wait_begin_ns or self.begin_ns

    @property
    def holds(self) -> bool:
        """Whether it holds its thread up until it is over: that is in the call, or waits for it."""
        return self.issued_ns is None or self.wait_begin_ns is not None

    @property
    def underway(self) -> bool:
        """Asynchronous work that was issued, is not over, and for which no thread waits."""
        return self.pending and not self.holds

    @property
    def is_polled(self) -> bool:
        """Whether the program polls asynchronous work, or waits for its future; it may compute."""
        return self.asked and self.underway

    @property
    def is_inferred(self) -> bool:
        """Whether nothing shows that a thread waits in it, but that nothing came after."""
        return self.call.origin == "c++" or self.is_polled

    @property
    def on_device(self) -> bool:
        """A collective or P2P operation that is over when its device is done: its call returned."""
        call = self.call
        return call.kind in GROUPED and ends_on_device(call.backend, call.signature.device)

    @property
    def peer(self) -> int | None:
        """Group rank of a message's other end; null for a receive from any source so far."""
        return self.call.peer if self.call.peer is not None else self.source

    @property
    def status(self) -> str:
        """``ok``, ``error`` or ``in_flight``."""
        if self.error is not None:
            return "error"
        return "in_flight" if self.end_ns is None else "ok"

    @property
    def elements(self) -> int | None:
        """Elements of all tensors passed, where the call tells shapes."""
        if self.call.shapes is None:
            return None
        return sum(math.prod(shape) for shape in self.call.shapes)


COLUMNS = tuple(field.name for field in fields(Op) if field.name != "awaited_at")
"""What is read of a row of the operations table, as ``Op`` has it."""


def ops(trace: JobTrace, rows: pl.DataFrame) -> Iterator[Op]:
    """Rows of the operations table as values, in their order."""
    for row in rows.select(COLUMNS).iter_rows():
        process, number, call, thread, parent, seq, key, source, error, *rest = row
        yield Op(
            process,
            number,
            trace.call(call),
            thread or 0,
            parent,
            seq,
            key,
            source,
            None if error is None else trace.errors[error],
            *rest,
        )


_GATHERS = ("all_gather", "all_gather_into_tensor", "gather", "scatter")
_RING = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
_ONE_WAY = ("broadcast", "reduce", "send", "recv")


def on_bus(op: str, size: int | None, *, root: bool) -> tuple[float, float] | None:
    """By how much S is larger than the bytes of a member, and the factor of busbw, as
    doc/PERFORMANCE.md of NVIDIA's nccl-tests defines them; None where it does not. Bytes are of
    what this process passes in, so S of a gathering operation is as many times that as it has
    members.
    """
    if op not in (*_GATHERS, *_RING, *_ONE_WAY) or size is None or size < 2:
        return None
    scale = size if op in _GATHERS and not (op == "scatter" and root) else 1
    others = (size - 1) / size * (1 + (op == "all_reduce"))
    return scale, 1.0 if op in _ONE_WAY else others


_CLOSED = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(likely )?(refused|aborted|closed)"
    r"|connection reset|failed to recv, got 0 bytes|socket error|disconnected"
    r"|remote (end|peer|process)|failed to send|this error originated at tensorpipe",
    re.IGNORECASE,
)
_TIME_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
_BROKEN = re.compile(
    rf"{_TIME_OUT.pattern}|monitored ?barrier|connectfullmesh|abort(ed)? by"
    r"|communicator was aborted|stop_waiting|waitforinput|heartbeat monitor"
    r"|third_party/gloo/|gloo/transport/|detected mismatch between collectives",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"(CUDA|HIP) (error:|out of memory)|(?i:unhandled cuda error|duplicate gpu detected)"
)
_NAN_CHECK = re.compile("NaN found in input tensor|checkForNan", re.IGNORECASE)
"""TORCH_DIST_NAN_CHECK, and TORCH_NCCL_NAN_CHECK."""
_OWN = re.compile(
    r"^(\w+\.)*(ArithmeticError|AssertionError|AttributeError|FloatingPointError|ImportError"
    r"|IndexError|KeyError|MemoryError|ModuleNotFoundError|NameError|NotImplementedError"
    r"|OutOfMemoryError|OverflowError|TypeError|ValueError|ZeroDivisionError|AcceleratorError):"
    rf"|{_DEVICE.pattern}|(?i:{_NAN_CHECK.pattern})",
)
"""Python's mistakes, memory that is not there, and devices that are broken: not of others."""
_ANSWERED = re.compile(r"\bOn WorkerInfo\(id=\d+, name=")
"""How torch's ``rpc/internal.py`` begins the text of an exception that a function raised there."""


_LIMIT = "Operation timed out!"


def phrases(text: str) -> list[str]:
    """The words of torch's own in a text by which the functions here know it again."""
    found = [
        match[0]
        for pattern in (_CLOSED, _BROKEN, _DEVICE, _NAN_CHECK)
        for match in pattern.finditer(text)
    ]
    return [*dict.fromkeys(found), *([_LIMIT] if text.endswith(_LIMIT) else [])]


def is_nan_check(text: str) -> bool:
    """Whether torch refused an input that is not a number."""
    return _NAN_CHECK.search(text) is not None


def is_closed(text: str | None) -> bool:
    """Whether an operation's error is that a connection was closed by the other end."""
    return text is not None and _CLOSED.search(text) is not None


def is_time_out(text: str | None) -> bool:
    """Whether an operation's error is that a thread waited for as long as it may, no more."""
    return text is not None and not is_closed(text) and _TIME_OUT.search(text) is not None


def is_own_limit(text: str | None) -> bool:
    """Whether a wait reached its caller's limit (the text of ``Work::wait``); the work goes on."""
    return text is not None and text.endswith(_LIMIT)


_PASSED_ON = re.compile(
    r"^(\w+\.)*(DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException)\b"
    r"|nccl error|watchdog caught|checkpointexception ranks:",
    re.IGNORECASE,
)


def is_echo(text: str) -> bool:
    """Whether an exception (``Type: text``) of which only a log tells passes on what others did."""
    passed_on = is_connection_error(text) or _PASSED_ON.search(text) is not None
    return passed_on and _OWN.search(text) is None


def because_of_others(op: Op) -> bool:
    """Whether an operation's error holds no more than that others went away or did not come.

    A collective or message that had begun ends badly for no other reason, unless its text says so
    (``_OWN``); of others, which may have been called wrongly, the text decides.
    """
    if op.error is None:
        return False
    if op.call.kind in GROUPED and not op.refused:
        return is_connection_error(op.error) or _OWN.search(op.error) is None
    return is_connection_error(op.error)


def is_connection_error(text: str | None) -> bool:
    """Whether others went away or did not come. What a remote call answered is none of that."""
    if text is None or _ANSWERED.search(text):
        return False
    return bool(_CLOSED.search(text) or _BROKEN.search(text))
