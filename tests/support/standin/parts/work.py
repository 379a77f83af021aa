"""What a call gives: its wait orders streams."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import DistBackendError

from .semantics import BLOCKING_WAIT
from .streams import STREAMS, Operation
from .wire import start


class StandInWork(Work):
    """Its wait orders streams; it is complete when the operation is."""

    def __init__(self, group: Any, operation: Operation, tensors: Any) -> None:
        super().__init__()
        self._group = group
        self._operation, self._tensors = operation, tensors

    def wait(self, timeout: Any = None) -> bool:
        if BLOCKING_WAIT and not self._operation.done.wait(self._group.timeout_s):
            self._group.abort_all()
            raise DistBackendError("Watchdog caught collective operation timeout")
        STREAMS.order(self._operation)
        if _read_by_cxx(sys._getframe(1)):
            self._operation.done.wait()
        return True

    def is_completed(self) -> bool:
        return self._operation.done.is_set()

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()

        def tell() -> None:
            self._operation.done.wait()
            future.set_result(self._tensors)

        start(tell)
        return future

    def result(self) -> Any:
        return self._tensors


def _read_by_cxx(frame: Any) -> bool:
    """Whether C++ waits, of which DDP reads the result on the host: torch called it, and not by
    the functions of ``torch.distributed`` that wait for a synchronous call.
    """
    while frame is not None and "disttrace" in frame.f_code.co_filename:
        frame = frame.f_back
    home = os.path.dirname(torch.__file__)
    file = frame.f_code.co_filename if frame is not None else ""
    return file.startswith(home) and not file.endswith("distributed_c10d.py")
