"""``disttrace.annotate``: a name of the user's own around operations."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from disttrace.capture.composed import enter, leave
from disttrace.capture.context import Capture
from disttrace.journal.format import COMPOSED

PART = "annotations"


@contextlib.contextmanager
def annotated(capture: Capture | None, name: str) -> Iterator[None]:
    """A composed operation ``annotate`` called ``name``; nothing while tracing is off."""
    operation = None
    if capture is not None:
        try:
            thread = capture.recorder.threads.state
            stack = capture.sites.stack(sys._getframe(3))
            call = capture.recorder.call(
                "annotate",
                synchronous=True,
                counter=None,
                kind=COMPOSED,
                name=name,
                stack=stack,
                origin="python",
                **{"async": False},
            )
            operation = capture.recorder.begin(thread, call)
            enter(thread, operation)
        except BaseException as error:
            capture.fail(PART, error)
    try:
        yield
    except BaseException as error:
        if capture is not None and operation is not None:
            leave(capture, operation, error)
        raise
    if capture is not None and operation is not None:
        leave(capture, operation, None)
