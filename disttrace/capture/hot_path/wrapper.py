"""Writes the hot path: the wrapper of one method as a single flat function.

A call of a Python function, and an object, each cost about as much as everything that a record
needs; a wrapper made of small functions cost a quarter to a third more. So the text is completed
for each layout of arguments and for the depth of stacks, and compiled when the door is put in
place. What is rare (a call not seen before, an exception, asynchronous work) is left to the
ordinary methods of a door, such as ``Door`` in ``methods.py``.

The flat path is for calls that wait themselves, whose end is one record, and for those on stores.
Between begin and end the operation stands in the fields of its ``ThreadState``. They are filled,
and read, where no signal handler can come between: handlers run at calls, and at the end of loops.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from disttrace import errors
from disttrace.capture.calls.call_site import key_source
from disttrace.capture.hot_path.call_key import MISFIT, Key, slow_key
from disttrace.capture.wrapping.context import Capture
from disttrace.patching import dynamo
from disttrace.recording.operation import Call, KeyTexts, Operation, ThreadState
from disttrace.recording.recorder import END, END_SIZED

# The original is called from the wrapper's own frame: pybind11 stops the recursion of a Python
# subclass only there. Our failure never comes between the user and the call.
_WRAPPER = """\
def make(original, door, threads, recorder, get_entry, get, deep_key, fail):
    next_number = recorder.next_number
    begin_rarely, returned, failed = door.begin, door.returned, door.failed

    def wrapper(self, *args, **kwargs):
        thread = threads.state
        if thread.inside:
            return original(self, *args, **kwargs)
        n = 0
        operation = None
        try:
            f0 = getframe(1)
            call = None
            try:
                {unpack}
                entry = get_entry(id(self))
                {key}
                call = get(key)
                if type(call) is int:  # the user's frame lies deeper: dist.send calls dist.isend
                    call = get(({signature}) + deep_key(f0, call))
            except MISFIT as error:
                if not is_ours(error):
                    raise
            if type(call) is not Call:
                operation = begin_rarely(thread, self, args, kwargs, f0)
            elif call.flat is None:
                operation = recorder.begin(thread, call)
            else:
                if thread.line is not None:
                    recorder.set_aside(thread)
                tail = thread.tail
                if recorder.ambient is not None:
                    tail += recorder.ambient()
                {details}
                n = next_number()
                seq = {seq}
                begin = clock()
                line = call.flat % (n, begin - recorder.t0, {fields})
                thread.n, thread.seq, thread.begin, thread.call = n, seq, begin, call
                thread.line = line
                try:
                    recorder.put(line)
                except (ValueError, OSError) as error:
                    recorder.recover(error, line)
        except BaseException as error:
            fail(error)
            if not n and operation is None:
                return original(self, *args, **kwargs)
        try:
            thread.inside = True
            result = original(self, {passed}) if n else original(self, *args, **kwargs)
        except BaseException as error:
            thread.inside = False
            failed(thread, n, operation, error)
            raise
        thread.inside = False
        try:
            {after}
            returned(thread, n, operation, result)
        except BaseException as error:
            fail(error)
        return result

    return wrapper
"""

# A collective or a message: its end is in ``waits.py``, in the wait that its public function does.
_ISSUED = """\
if n and result is not None:
    now = clock()
    awaited = id(result)
    if thread.n == n and thread.line is not None:
        thread.issued = now - begin
        thread.work = awaited
        return result"""

# A store operation is over when its call returns.
_OVER = """\
now = clock()
if n and thread.n == n and thread.line is not None:
    line = {end}
    thread.line = None
    try:
        recorder.put(line)
    except (ValueError, OSError) as error:
        recorder.recover(error, line)
    return result"""

_SIGNATURE = """\
def signature(entry, args, kwargs, f0):
    {unpack}
    return ({signature})
"""

Function = Callable[..., Any]


class Door(Protocol):
    """What a wrapper leaves to ordinary functions; ``n`` is 0 unless it began on the flat path."""

    def begin(
        self,
        thread: ThreadState,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Any,
    ) -> Operation:
        """Begin a call that was not seen before, or that has not the usual form."""

    def returned(
        self, thread: ThreadState, n: int, operation: Operation | None, result: Any
    ) -> None:
        """The call returned, and the flat path has no room for what comes now."""

    def failed(
        self, thread: ThreadState, n: int, operation: Operation | None, error: BaseException
    ) -> None:
        """The user's call raised ``error``, which the wrapper raises again."""


