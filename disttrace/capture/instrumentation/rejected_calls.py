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

from disttrace import errors
from disttrace.capture.calls.operations import ROWS
from disttrace.capture.objects.groups import GroupEntry, default_group
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import before

PART = "calls refused by torch"
_REPORT = "_get_msg_dict"

# Public functions whose operations have a record of their own once a method is called, by the row
# that says its name: aliases are told by the name that is recorded.
_FUNCTIONS = {
    row.op: row for row in ROWS if not row.op.endswith(("_coalesced", "monitored_barrier"))
}
_FUNCTIONS["all_gather_single"] = _FUNCTIONS["all_gather_into_tensor"]
_FUNCTIONS["gather_single"] = _FUNCTIONS["gather_into_tensor"]
_FUNCTIONS["reduce_scatter_single"] = _FUNCTIONS["reduce_scatter_tensor"]
_RANKS = ("src", "dst", "group_src", "group_dst")


def install(capture: Capture) -> None:
    """Patch what torch's decorator calls with an exception in hand."""
    from torch.distributed import c10d_logger

    original = getattr(c10d_logger, _REPORT, None)
    if original is not None:
        report = before(capture, PART, Refusals(capture, c10d_logger).report)(original)
        capture.engine.value(PART, c10d_logger, _REPORT, report)


class Refusals:
    """Calls that raised and reached no method."""

    def __init__(self, capture: Capture, logger: types.ModuleType) -> None:
        self._capture = capture
        self._logger_file = logger.__file__

    def report(self, name: str, *args: Any, **kwargs: Any) -> None:
        """``_get_msg_dict(function's name, *arguments)`` was called."""
        error = sys.exc_info()[1]
        if name in _FUNCTIONS and error is not None and not self._known(error):
            self._record(name, args, kwargs, error, sys._getframe(2))

    def _known(self, error: BaseException) -> bool:
        """Whether the exception came through another wrapper, or another decorated function."""
        traceback = error.__traceback__
        inner = traceback.tb_next if traceback is not None else None
        while inner is not None:
            file = inner.tb_frame.f_code.co_filename
            if file == self._logger_file or errors.is_our_file(file):
                return True
            inner = inner.tb_next
        return False

    def _record(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        frame: types.FrameType,
    ) -> None:
        capture = self._capture
        given = _given(name, args, kwargs)
        inside = capture.recorder.threads.state.inside
        entry = None if inside else _group(capture, given.get("group"))
        if entry is None:
            return
        row = _FUNCTIONS[name]
        ranks = {
            key: int.__index__(given[key]) for key in _RANKS if isinstance(given.get(key), int)
        }
        operation = capture.begin_alone(  # it took no number
            frame,
            row.op,
            (entry.n, *ranks.items()),
            {
                "kind": row.kind,
                "group": entry.n,
                "backend": entry.backend(None),
                "args": ranks or None,
            },
        )
        capture.recorder.failed(operation, error, on_issue=True)


def _given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; only the keywords where they do not fit the function."""
    try:
        function = getattr(c10d, name)
        return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except (AttributeError, TypeError):
        return kwargs


def _group(capture: Capture, given: Any) -> GroupEntry | None:
    """The group of the call: the default group where none is given; None without any."""
    given = default_group() if given is None else given
    return capture.groups.of(given) if isinstance(given, c10d.ProcessGroup) else None
