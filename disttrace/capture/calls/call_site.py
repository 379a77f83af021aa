"""Where a call comes from: a cheap key on every call, file and line once per key.

The key, a place, is made of code objects and instruction offsets of the frames from the call down
to the last that the recorded stack shows, so two calls with one place have one stack. Frames are
never kept, and code objects only as long as places may be compared.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Hashable
from typing import Any

from disttrace.errors import HOME
from disttrace.recording.choice import PLAIN
from disttrace.recording.recorder import Recorder

_REACH = range(100)  # frames from a call to the user's
_LEAST = 4  # frames that a place is made of from the user's on, if there are so many
_CODES = 8192  # code objects kept alive: programs may make new ones for ever
_CONTEXTLIB = contextlib.__file__  # between torch's context managers and the user's code


class CallSites:
    """Places and stacks of calls."""

    def __init__(self, recorder: Recorder, *, depth: int) -> None:
        """``depth`` is the number of frames a recorded stack has, from the user's frame on."""
        self._recorder = recorder
        self._depth = depth
        self._torch = os.sep * 2  # no file stands there: torch is not known yet
        self._below = range(max(depth, _LEAST) - 1)
        self._further = range(depth - _LEAST)
        self._codes: dict[int, types.CodeType] = {}  # by id(), which nothing else has meanwhile
        self._users: dict[int, bool] = {}  # by the same: whether it is the user's
        self._generation = 0
        self.on_forget: list[Callable[[], None]] = []  # tables of places
        core: Any = recorder.core
        if core.name != PLAIN:
            core.depth, core.is_user = depth, self._is_users

    def place(self, frame: types.FrameType | None) -> Hashable:
        """What tells the place of a call at ``frame`` from others."""
        if frame is None:
            return ()
        users = self._users
        code = id(frame.f_code)
        place: Hashable = self._generation
        while True:
            try:
                if users[code]:
                    break
            except KeyError:
                if self._learn(frame.f_code):
                    break
            place = code, frame.f_lasti, place
            frame = frame.f_back
            if frame is None:
                return place
            code = id(frame.f_code)
        # One by one, and few tuples: a loop over all of them would take half as long again.
        two = frame.f_back
        if two is None:
            return place, code, frame.f_lasti
        place = place, code, frame.f_lasti, id(two.f_code), two.f_lasti
        three = two.f_back
        if three is None:
            return place
        four = three.f_back
        if four is None:
            return place, id(three.f_code), three.f_lasti
        place = place, id(three.f_code), three.f_lasti, id(four.f_code), four.f_lasti
        for _ in self._further:
            four = four.f_back
            if four is None:
                break
            place = place, id(four.f_code), four.f_lasti
        return place

    def torch_home(self, folder: str) -> None:
        """Where torch's own Python files are."""
        self._torch = folder.rstrip(os.sep) + os.sep
        self.forget()

    def stack(self, frame: types.FrameType | None) -> int | None:
        """Number of the stack at ``frame``."""
        if frame is None:
            return None
        first = current = self._skip(frame)
        for _ in self._below:
            current = current.f_back or current
            self._keep(current.f_code)
        return self._recorder.stack(frames(first, self._depth)) if self._depth else None

    def is_torch(self, file: str) -> bool:
        """Whether a source file is torch's own."""
        return file.startswith(self._torch)

    def forget(self) -> None:
        """Let go of every code object, at the latest after a fork: places made so far equal none
        that is made from now on."""
        self._codes.clear()
        self._users.clear()
        self._generation += 1
        for forget in self.on_forget:
            forget()
        core: Any = self._recorder.core
        if core.name != PLAIN:
            core.forget_calls()

    def _learn(self, code: types.CodeType) -> bool:
        """Whether ``code``, which ``place`` has not met yet, is the user's; known from now on."""
        self._keep(code)
        user = self._users[id(code)] = self._is_users(code)
        return user

    def _keep(self, code: types.CodeType) -> None:
        if len(self._codes) >= _CODES:
            self.forget()
        self._codes[id(code)] = code

    def _is_users(self, code: types.CodeType) -> bool:
        return not code.co_filename.startswith((self._torch, HOME, _CONTEXTLIB))

    def _skip(self, frame: types.FrameType) -> types.FrameType:
        """The first frame that is neither torch's nor ours, else ``frame``."""
        current: types.FrameType | None = frame
        for _ in _REACH:
            if current is None:
                break
            if self._is_users(current.f_code):
                return current
            current = current.f_back
        return frame


def frames(frame: types.FrameType | None, depth: int) -> list[tuple[str, int, str]]:
    """(file, line, function) of at most ``depth`` frames, innermost first."""
    result: list[tuple[str, int, str]] = []
    while frame is not None and len(result) < depth:
        code = frame.f_code
        if not code.co_filename.startswith(HOME):
            result.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return result
