"""Instrumentation of calls that torch rejects before any method is called: a root outside the
group, a wrong type, a message to oneself.

torch reports every exception of a public function to its logger. That report is where they are
seen, so calls that succeed pay nothing, and nothing of torch.compile's sees a patch.
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import torch.distributed.distributed_c10d as c10d

from disttrace import errors, foreign
from disttrace.capture.calls.operations import ROWS, Method
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import before

PART = "calls refused by torch"
_REPORT = "_get_msg_dict"

# Public functions whose operations have a record of their own once a method is called, by the row
# that says its name: aliases are told by the name that is recorded.
_UNNAMED = ("_coalesced", "monitored_barrier")
_FUNCTIONS = {row.op: row for row in ROWS if not row.op.endswith(_UNNAMED)}
_FUNCTIONS |= {row.method: row for row in ROWS if row.method.endswith("_single")}
_RANKS = ("src", "dst", "group_src", "group_dst")


def install(capture: Capture) -> None:
    """Patch what torch's decorator calls with an exception in hand."""
    from torch.distributed import c10d_logger

    original = getattr(c10d_logger, _REPORT, None)
    if original is None:
        return

    def report(name: str, *args: Any, **kwargs: Any) -> None:
        """``_get_msg_dict(function's name, *arguments)`` was called."""
        error = sys.exc_info()[1]
        if name not in _FUNCTIONS or error is None:
            return
        seen = capture.newest_raised == (id(error), errors.first_line(error))
        if not seen and not _known(error, c10d_logger.__file__):
            _record(capture, _FUNCTIONS[name], _given(name, args, kwargs), error, sys._getframe(2))

    capture.engine.value(PART, c10d_logger, _REPORT, before(capture, PART, report)(original))


def _known(error: BaseException, logger_file: str) -> bool:
    """Whether the exception came through a wrapper in Python, or another decorated function."""
    files = [entry.tb_frame.f_code.co_filename for entry in foreign.entries_of(error)]
    return any(file == logger_file or foreign.is_our_file(file) for file in files[1:])


def _record(
    capture: Capture,
    row: Method,
    given: dict[str, Any],
    error: BaseException,
    frame: types.FrameType,
) -> None:
    inside = capture.recorder.threads.state.inside
    entry = None if inside else capture.groups.passed(given.get("group"))
    if entry is None:
        return
    ranks = {key: n for key in _RANKS if (n := foreign.integer(given.get(key))) is not None}
    keys = {"kind": row.kind, "group": entry.n, "backend": entry.backend(None)}
    key = (entry.n, *ranks.items())
    # It took no number.
    operation = capture.begin(frame, row.op, key, {**keys, "args": ranks or None})
    capture.recorder.failed(operation, error, on_issue=True)


def _given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; only the keywords where they do not fit the function."""
    try:
        function = getattr(c10d, name)
        return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except foreign.ours(AttributeError, TypeError):
        return kwargs
