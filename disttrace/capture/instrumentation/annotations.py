"""``disttrace.annotate``: a name of the user's own around operations."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation

PART = "annotations"


class Annotated(contextlib.ContextDecorator):
    """A composed operation ``annotate`` called ``name``; nothing while tracing is off.

    ``current`` is asked at each entry, as a function may be decorated before tracing is on.
    """

    def __init__(self, current: Callable[[], Capture | None], name: str) -> None:
        self._current = current
        self._name = name
        self._capture: Capture | None = None
        self._operation: Operation | None = None

    def _recreate_cm(self) -> Annotated:
        return Annotated(self._current, self._name)  # each call of a decorated function is its own

    def __enter__(self) -> None:
        self._capture = capture = self._current()
        if capture is None:
            return
        frame, keys = sys._getframe().f_back, {"name": self._name, "async": False}
        if frame is not None and frame.f_code.co_filename == contextlib.__file__:
            frame = frame.f_back  # the caller of a decorated function
        begin = capture.begin_composed
        self._operation = capture.guard(PART, begin, frame, "annotate", self._name, keys=keys)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        operation, self._operation = self._operation, None
        if self._capture is not None:
            self._capture.leave(PART, operation, error)
