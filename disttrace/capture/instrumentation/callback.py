"""Methods of Python backends: C++ calls them for an operation that a native hook has recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from disttrace.capture.calls.operations import Row
from disttrace.capture.wrapping.context import Capture
from disttrace.patching import dynamo
from disttrace.recording.operation import Operation


def called_back(
    capture: Capture,
    part: str,
    row: Row,
    wrapper: Callable[[Callable[..., Any]], Any],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """The wrapper of a Python backend's method: ``wrapper(original)``, unless C++ calls it.

    Then the group's pre-hook has put the begin on record and this is the same operation. Its
    exception ends that operation, for an operation that raises gets no post-hook.
    """
    recorded = wrapper(original)
    dynamo.skip_function(recorded)
    threads, issuing, ident = capture.recorder.threads, capture.issuing, threading.get_ident

    def begun(backend: Any) -> Operation | None:
        """What a hook has begun on this thread, if it is this method's: a stale one is not."""
        operation, _ = issuing.get(ident(), (None, ()))
        if operation is None or operation.call.op != row.op:
            return None
        entry = capture.groups.get(id(backend))
        return operation if entry is not None and entry.n == operation.call.group else None

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = threads.state
        operation = None
        try:
            operation = None if thread.inside else begun(self)
        except BaseException as error:
            capture.fail(part, error)
        if operation is None:
            return recorded(self, *args, **kwargs)
        try:
            thread.inside = True
            result = original(self, *args, **kwargs)
        except BaseException as error:
            thread.inside = False
            issuing.pop(ident(), None)
            capture.failed(part, operation, error)
            raise
        thread.inside = False
        return result

    return method
