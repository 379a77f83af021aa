"""How this process ends: uncaught exceptions and the exit record.

``sys.excepthook`` is not called in multiprocessing's children and ``atexit`` does not run in
forked ones, so each way out has its own row here. A journal without an exit record belongs to a
process that was killed, aborted, or is alive.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from disttrace import guard
from disttrace.capture.callsite import frames
from disttrace.capture.context import Capture
from disttrace.importhook import ImportHook

PART = "the way the process ends"
_STACK = 8


class Ending:
    """Writes failures and the one exit record."""

    def __init__(self, capture: Capture, close: Callable[[], None]) -> None:
        self._capture = capture
        self._close = close
        self._failed = False
        self._said = False

    def install(self, hook: ImportHook) -> None:
        """Hook every way out of this process."""
        engine = self._capture.engine
        engine.value(PART, sys, "excepthook", self._excepthook(sys.excepthook))
        engine.value(PART, threading, "excepthook", self._thread_hook(threading.excepthook))
        engine.value(PART, os, "_exit", self._os_exit(os._exit))
        atexit.register(self._at_exit)
        engine.on_undo(PART, "atexit", lambda: atexit.unregister(self._at_exit))
        hook.when_imported("multiprocessing.process", self._multiprocessing)

    def forked(self) -> None:
        """In a forked child: its end is still to come."""
        self._failed = self._said = False

    def failure(self, error: BaseException) -> None:
        """An exception that nobody caught."""
        recorder = self._capture.recorder
        if not recorder.is_open or isinstance(error, (SystemExit, KeyboardInterrupt)):
            return
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        stack = 0
        if traceback is not None:
            inner = _from_traceback(error.__traceback__)
            stack = recorder.stack(inner[:_STACK])
        recorder.note(
            "failure",
            type=type(error).__name__,
            text=guard.first_line(error).partition(": ")[2],
            stack=stack,
            h=recorder.threads.state.number,
        )

    def exit(self, how: str, code: int | None) -> None:
        """The process is about to end; only the first word counts."""
        if self._said or not self._capture.recorder.is_open:
            return
        self._said = True
        self._capture.recorder.note("exit", how=how, code=code)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            self._capture.fail(PART, error)

    def _excepthook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: Any, error: Any, traceback: Any) -> None:
            self._failed = True
            self._guarded(lambda: self.failure(error))
            original(kind, error, traceback)

        return excepthook

    def _thread_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def thread_hook(args: Any) -> None:
            if args.exc_value is not None:
                self._guarded(lambda: self.failure(args.exc_value))
            original(args)

        return thread_hook

    def _os_exit(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        def _exit(status: int) -> Any:
            self._guarded(lambda: self.exit("os._exit", status))
            return original(status)

        return _exit

    def _at_exit(self) -> None:
        def last_words() -> None:
            # A program may have put its own excepthook over ours; this is set for all of them.
            error = getattr(sys, "last_value", None)
            if error is not None and not self._failed:
                self._failed = True
                self.failure(error)
            if isinstance(error, KeyboardInterrupt):
                self.exit("exception", None)  # the interpreter will send itself SIGINT
            elif self._failed:
                self.exit("exception", 1)
            else:
                self.exit("normal", None)
            self._close()

        self._guarded(last_words)

    def _multiprocessing(self, module: types.ModuleType) -> None:
        """Children of multiprocessing: ``_bootstrap`` catches everything and returns the code.

        The exception is looked at on its way through ``_exit_function``, which runs in a
        ``finally``: a frame of ours around the child's function would show in its traceback.
        """
        from multiprocessing import util

        def make(original: types.FunctionType) -> Callable[..., Any]:
            def bootstrap(*args: Any, **kwargs: Any) -> Any:
                code = original(*args, **kwargs)
                self._guarded(lambda: self.exit("exception" if self._failed else "exit", code))
                return code

            return bootstrap

        def leaving(original: Callable[..., Any]) -> Callable[..., Any]:
            def _exit_function(*args: Any, **kwargs: Any) -> Any:
                self._guarded(lambda: self._on_its_way(sys.exc_info()[1]))
                return original(*args, **kwargs)

            return _exit_function

        engine = self._capture.engine
        engine.function(PART, module.BaseProcess._bootstrap, make)
        engine.value(PART, util, "_exit_function", leaving(util._exit_function))  # type: ignore[attr-defined]

    def _on_its_way(self, error: BaseException | None) -> None:
        """A child's function raised ``error``, or nothing."""
        if isinstance(error, SystemExit) and _is_torch_spawn(error):
            error = error.__context__  # torch's spawn caught it, wrote it down and leaves with 1
        if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)) or self._failed:
            return
        self._failed = True
        self.failure(error)


def _is_torch_spawn(error: SystemExit) -> bool:
    traceback = error.__traceback__
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") == "torch.multiprocessing.spawn"


def _from_traceback(traceback: types.TracebackType | None) -> list[tuple[str, int, str]]:
    """(file, line, function) of where an exception was raised, innermost first."""
    found: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        shown = frames(traceback.tb_frame, 1)
        # For a frame of ours `frames` gives its caller's, whose line is not this one's.
        if shown and (shown[0][0], shown[0][2]) == (code.co_filename, code.co_name):
            found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found[::-1]
