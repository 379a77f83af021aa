"""Where a call comes from: a cheap key on every call, file and line once per key; and from there to
its definition, by one look-up when it was seen before.

The key, a place, is made of code objects and instruction offsets of the frames that the recorded
stack shows and of those before it, so two calls with one place have one stack. A stack begins at
the first frame that is not torch's. Where a library called and the stack would not reach the
program, the first frame of the program's own is its last one. Frames are never kept, and code
objects only as long as places may be compared.
"""

from __future__ import annotations

import contextlib
import os
import signal
import types
from _signal import getsignal  # type: ignore[import-not-found]  # that of signal compares handlers
from collections.abc import Callable, Hashable
from typing import Any

from disttrace.foreign import HOME, code_of, is_our_code, ours
from disttrace.journal.code_files import is_program
from disttrace.recording.core import PLAIN
from disttrace.recording.interning import Made
from disttrace.recording.operation import CallRecord
from disttrace.recording.recorder import Recorder

_REACH = range(100)  # frames from a call to the first that is not torch's
_FURTHEST = range(64)  # frames from that one to the program's own
_LEAST = 4  # frames that a place is made of from there on, if there are so many
_TORCHS, _LIBRARYS, _PROGRAMS = 0, 1, 3  # as the numbers of code objects in C end
_CODES = 8192  # code objects kept alive: programs may make new ones for ever
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that request a program to end, or to save what it has."""
_CONTEXTLIB = contextlib.__file__  # between torch's context managers and the user's code


class CallSites:
    """Places and stacks of calls."""

    def __init__(self, recorder: Recorder, *, depth: int) -> None:
        """``depth`` is the number of frames a recorded stack has beside the program's own."""
        self._recorder = recorder
        self._depth = depth
        self._torch = os.sep * 2  # no file stands there: torch is not known yet
        self._below = range(max(depth, _LEAST) - 1)
        self._further = range(depth - _LEAST)
        self._codes: dict[int, types.CodeType] = {}  # by id(), which nothing else has meanwhile
        self._owners: dict[int, int] = {}  # by the same: whose it is
        self._stacks: dict[Hashable, int] = {}  # by place
        self._generation = 0
        self.on_forget: list[Callable[[], None]] = []  # tables of places
        recorder.on_forget = self.forget
        core: Any = recorder.core
        self.find_call: Callable[..., Any] | None = None  # the native core's table of calls
        if core.name != PLAIN:
            core.depth, core.whose = depth, self._whose
            self.find_call = core.find

    def place(self, frame: types.FrameType | None) -> Hashable:
        """What tells the place of a call at ``frame`` from others."""
        if frame is None:
            return ()
        owners = self._owners
        code = id(frame.f_code)
        place: Hashable = self._generation
        while True:
            try:
                owner = owners[code]
            except ours(KeyError):
                owner = self._learn(frame.f_code)
            if owner:
                break
            place = code, frame.f_lasti, place
            frame = frame.f_back
            if frame is None:
                return place
            code = id(frame.f_code)
        if owner != _PROGRAMS:
            return self._place_outside(frame, place)
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

    def _place_outside(self, frame: types.FrameType | None, place: Hashable) -> Hashable:
        """A library's call: down to the program's frame, between them what the stack shows."""
        left, found = max(self._depth, _LEAST), not self._depth
        for _ in _FURTHEST:
            if frame is None:
                break
            code = frame.f_code
            owner = self._owners.get(id(code))
            found = (self._learn(code) if owner is None else owner) == _PROGRAMS or found
            if left > 0 or found:
                place = place, id(code), frame.f_lasti
            left -= 1
            if left <= 0 and found:
                break
            frame = frame.f_back
        return place

    def torch_home(self, folder: str) -> None:
        self._torch = folder.rstrip(os.sep) + os.sep
        self.forget()

    def stack(self, frame: types.FrameType | None) -> int | None:
        """Number of the stack at ``frame``; of all at one place only the first is looked at, but
        where a handler of the program's may have called."""
        found = map(getsignal, _ASKING)  # compared by identity: they may be the program's
        usual = signal.default_int_handler
        handlers = {code_of(one) for one in found if type(one) is not int and one is not usual}
        handlers -= {None}
        place = () if handlers else self.place(frame)
        number = self._stacks.get(place)
        if number is None and frame is not None:
            number = self._stack(frame, handlers)
            if number is not None and place:
                self._stacks[place] = number
        return number

    def _stack(self, frame: types.FrameType, handlers: set[types.CodeType | None]) -> int | None:
        first = current = self._skip(frame)
        for _ in self._below:
            current = current.f_back or current
            self._keep(current.f_code)
        if not self._depth:
            return None
        shown = frames(first, self._depth)
        for file, _, _ in shown:  # no generator: what ends one early is told on stderr
            if self.is_programs(file):
                break
        else:
            shown += _nearest(first, lambda code: self.is_programs(code.co_filename))
        handler = _nearest(first, handlers.__contains__) if handlers else []
        if not handler:
            return self._recorder.stack(shown)
        number = self._recorder.stack(shown + [line for line in handler if line not in shown])
        self._recorder.of_handlers.add(number)
        return number

    def is_torch(self, file: str) -> bool:
        return file.startswith(self._torch)

    def is_programs(self, file: str) -> bool:
        return not file.startswith((self._torch, HOME)) and is_program(file)

    def forget(self) -> None:
        """Let go of all code objects, as after a fork: no later place equals an earlier one."""
        self._codes.clear()
        self._owners.clear()
        self._stacks.clear()
        self._generation += 1
        for forget in self.on_forget:
            forget()
        core: Any = self._recorder.core
        if core.name != PLAIN:
            core.forget_calls()

    def _learn(self, code: types.CodeType) -> int:
        """Whose ``code`` is, which ``place`` has not met yet; known from now on."""
        self._keep(code)
        owner = self._owners[id(code)] = self._whose(code)
        return owner

    def _keep(self, code: types.CodeType) -> None:
        if len(self._codes) >= _CODES:
            self.forget()
        self._codes[id(code)] = code

    def _whose(self, code: types.CodeType) -> int:
        file = code.co_filename
        if file.startswith((self._torch, HOME, _CONTEXTLIB)):
            return _TORCHS
        return _PROGRAMS if is_program(file) else _LIBRARYS

    def _skip(self, frame: types.FrameType) -> types.FrameType:
        """The first frame that is neither torch's nor ours, else ``frame``."""
        current: types.FrameType | None = frame
        for _ in _REACH:
            if current is None:
                break
            if self._whose(current.f_code):
                return current
            current = current.f_back
        return frame