def wrapped(
    make: Function,
    original: Function,
    door: Door,
    capture: Capture,
    part: str,
    get_entry: Function,
    get_call: Function,
) -> Function:
    """The wrapper of ``original`` that ``make`` makes."""
    recorder, sites, fail = capture.recorder, capture.sites, functools.partial(capture.fail, part)
    wrapper: Function = make(
        original, door, recorder.threads, recorder, get_entry, get_call, sites.deep_key, fail
    )
    return wrapper


def method_maker(key: Key, frames: int, **named: Function) -> Function:
    """``make`` for calls with this key and places of ``frames`` frames.

    ``named`` are the functions that the key's text calls.
    """
    filling = {
        "details": ["pass"],
        "seq": ["call.counter.next()"],
        "fields": ["seq, tail"],
        "after": _ISSUED.splitlines(),
    }
    return _function("make", _completed(_WRAPPER, {**filling, **_of(key, frames)}), **named)


def store_maker(
    frames: int,
    size: Function,
    keys: KeyTexts,
    *,
    key: bool,
    value: int | None,
    returns: bool,
) -> Function:
    """``make`` for a method of stores.

    ``key``: its first argument is a key or a list of keys; ``value`` is the position of what it
    stores, if it stores something; ``returns``: it returns a value. ``size(value)`` counts bytes.
    """
    unpack, details, fields = ["if kwargs: raise TypeError"], ["pass"], ["tail"]
    if key:
        unpack.append(f"if len(args) <= {value or 0}: raise TypeError")
        unpack.append("if type(args[0]) is not str and type(args[0]) is not list: raise TypeError")
        details = ["try:", " text = known(args[0])"]
        details += ["except TypeError:", " text = None"]  # a list
        details += ["if text is None: text = key_text(args[0])"]
        fields.append("text")
    if value:
        fields.append(f"size(args[{value}])")
    times = "n, now - begin"
    end = f"END_SIZED % ({times}, size(result))" if returns else f"END % ({times}, b'')"
    filling = {
        "details": details,
        "seq": ["0"],
        "fields": [", ".join(fields)],
        "after": _OVER.replace("{end}", end).splitlines(),
        **_of(Key(tuple(unpack), (), "*args"), frames),
    }
    text = _completed(_WRAPPER, filling)
    return _function("make", text, size=size, known=keys.known, key_text=keys.make)


def signature_maker(key: Key, **named: Function) -> Function:
    """``signature(entry, args, kwargs, frame)``: the part of the key that says what is called."""
    return _function("signature", _completed(_SIGNATURE, _of(key)), **named)


def _of(key: Key, frames: int = 1) -> dict[str, list[str]]:
    signature = "".join(f"{part}, " for part in ("entry", *key.parts))
    return {
        "unpack": list(key.unpack),
        "key": key_source(frames, signature),
        "signature": [signature],
        "passed": [key.passed],
    }


def _completed(text: str, filling: Mapping[str, list[str]]) -> str:
    """``text`` with each ``{name}`` replaced by its lines, indented as the place is."""
    for name, lines in filling.items():
        place = f"{{{name}}}"
        while place in text:
            before = text[: text.index(place)]
            indent = " " * (len(before) - before.rindex("\n") - 1)
            text = text.replace(place, f"\n{indent}".join(lines), 1)
    return text


def _function(name: str, text: str, **named: Function) -> Function:
    """The function of that name in ``text``, which may call those that are ``named``."""
    namespace: dict[str, Any] = {
        "Call": Call,
        "END": END,
        "END_SIZED": END_SIZED,
        "MISFIT": MISFIT,
        "clock": time.perf_counter_ns,
        "getframe": sys._getframe,
        "is_ours": errors.is_ours,
        "slow_key": slow_key,
        **named,
    }
    exec(_compiled(text), namespace)
    function: Function = namespace[name]
    dynamo.skip(function.__code__)
    return function


@functools.cache
def _compiled(text: str) -> types.CodeType:
    """Methods with the same text share one compilation.

    The code claims to stand in our folder, for by its file an exception is known to be ours, and in
    no file of it, for it has no lines to show.
    """
    return compile(text, os.path.join(os.path.dirname(__file__), "<hot path>"), "exec")
