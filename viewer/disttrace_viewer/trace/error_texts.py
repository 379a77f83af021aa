"""What the text of an exception says: that others went away, or did not come, or a limit was met.

Torch has no types for it; the texts are those of gloo, NCCL, TCPStore and TensorPipe.
"""

from __future__ import annotations

import re

from disttrace_viewer.trace.operation import GROUPED, Op

_CLOSED = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection (was )?(likely )?(refused|aborted|closed)"
    r"|connection reset|failed to recv, got 0 bytes|socket error|disconnected"
    r"|remote (end|peer|process)|failed to send|this error originated at tensorpipe",
    re.IGNORECASE,
)
_TIME_OUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
_BROKEN = re.compile(
    rf"{_TIME_OUT.pattern}|monitored ?barrier|connectfullmesh|abort(ed)? by"
    r"|gloo/transport/|communicator was aborted|stop_waiting|waitforinput|heartbeat monitor"
    r"|detected mismatch between collectives",
    re.IGNORECASE,
)
_DEVICE = re.compile(
    r"(CUDA|HIP) (error:|out of memory)|(?i:unhandled cuda error|duplicate gpu detected)"
)
_OWN = re.compile(
    r"^(\w+\.)*(ArithmeticError|AssertionError|AttributeError|FloatingPointError|ImportError"
    r"|IndexError|KeyError|MemoryError|ModuleNotFoundError|NameError|NotImplementedError"
    r"|OutOfMemoryError|OverflowError|TypeError|ValueError|ZeroDivisionError|AcceleratorError):"
    rf"|{_DEVICE.pattern}",
)
"""Python's mistakes, memory that is not there, and devices that are broken: not of others."""
_ANSWERED = re.compile(r"\bOn WorkerInfo\(id=\d+, name=")
"""How torch's ``rpc/internal.py`` begins the text of an exception that a function raised there."""


_LIMIT = "Operation timed out!"


def phrases(text: str) -> list[str]:
    """The words of torch's own in a text by which the functions here know it again."""
    found = [
        match[0] for pattern in (_CLOSED, _BROKEN, _DEVICE) for match in pattern.finditer(text)
    ]
    return [*dict.fromkeys(found), *([_LIMIT] if text.endswith(_LIMIT) else [])]


def is_closed(text: str | None) -> bool:
    """Whether an operation's error says that a connection was closed by the other end."""
    return text is not None and _CLOSED.search(text) is not None


def is_time_out(text: str | None) -> bool:
    """Whether an operation's error says that somebody waited for as long as it may, no more."""
    return text is not None and not is_closed(text) and _TIME_OUT.search(text) is not None


def is_own_limit(text: str | None) -> bool:
    """Whether an error says that a wait has reached the limit which its caller set: the work goes
    on, and nothing is broken. The text is that of ``Work::wait`` (Work.cpp), for that alone.
    """
    return text is not None and text.endswith(_LIMIT)


_PASSED_ON = re.compile(
    r"^(\w+\.)*(DistBackendError|DistNetworkError|DistStoreError|ChildFailedError|SignalException)\b"
    r"|nccl error|watchdog caught",
    re.IGNORECASE,
)


def is_echo(text: str) -> bool:
    """Whether an exception (``Type: text``) of which only a log tells passes on what others did."""
    passed_on = is_connection_error(text) or _PASSED_ON.search(text) is not None
    return passed_on and _OWN.search(text) is None


def because_of_others(op: Op) -> bool:
    """Whether an operation's error says no more than that others went away or did not come.

    A collective or P2P operation that had begun ends badly for no other reason, unless its text
    says so (``_OWN``), or because of arguments that do not fit, which has rules of its own. One
    that raised on issue, a store
    operation and a constructor may have been called wrongly: there the text decides.
    """
    if op.error is None:
        return False
    if op.call.kind in GROUPED and not op.refused:
        return is_connection_error(op.error) or _OWN.search(op.error) is None
    return is_connection_error(op.error)


def is_connection_error(text: str | None) -> bool:
    """Whether the error of an operation is about others that went away, or did not come.

    An exception that a remote call brought back is an answer, whatever it says of a time-out there.
    """
    if text is None or _ANSWERED.search(text):
        return False
    return bool(_CLOSED.search(text) or _BROKEN.search(text))
