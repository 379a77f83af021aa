"""How this process ends: uncaught exceptions and the exit record.

``sys.excepthook`` is not called in multiprocessing's children and ``atexit`` does not run in forked
ones, so each way out has its own row here.

No hook is called for a SystemExit either, and a program may catch it. So ``sys.exit`` and ``exit``
leave a mark on it, and where the mark dies tells: the exception that reached the top is let go of
by the interpreter's own C code, beneath which there is no Python frame.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import contextlib
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from disttrace import errors, foreign
from disttrace.capture.calls.call_site import frames
from disttrace.capture.wrapping.context import Capture
from disttrace.journal.code_files import is_generated
from disttrace.journal.format import ABORTED, EXEC, RESUMED
from disttrace.journal.standard_library import StandardLibrary
from disttrace.patching import Engine
from disttrace.recording import background
from disttrace.waiting import ImportHook

PART = "the way the process ends"
_STACK = 8
_FORKED_BY = ("multiprocessing.popen_fork", "multiprocessing.forkserver")
"""Modules whose children leave by ``os._exit`` when their function has returned."""
_CAUSES = 8
_EXEC = ("execv", "execve")
"""All of `os.exec*` end in these."""


class Ending:
    """Writes failures and the one exit record."""

    def __init__(
        self,
        capture: Capture,
        close: Callable[[], None],
        last_word: Callable[..., None],
    ) -> None:
        """``last_word(code, failed=)`` comes last; ``failed``: an exception reached the top."""
        self._capture = capture
        self._guard = partial(capture.guard, PART)
        self._close = close
        self._last_word = last_word
        self.failed = False
        self._interrupted = False
        self._said = False
        # Code, stack and causes of what reached the top.
        self._left: tuple[int, int, list[str]] | None = None

    def install(self, hook: ImportHook) -> None:
        self._guard(self._hook, hook)

    def _hook(self, hook: ImportHook) -> None:
        engine = self._capture.engine
        self._take(sys, self._excepthook(sys.excepthook))
        self._take(threading, self._thread_hook(threading.excepthook))
        engine.value(PART, os, "_exit", self._os_exit(os._exit))
        engine.value(PART, sys, "exit", self._leaves(sys.exit))
        engine.attribute(PART, _sitebuiltins.Quitter, "__call__", self._leaves)
        for name in _EXEC:
            self._hook_exec(engine, name)
        atexit.register(self._at_exit)
        engine.on_undo(PART, "atexit", lambda: atexit.unregister(self._at_exit))
        hook.when_imported("multiprocessing.process", self._multiprocessing)
        if sys.version_info >= (3, 11):
            hook.when_imported("torch.multiprocessing.spawn", self._torch_spawn)

    def _take(self, module: types.ModuleType, hook: Callable[..., Any]) -> None:
        """Libraries set a hook of theirs where ``excepthook`` still is ``__excepthook__``."""
        names = ["excepthook"]
        if module.excepthook is module.__excepthook__:
            names.append("__excepthook__")
        for name in names:
            hook = self._capture.engine.value(PART, module, name, hook)

    def forked(self) -> None:
        self.failed = self._interrupted = self._said = False
        self._left = None

    def _ends_by(self, error: BaseException) -> None:
        """``error`` was uncaught in the main thread."""
        self.failed = True
        self._interrupted = foreign.is_a(error, KeyboardInterrupt)
        self.failure(error)

    def failure(self, error: BaseException) -> None:
        """An uncaught exception; of a KeyboardInterrupt, where it was interrupted."""
        recorder = self._capture.recorder
        if not recorder.is_open or foreign.is_a(error, SystemExit):
            return
        lines = _from_traceback(foreign.traceback_of(error))
        stack = recorder.stack(shown(lines)) if lines else 0
        recorder.note(
            "failure",
            type=foreign.type_name(error),
            text=errors.first_line(error).partition(": ")[2],
            stack=stack,
            h=recorder.threads.state.number,
            **_given("causes", causes(error)),
            **_given("lines", self._of("lines", errors.further_lines, error)),
            **_given("parameters", self._of("parameters", self._capture.parameters_of, error)),
        )

    def _of(
        self, what: str, read: Callable[[BaseException], list[str]], error: BaseException
    ) -> Sequence[str]:
        """What is recorded beside the first line, which holds without it."""
        return self._capture.guard(f"{what} of exceptions", read, error) or ()

    def exit(
        self, how: str, code: int | None, stack: int = 0, caused_by: Sequence[str] = ()
    ) -> None:
        """Record the first word on the end, the stack that requests it, and its causes."""
        if self._said or not self._capture.recorder.is_open:
            return
        self._said = True
        origin: dict[str, Any] = {"stack": stack} if stack else {}
        self._capture.recorder.note(
            "exit", how=how, code=code, **origin, **_given("causes", caused_by)
        )

    def _caller(self) -> int:
        """Number of the stack from which the program asks for its end; 0: no journal."""
        recorder = self._capture.recorder
        return recorder.stack(frames(sys._getframe(1), _STACK)) if recorder.is_open else 0

    def _excepthook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            if error is not None and error is _uncaught():  # else the program has it printed
                self._guard(self._ends_by, error)
            original(kind, error, traceback)

        return excepthook

    def _thread_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def thread_hook(args: Any) -> None:
            if args.exc_value is not None:
                self._guard(self.failure, args.exc_value)
            original(args)

        return thread_hook

    def _os_exit(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def _exit(status: int) -> Any:
            caller = _caller(sys._getframe(0))
            handled = sys.exc_info()[1]
            self._guard(self._exits_at_once, status, caller, handled)
            return original(status)

        return _exit

    def _exits_at_once(self, status: int, caller: object, handled: BaseException | None) -> None:
        if caller in _FORKED_BY:  # a child that imported torch when it was under way already
            self.exit("exception" if self.failed else "exit", foreign.plain(status))
        elif caller == __name__:  # by `end_process`
            self.exit(ABORTED, foreign.plain(status))
        else:
            self.exit("os._exit", foreign.plain(status), self._caller(), handling(handled))

    def _hook_exec(self, engine: Engine, name: str) -> None:
        """Before the process becomes another program; `os.execvp` tries each folder of PATH."""
        original = getattr(os, name)

        def execute(*args: Any, **kwargs: Any) -> Any:
            self._guard(lambda: self.exit(EXEC, None, self._caller()))
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._guard(self._stays)
                errors.take_off(error)
                raise

        wrapper = engine.value(PART, os, name, execute)
        if original in os.supports_fd:
            os.supports_fd.add(wrapper)
            engine.on_undo(PART, "os.supports_fd", lambda: os.supports_fd.discard(wrapper))

    def _stays(self) -> None:
        if self._said and self._capture.recorder.is_open:
            self._said = False
            self._capture.recorder.note("exit", how=RESUMED, code=None)

    def _leaves(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`sys.exit`, or the ``exit`` and ``quit`` of `site`, which raise by themselves."""

        def leave(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except SystemExit as error:
                self._guard(self._mark, error)
                errors.take_off(error)
                raise

        return leave

    def _mark(self, error: SystemExit) -> None:
        code = _exit_code(foreign.exit_code_of(error))
        stack, caused_by = self._caller(), causes(error)

        def uncaught() -> None:
            if self._left is None:  # those that it was raised in the handling of die after it
                self._left = code, stack, caused_by

        dict.__setitem__(foreign.attributes_of(error), "_disttrace", _Mark(uncaught))

    def _at_exit(self) -> None:
        if _caller(sys._getframe(0)) in _FORKED_BY:
            return  # since Python 3.13; `os._exit` with the code comes next

        def last_words() -> None:
            # A program may have put its own excepthook over ours.
            error = None if self.failed else _uncaught()
            if error is not None:
                self._ends_by(error)
            if self._interrupted:
                self.exit("exception", None)  # the interpreter will send itself SIGINT
            elif self.failed:
                self.exit("exception", 1)
            elif self._left is not None:
                self.exit("exit", *self._left)
            else:
                self.exit("normal", None)
            self._close()
            code = 1 if self.failed else self._left[0] if self._left else 0
            self._last_word(code, failed=self.failed)

        self._guard(last_words)

    def _multiprocessing(self, module: types.ModuleType) -> None:
        """``_bootstrap`` of a child catches everything and returns the code. So the exception is
        looked at in ``_exit_function``, called in a ``finally``, or since Python 3.13 where it is
        printed: a frame of ours around the function would show in its traceback."""
        import traceback
        from multiprocessing import util

        in_finally = "_exit_function" in module.BaseProcess._bootstrap.__code__.co_names

        def make(original: types.FunctionType) -> Callable[..., Any]:
            def bootstrap(*args: Any, **kwargs: Any) -> Any:
                code = original(*args, **kwargs)
                self._guard(self._child_ends, code)
                return code

            return bootstrap

        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if in_finally or _caller(sys._getframe(0)) == module.__name__:
                    self._guard(self._on_its_way, sys.exc_info()[1])
                return original(*args, **kwargs)

            return call

        engine = self._capture.engine
        engine.function(PART, module.BaseProcess._bootstrap, make)
        owner, name = (util, "_exit_function") if in_finally else (traceback, "print_exc")
        engine.value(PART, owner, name, watched(getattr(owner, name)))

    def _child_ends(self, code: int) -> None:
        origin = self._left[1:] if self._left is not None and self._left[0] == code else ()
        self.exit("exception" if self.failed else "exit", code, *origin)
        self._last_word(code, failed=False)

    def _torch_spawn(self, module: types.ModuleType) -> None:
        """Children of torch's spawn: it catches everything, sends it to its parent, and leaves with
        a code; a KeyboardInterrupt it swallows before torch 2.15, and the child leaves with 0.
        Before Python 3.11 our frame could not be kept out of the traceback that it sends."""

        def make(original: types.FunctionType) -> Callable[..., Any]:
            def _wrap(fn: Callable[..., Any], *args: Any) -> Any:
                return original(self._watched(fn), *args)

            return _wrap

        self._capture.engine.function(PART, module._wrap, make)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            try:
                return function(*args)
            except BaseException as error:
                errors.take_off(error)
                self._guard(self._on_its_way, error)
                raise

        return watched

    def _on_its_way(self, error: BaseException | None) -> None:
        """A child's function raised ``error``, or nothing."""
        if foreign.is_a(error, SystemExit) and _is_torch_spawn(error):
            # torch's spawn caught it, wrote it down and leaves with 1
            error = foreign.context_of(error)
        if foreign.is_a(error, SystemExit):
            mark = dict.get(foreign.attributes_of(error), "_disttrace")
            if type(mark) is _Mark:
                mark.uncaught()  # nothing of the program's is left that could catch it
            return
        if error is None or self.failed:
            return
        self.failed = True
        self.failure(error)


def _uncaught() -> BaseException | None:
    """What was uncaught in the main thread; None so far. Consoles and debuggers note there what
    they caught: then the frame that caught it went on, or was called by another."""
    error = getattr(sys, "last_value", None)
    entry = foreign.traceback_of(error) if foreign.is_a(error, BaseException) else None
    if error is None or entry is None or sys.flags.inspect:
        return None
    frame = entry.tb_frame
    if frame.f_back is not None or not (frame.f_lasti == entry.tb_lasti or foreign.raises(frame)):
        return None
    command = frame.f_code.co_filename == "<stdin>" and hasattr(sys, "ps1")
    found: BaseException | None = None if command else error
    return found


def causes(error: BaseException) -> list[str]:
    """``Type: first line`` of the exceptions from which ``error`` was raised or which it passes on,
    also in groups: nearest first, at most eight."""
    found: list[str] = []
    seen = {id(error)}
    queue = _nearest(error)
    while queue and len(found) < _CAUSES:
        one = queue.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        found.append(errors.first_line(one))
        queue += _nearest(one)
    return found


def handling(error: BaseException | None) -> list[str]:
    """The exception that is being handled, and its causes."""
    return [] if error is None else [errors.first_line(error), *causes(error)][:_CAUSES]


def _nearest(error: BaseException) -> list[BaseException]:
    # A context counts although `raise ... from None` hides it: it is what happened.
    context = foreign.context_of(error)
    if context is not None and not errors.passes_on(error, context):
        context = None
    found = (foreign.cause_of(error), context, *foreign.members_of(error))
    return [one for one in found if one is not None]


def _given(name: str, texts: Sequence[str]) -> dict[str, Any]:
    return {name: list(texts)} if texts else {}


class _Mark:
    """Rides on a SystemExit; calls ``uncaught`` if that dies at the top of the main thread."""

    __slots__ = ("uncaught",)

    def __init__(self, uncaught: Callable[[], None]) -> None:
        self.uncaught = uncaught

    def __del__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            sys._getframe(1)
        except foreign.ours(ValueError):
            self.uncaught()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return bool, ()  # an exception is pickled with what it bears, and read without disttrace


def _caller(frame: types.FrameType) -> object:
    """The module that called the function of a frame; None: no Python code did."""
    return None if frame.f_back is None else frame.f_back.f_globals.get("__name__")


def _exit_code(code: object) -> int:
    """What the interpreter makes of a SystemExit's ``code``."""
    if code is None:
        return 0
    return int.__and__(code, 0xFF) if foreign.is_a(code, int) else 1


def _is_torch_spawn(error: SystemExit) -> bool:
    raised_in = ""
    for entry in foreign.entries_of(error):
        if not foreign.is_our_code(entry.tb_frame.f_code):
            raised_in = entry.tb_frame.f_globals.get("__name__", "")
    return raised_in == "torch.multiprocessing.spawn"


def shown(lines: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """The innermost lines of a failure, and the program's own where those lie deeper."""
    programs = [errors.is_program_file(file) and not is_generated(file) for file, _, _ in lines]
    own = programs.index(True) if True in programs else 0
    if own < _STACK:
        return lines[:_STACK]
    return lines[:_STACK] + lines[own : own + _STACK // 2]


def _from_traceback(traceback: types.TracebackType | None) -> list[tuple[str, int, str]]:
    """(file, line, function) of where an exception was raised, innermost first."""
    found: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not foreign.is_our_code(code):
            found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found[::-1]


WITHIN_S = 1.0
"""In all. The companion kills a process two seconds after it was to end."""


def end_process(code: int) -> None:
    """End with ``code`` from the background thread, once all output is flushed or time is up. Each
    stream has a thread: a pipe may lack a reader, a lock be held, a stream raise."""
    until = time.monotonic() + WITHIN_S
    streams = {id(s): s for s in (sys.stdout, sys.stderr, sys.__stdout__) if s is not None}
    flush = methodcaller("flush")  # which a stream may not have
    flushes: list[Callable[[], None]] = [_flush_c, *(partial(flush, s) for s in streams.values())]
    threads = [background.Thread(partial(_quietly, one), "disttrace-flush") for one in flushes]
    for thread in [one for one in threads if one.start()]:
        thread.join(max(0.0, until - time.monotonic()))
    os._exit(code)


def _quietly(flush: Callable[[], object]) -> None:
    with contextlib.suppress(BaseException):
        flush()


def _flush_c() -> None:
    with StandardLibrary():
        import ctypes
    libc = ctypes.CDLL(None)
    if hasattr(libc, "stdout"):  # it has another name on macOS
        libc.fflush(ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)  # waits for a thread that reads from a stream
