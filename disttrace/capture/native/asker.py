"""A thread that asks: what it calls may hang in a driver, and heartbeats must go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from disttrace.recording import background

_T = TypeVar("_T")
_LIFE_S = 5.0  # without a question
_NAME = "disttrace-device"


class Asker(Generic[_T]):
    """One question at a time; the thread is there while there are any."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After fork, in the child: the thread is the parent's."""
        self._questions: queue.SimpleQueue[Callable[[], _T]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_T | BaseException] = queue.SimpleQueue()
        self._lock = threading.Lock()
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
        try:
            background.start(threading.Thread(target=self._run, name=_NAME, daemon=True))
        except RuntimeError:  # no more threads, or the interpreter is about to finalize
            self._running = False

    def answer(self, timeout_s: float = 0.0) -> _T | None:
        """What the question gave, None while it is not there; raises what the question raised."""
        try:
            found = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.busy = False
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self) -> None:
        while True:
            try:
                question = self._questions.get(timeout=_LIFE_S)
            except queue.Empty:
                with self._lock:
                    if self._questions.empty():
                        self._running = False
                        return
                continue
            try:
                self._answers.put(question())
            except BaseException as error:  # raised where the answer is taken
                self._answers.put(error)
