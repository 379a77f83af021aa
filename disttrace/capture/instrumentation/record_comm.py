"""Instrumentation of names that programs give to their communication: ``dist.record_comm``.

It becomes a composed operation around what is issued under it, with the name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch._C._distributed_c10d as c10d

from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation

PART = "names of communication"
_OP = "record_comm"
_SETTER = "_set_comm_profiling_name"


def install(capture: Capture) -> None:
    """Patch what ``record_comm`` calls, on a torch that has it."""
    if hasattr(c10d, _SETTER):
        capture.engine.value(PART, c10d, _SETTER, _wrapper(capture, getattr(c10d, _SETTER)))


def _wrapper(capture: Capture, original: Callable[..., Any]) -> Callable[..., Any]:
    # The context manager's frame calls twice: at its begin, and to put the former name back.
    around: dict[int, Operation] = {}
    capture.on_fork.append(around.clear)

    def set_name(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            frame = sys._getframe(1)
            if frame.f_code.co_name == _OP:
                operation = around.pop(id(frame), None)
                if operation is not None:
                    capture.leave(PART, operation)
                else:
                    name = str(args[0] if args else kwargs)
                    around[id(frame)] = capture.begin_composed(
                        frame, _OP, name, keys={"name": name}
                    )
            del frame
        except BaseException as error:
            capture.fail(PART, error)
        return result

    return set_name
