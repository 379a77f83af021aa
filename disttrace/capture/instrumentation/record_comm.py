"""Instrumentation of names that programs give to their communication: ``dist.record_comm``.

It becomes a composed operation around what is issued under it, with the name.
"""

from __future__ import annotations

import sys
import types

import torch._C._distributed_c10d as c10d

from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation

PART = "names of communication"
_OP = "record_comm"
_SETTER = "_set_comm_profiling_name"


def install(capture: Capture) -> None:
    """Patch what ``record_comm`` calls, on a torch that has it."""
    original = getattr(c10d, _SETTER, None)
    if original is None:
        return
    # The context manager's frame calls twice: at its begin, and to put the former name back.
    around: dict[int, Operation] = {}
    capture.on_fork.append(around.clear)

    def named(frame: types.FrameType | None, name: str) -> None:
        if frame is None or frame.f_code.co_name != _OP:
            return
        if id(frame) in around:
            capture.leave(PART, around.pop(id(frame)))
        else:
            around[id(frame)] = capture.begin_composed(frame, _OP, name, keys={"name": name})

    def set_name(name: str) -> None:
        original(name)
        capture.guard(PART, named, sys._getframe().f_back, str(name))

    capture.engine.value(PART, c10d, _SETTER, set_name)
