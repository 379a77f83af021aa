"""Where a call comes from: a cheap key on every call, file and line once per key.

The key is made of code objects and instruction offsets of the frames that the recorded stack
shows, so two calls with one key have one stack. Frames are never kept.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable
from typing import Any

from disttrace.errors import HOME
from disttrace.patching import dynamo
from disttrace.recording.recorder import Recorder

# The public functions of torch.distributed stand in two frames: the function and its decorator.
_TORCH_FRAMES = 2
_DEEPEST = 100

Key = tuple[int, ...]
_CONTEXTLIB = contextlib.__file__  # between torch's context managers and the user's code


class CallSites:
    """Keys and stacks of call sites."""

    def __init__(self, recorder: Recorder, *, depth: int) -> None:
        """``depth`` is the number of frames a recorded stack has, from the user's frame on."""
        self._recorder = recorder
        self._depth = depth
        self._deep: dict[int, Callable[[Any], Key]] = {}  # by number of frames
        self._torch = os.sep * 2  # no file stands there: torch is not known yet
        self._codes: dict[int, types.CodeType] = {}  # a key holds ids: keep these alive
        # Those a key covers where the user calls a method, or a public function.
        self.direct_frames = depth or 1
        self.frames = depth + _TORCH_FRAMES if depth else 1
        self.key: Callable[[Any], Key] = _unrolled(self.frames)

    def torch_home(self, folder: str) -> None:
        """Where torch's own Python files are."""
        self._torch = folder.rstrip(os.sep) + os.sep

    def user_depth(self, frame: types.FrameType) -> int:
        """How many frames a key needs here to reach down to the end of the recorded stack."""
        return self._skip(frame)[1] + self._depth if self._depth else 1

    def deep_key(self, frame: types.FrameType, needed: int) -> Key:
        """A key of ``needed`` frames, for calls from deep inside torch (FSDP, pipelining)."""
        key = self._deep.get(needed)
        if key is None:
            key = self._deep[needed] = _unrolled(needed)
            dynamo.skip(key.__code__)
        return key(frame)

    def stack(self, frame: types.FrameType, *, pin: int = 0) -> int | None:
        """Number of the stack at ``frame``; ``pin`` code objects are kept alive for the key."""
        current: types.FrameType | None = frame
        for _ in range(max(pin, self.frames)):
            if current is None:
                break
            self._codes[id(current.f_code)] = current.f_code
            current = current.f_back
        if not self._depth:
            return None
        start, _ = self._skip(frame)
        return self._recorder.stack(frames(start, self._depth))

    def is_torch(self, frame: types.FrameType) -> bool:
        """Whether the frame runs torch's own Python code."""
        return self.is_torch_file(frame.f_code.co_filename)

    def is_torch_file(self, file: str) -> bool:
        """Whether a source file is torch's own."""
        return file.startswith(self._torch)

    def forget(self) -> None:
        """Let go of every code object; the keys made so far must be dropped too."""
        self._codes.clear()

    def _skip(self, frame: types.FrameType) -> tuple[types.FrameType, int]:
        """The first frame that is neither torch's nor ours (else ``frame``), and its distance."""
        current: types.FrameType | None = frame
        distance = 0
        while current is not None and distance < _DEEPEST:
            if not current.f_code.co_filename.startswith((self._torch, HOME, _CONTEXTLIB)):
                return current, distance
            current = current.f_back
            distance += 1
        return frame, 0


def frames(frame: types.FrameType | None, depth: int) -> list[tuple[str, int, str]]:
    """(file, line, function) of at most ``depth`` frames, innermost first."""
    result: list[tuple[str, int, str]] = []
    while frame is not None and len(result) < depth:
        code = frame.f_code
        if not code.co_filename.startswith(HOME):
            result.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return result


def key_source(count: int, before: str = "") -> list[str]:
    """Statements that set ``key`` to the key of the ``count`` frames from ``f0`` on.

    ``before`` are expressions that come first in it, each with a comma behind. A loop over the
    frames would cost twice as much.
    """
    lines: list[str] = []
    parts: list[str] = []
    for n in range(count):
        indent = " " * n
        parts += [f"id(f{n}.f_code)", f"f{n}.f_lasti"]
        made = f"key = ({before}{', '.join(parts)})"
        if n + 1 == count:
            lines.append(indent + made)
        else:
            lines.append(f"{indent}f{n + 1} = f{n}.f_back")
            lines.append(f"{indent}if f{n + 1} is None: {made}")
            lines.append(f"{indent}else:")
    return lines


def _unrolled(count: int) -> Callable[[Any], Key]:
    source = "\n ".join(["def key(f0):", *key_source(count), "return key"])
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    key: Callable[[Any], Key] = namespace["key"]
    return key