def _nearest(
    frame: types.FrameType | None, is_it: Callable[[types.CodeType], bool]
) -> list[tuple[str, int, str]]:
    """The first frame whose code that is, if one is near enough."""
    for _ in _FURTHEST:
        if frame is None:
            break
        if is_it(frame.f_code):
            return frames(frame, 1)
        frame = frame.f_back
    return []


def frames(frame: types.FrameType | None, depth: int) -> list[tuple[str, int, str]]:
    """(file, line, function) of at most ``depth`` frames, innermost first."""
    result: list[tuple[str, int, str]] = []
    while frame is not None and len(result) < depth:
        code = frame.f_code
        if not is_our_code(code):
            result.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return result


_TABLE = 20_000  # a table starts anew at this bound: what is in the journal already is found there


class CallTable:
    """A table of calls by signature and place (see ``CallSites``)."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._native = sites.find_call
        self._table: dict[Hashable, CallRecord] = {}
        self.get = self._table.get
        sites.on_forget.append(self._table.clear)

    def find(
        self,
        frame: types.FrameType | None,
        signature: tuple[Hashable, ...],
        define: Callable[[int | None], Made],
    ) -> Made:
        """The call at ``frame``, and what its begin adds; ``define(stack)`` makes a new one."""
        native = self._native if frame is not None else None
        call = native(None, None, signature, frame) if native is not None else None
        if call is not None:
            return call, b""
        key = signature, self._sites.place(frame)
        call = self._table.get(key)
        if call is not None:
            return call, b""
        call, extra = define(self._sites.stack(frame))
        if native is None or not call.whole or not native(None, None, signature, frame, call):
            self.add(key, call)  # C has no room for such a key
        return call, extra

    def add(self, key: Hashable, call: CallRecord) -> None:
        """Remember ``call`` under ``key``, unless its begin records must add to it."""
        if call.whole:
            if len(self._table) >= _TABLE:
                self._table.clear()
            self._table[key] = call
