"""Instrumentation of the waits of functional collectives: ``_c10d_functional::wait_tensor``.

Their Work never reaches Python: the tensor that holds the result is what people wait for. Without
this, a rank that hangs in such a wait would look as if it waited for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disttrace.capture.native import cxx_callers
from disttrace.capture.native.kernels import Kernels, after_key, redispatch_of
from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation

PART = "waits of functional collectives"
_WAIT = "wait_tensor"


def install(capture: Capture) -> None:
    """Put a kernel on the operator when functional collectives appear."""
    kernels = Kernels(capture, PART, cxx_callers.FUNCTIONAL)

    def place() -> None:
        kernels.put(_WAIT, _kernel(capture, kernels))

    def appeared() -> None:
        kernels.once(place)

    cxx_callers.watch_operators(capture, PART, appeared, (cxx_callers.FUNCTIONAL,))


def _kernel(capture: Capture, kernels: Kernels) -> Callable[..., Any]:
    redispatch, after = redispatch_of(cxx_callers.FUNCTIONAL, _WAIT), after_key()
    recorder, works = capture.recorder, capture.works

    def claim(tensor: Any) -> Operation | None:
        """The operation whose result ``tensor`` holds; None if it is over or was never seen."""
        operation = works.of_result(tensor)
        if operation is not None:
            recorder.wait_begins(operation)
        return operation

    def over(operation: Operation) -> None:
        works.over(operation)
        if not operation.call.device_ends:
            recorder.end(operation)

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        operation = None
        try:
            if not kernels.off:
                operation = claim(tensor)
        except BaseException as error:
            capture.fail(PART, error)
        if operation is None:
            return redispatch(keyset & after, tensor)
        try:
            result = redispatch(keyset & after, tensor)
        except BaseException as error:
            works.over(operation)
            capture.failed(PART, operation, error, on_issue=False)
            raise
        try:
            over(operation)
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return wait_tensor
