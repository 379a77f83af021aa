"""A thread that asks: what it calls may hang in a driver, and heartbeats must go on.

Its device is one that the process uses; it can break no capture, and is queried whether it lives.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from disttrace import foreign
from disttrace.journal.originals import Empty, Lock, SimpleQueue, local
from disttrace.recording import background

_T = TypeVar("_T")
_LIFE_S = 5.0  # without a question
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal, and HIP's
_FINE = (0, 600)  # success, not ready; HIP's too
_DEVICE_ERRORS = ("CUDA error", "HIP error", "CUDA driver error")


class Asker(Generic[_T]):
    """One question at a time; the thread is there while there are any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After fork, in the child: the thread is the parent's."""
        self._questions: SimpleQueue[Callable[[], _T]] = SimpleQueue()
        self._answers: SimpleQueue[_T | BaseException] = SimpleQueue()
        self._lock = Lock()
        self._running = False
        self.busy = False

    def ask(self, question: Callable[[], _T]) -> None:
        """Have ``question`` called in the thread; only while not ``busy``."""
        self.busy = True
        with self._lock:
            self._questions.put(question)
            if self._running:
                return
            self._running = True
        if not background.Thread(self._run, "disttrace-device").start():
            self._running = False

    def answer(self, timeout_s: float = 0.0) -> _T | None:
        """What the question gave, None while it is not there; raises what the question raised."""
        try:
            found = self._answers.get(timeout=timeout_s)
        except foreign.ours(Empty):
            return None
        self.busy = False
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self) -> None:
        while True:
            try:
                question = self._questions.get(timeout=_LIFE_S)
            except foreign.ours(Empty):
                with self._lock:
                    if self._questions.empty():
                        self._running = False
                        return
                continue
            try:
                self._answers.put(question())
            except BaseException as error:  # raised where the answer is taken
                self._answers.put(error)


class DeviceError(RuntimeError):
    """The device has failed: every call from now on raises that, and prints it."""


class AskingDevice:
    """What each asking thread needs once; threads come and go."""

    def __init__(self) -> None:
        self._of_thread = local()

    def enter(self) -> None:
        """Before a question that queries events. Raises DeviceError.

        An event of our own is queried first: after an error torch prints one message for every
        operation in flight, each time that it is queried.
        """
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        try:
            if not hasattr(self._of_thread, "event"):
                self._of_thread.event, self._of_thread.query = _bound(torch)
            if self._of_thread.event is not None:
                _ask(self._of_thread.event, self._of_thread.query)
        except RuntimeError as error:
            if is_of_device(error):
                raise DeviceError(foreign.text_of(error).partition("\n")[0]) from error
            raise


def is_of_device(error: BaseException) -> bool:
    """Whether a device's own failure was raised, after which nothing of it works."""
    text = foreign.text_of(error)
    return foreign.is_a(error, DeviceError) or any(each in text for each in _DEVICE_ERRORS)


def _ask(event: Any, query: Callable[..., int] | None) -> None:
    """Raises what torch does where the device has failed.

    While ``cudaFree`` waits for what hangs, a driver's lock lets no thread pass. Torch queries with
    the GIL held (2.5 at least), and all Python would stand still: the runtime is called without it.
    """
    if query is None or query(ctypes.c_void_p(event.cuda_event)) not in _FINE:
        event.query()


def _bound(torch: Any) -> tuple[Any, Callable[..., int] | None]:
    """Give this thread a device that the process uses, none of its own making; an event on it, and
    the runtime's function that queries it.

    A new thread's current device is the first of the host, where a context of some hundred
    megabytes would be made, by every rank.
    """
    for index in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(index):
            torch.cuda.set_device(index)
            # No query of this thread breaks another thread's capture, as in torch's own watchdog.
            exchange = _of_runtime(torch, "ThreadExchangeStreamCaptureMode")
            if exchange is not None:
                exchange(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))
            event = torch.cuda.Event()
            event.record(torch.cuda.Stream())  # torch makes an event when it is first recorded
            return event, _of_runtime(torch, "EventQuery")
    return None, None


def _of_runtime(torch: Any, name: str) -> Callable[..., int] | None:
    """A function of the runtime that torch has loaded; None where it has none of that name."""
    major = str(torch.version.cuda).split(".")[0]
    library, begins = f"libcudart.so.{major}", "cuda"
    if torch.version.hip:
        library, begins = "libamdhip64.so", "hip"
    try:
        return ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)[begins + name]
    except foreign.ours(OSError, AttributeError):
        return None
