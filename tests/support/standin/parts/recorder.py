"""The entries of the last operations, dumped as torch dumps its own."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
import time
from typing import Any

from .semantics import CHOSEN
from .streams import DEVICE_ERROR, Operation


class FlightRecorder:
    """The entries of the last operations, dumped as torch dumps its own."""

    def __init__(self) -> None:
        sizes = (os.environ.get(f"TORCH_{name}_BUFFER_SIZE") for name in ("FR", "NCCL_TRACE"))
        self._size = int(next(filter(None, sizes), CHOSEN.entries))
        self.lock = threading.Lock()
        self._entries: list[tuple[dict[str, Any], Operation]] = []
        self._next = itertools.count()
        self._timed = os.environ.get("TORCH_NCCL_ENABLE_TIMING") == "1"

    def record(self, group: Any, operation: Operation) -> None:
        if self._size <= 0:
            return
        with self.lock:
            entry: dict[str, Any] = {
                "record_id": next(self._next),
                "pg_id": group.number,
                "process_group": (group.label, group.description),
                "collective_seq_id": operation.seq if not operation.p2p else 0,
                "p2p_seq_id": operation.seq if operation.p2p else 0,
                "op_id": operation.seq,
                "profiling_name": f"nccl:{operation.name}",
                "time_created_ns": time.time_ns(),
                "timeout_ms": int(group.timeout_s * 1e3),
                # As torch's: what bears a launch's state has the messages' numbers, and is none.
                "is_p2p": operation.p2p and operation.name != "coalesced",
            }
            if CHOSEN.tells_threads:
                entry["thread_id"] = str(threading.get_ident())
                entry["thread_name"] = threading.current_thread().name
            self._entries.append((entry, operation))
            del self._entries[: -self._size]

    def dump(self, *, active: bool) -> bytes:
        told = []
        with self.lock:
            entries = list(self._entries)
        for entry, operation in entries:
            over = operation.done.is_set()
            if DEVICE_ERROR and not CHOSEN.hooked and not over:
                sys.stderr.write(f"Failed to update state for entry {entry['record_id']}\n")
            if over and active:
                continue
            told.append(
                {
                    **entry,
                    "state": "completed" if over else "scheduled",
                    "retired": over,
                    "time_discovered_completed_ns": operation.over_ns if over else None,
                }
            )
            if over and self._timed and operation.began:
                told[-1]["duration_ms"] = (operation.over - operation.began) / 1e6
        return pickle.dumps({"version": "2.10", "entries": told})


RECORDER = FlightRecorder()


def _reset() -> None:
    RECORDER.lock = threading.Lock()


os.register_at_fork(after_in_child=_reset)


def dump(
    includeCollectives: bool = True,  # noqa: N803
    includeStackTraces: bool = True,  # noqa: N803
    onlyActive: bool = False,  # noqa: N803
    backend: str = "gloo",
) -> bytes:
    if CHOSEN.hooked and backend != CHOSEN.backend:
        return pickle.dumps({"version": "2.10", "entries": []})
    return RECORDER.dump(active=onlyActive)
