"""Operations of which only a Work tells when they are over, and those that a wait ends.

Backends without a flight recorder, batches whose entries are complete when they are issued, and
NCCL where waits block the host.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from disttrace import errors
from disttrace.journal.originals import local
from disttrace.recording.operation import Operation
from disttrace.recording.recorder import Recorder

_HELD = 256  # works of backends without a recorder, which are all that can be asked
_clock = time.perf_counter_ns
_Device = tuple[str, int]


class Followed:
    """``unknown`` is told of operations of which nobody will say when they are over."""

    def __init__(self, recorder: Recorder, unknown: Callable[[Operation], None]) -> None:
        self._recorder, self._unknown = recorder, unknown
        self._of_thread = local()
        self.forget()

    def forget(self) -> None:
        """At first, and after fork in the child."""
        self._works: dict[int, tuple[Operation, Callable[[], bool], int, _Device | None]] = {}
        # Until a wait that blocks the host, or nobody holds the Work.
        self._waiting: dict[int, tuple[Operation, weakref.ref[Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._works or self._waiting)

    def __contains__(self, operation: Operation) -> bool:
        return operation.n in self._works

    def hold(self, operation: Operation, over: Callable[[], bool] | None, kind: str | None) -> bool:
        """Only ``over``, of a Work or an event, tells, and is held until it does; whether it is.

        ``kind``: of device.
        """
        if over is None or len(self._works) >= _HELD:
            self._unknown(operation)
            return False
        self._works[operation.n] = (operation, over, _clock(), _device(kind))
        return True

    def await_wait(self, operation: Operation, work: Any) -> bool:
        """Its wait will be the end; whether anybody can wait."""
        if work is None:
            self._unknown(operation)
            return False
        self._waiting[operation.n] = operation, weakref.ref(work)
        return True

    def waited(self, operation: Operation) -> None:
        """That wait returned."""
        self._waiting.pop(operation.n, None)
        self._recorder.end(operation)

    def notice_dropped(self) -> None:
        """Nobody can wait any more."""
        for n, (operation, work) in list(self._waiting.items()):
            if work() is None and self._waiting.pop(n, None) is not None:
                self._unknown(operation)

    def ask(self) -> None:
        """Ask every Work, on the device of whoever issued its operation."""
        for n, (operation, over, seen, device) in list(self._works.items()):
            now = _clock()
            try:
                self._bind(device)
                complete = operation.ended or over()
            except Exception as error:  # the backend cannot say it
                if not errors.is_ours(error):
                    raise
                del self._works[n]
                self._unknown(operation)
                continue
            if not complete:
                self._works[n] = (operation, over, now, device)
            else:
                del self._works[n]
                if not operation.ended:
                    self._recorder.completed(operation, gap=max(0, now - seen))

    def _bind(self, device: _Device | None) -> None:
        """A thread of ours has no device: its questions would make a context on the first one."""
        if device is not None and getattr(self._of_thread, "device", None) != device:
            getattr(sys.modules["torch"], device[0]).set_device(device[1])
            self._of_thread.device = device


def _device(kind: str | None) -> _Device | None:
    """The calling thread's device of that kind; None where torch has no module for it, or nothing
    has used it yet."""
    module = None if kind is None else getattr(sys.modules.get("torch"), kind, None)
    if kind is None or module is None or not errors.asked(lambda: module.is_initialized()):
        return None
    number = errors.asked(lambda: int(module.current_device()))
    return None if number is None else (kind, number)
