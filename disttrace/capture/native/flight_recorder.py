"""When a device has finished an operation, on backends that only enqueue it (NCCL and its kin).

There a call returns, and a wait orders streams, long before anything has happened. What is still
running is asked of torch's flight recorder, which queries the events it keeps anyway: nothing is
synchronised, and no Work is held. An entry belongs to the operation in whose call it was made.
"""

from __future__ import annotations

import bisect
import functools
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from disttrace.capture.wrapping.context import Capture
from disttrace.recording.operation import Operation

PART = "completion on devices"

BUFFER = "TORCH_NCCL_TRACE_BUFFER_SIZE"
BLIND = (
    "When NCCL finishes an operation: torch's flight recorder is off, so operations end when their "
    f"call returns (set {BUFFER}=2000)."
)
DUMPS = ("_dump_nccl_trace", "_dump_xccl_trace")
_TIMING = "TORCH_NCCL_ENABLE_TIMING"
_COMPLETED = "completed"
_SLACK = 2_000  # ns between two clocks read at the same moment
_SHARE = 50  # at most one part in so many of a thread's time goes into asking

_clock = time.perf_counter_ns
Dump = Callable[[bool], list[dict[str, Any]]]


def install(capture: Capture) -> None:
    """Follow what devices do, where this torch has a flight recorder for them."""
    import torch._C._distributed_c10d as c10d

    dumps = [getattr(c10d, name) for name in DUMPS if hasattr(c10d, name)]
    if not dumps:
        return
    timed = os.environ.get(_TIMING, "").lower() in ("1", "true", "yes", "on", "y", "t")
    device = DeviceOperations(capture, functools.partial(_entries, dumps[0]), timed=timed)
    capture.works.on_device = device.add
    capture.pollers.append(device.poll)
    capture.on_fork.append(device.forget)
    capture.engine.on_undo(PART, "the flight recorder's poller", functools.partial(_stop, capture))
    capture.when_imported("torch.cuda.graphs", functools.partial(_watch_captures, capture, device))


def _entries(dump: Callable[..., bytes], active: bool) -> list[dict[str, Any]]:
    """The flight recorder's entries: all of them, or those that are not completed."""
    # It is torch of this very process that pickled them.
    told: dict[str, Any] = pickle.loads(
        dump(includeCollectives=True, includeStackTraces=False, onlyActive=active)
    )
    entries: list[dict[str, Any]] = told.get("entries", [])
    return entries


def _stop(capture: Capture) -> None:
    capture.works.on_device = capture.works.ends_here
    capture.pollers[:] = [
        p for p in capture.pollers if not isinstance(getattr(p, "__self__", None), DeviceOperations)
    ]


@dataclass(slots=True)
class _Running:
    """An operation, and the interval in which the flight recorder made its entry."""

    operation: Operation
    since: int
    until: int
    seen: int  # when it was last seen running


class DeviceOperations:
    """Operations that were issued and not seen finished. ``dump`` gives entries (True: active)."""

    def __init__(self, capture: Capture, dump: Dump, *, timed: bool) -> None:
        self.capturing: set[int] = set()  # CUDA graphs: a query from elsewhere breaks a capture
        self._recorder = capture.recorder
        self._wake = capture.wake
        self._dump = dump
        self._timed = timed
        self._open: dict[int, _Running] = {}
        self._sighted: bool | None = None  # whether the flight recorder is on; not known yet
        self._next = 0

    def add(self, operation: Operation, call: tuple[int, int] | None) -> None:
        """``operation`` was issued, by ``call`` (begin and end, absolute) if not by its own."""
        if self._sighted is False:
            self._recorder.end(operation)
        elif operation.n in self._recorder.in_flight and operation.n not in self._open:
            since, until = call or (operation.begin, operation.begin + operation.issued)
            self._open[operation.n] = _Running(operation, since, until, until)
            self._wake()

    def poll(self) -> bool:
        """Look for operations that are finished; whether others run."""
        if not self._open or self.capturing:
            return bool(self._open)
        now = _clock()
        if now < self._next:
            return True
        open_now = list(self._open.values())
        full = self._timed or self._sighted is None
        entries = self._dump(not full)
        asked = _clock()
        self._next = asked + _SHARE * (asked - now)
        if self._sighted is None:
            self._sighted = bool(entries)
            if not entries:
                self._give_up(open_now)
                return False
        self._compare(open_now, entries, asked)
        return bool(self._open)

    def forget(self) -> None:
        """After fork, in the child: what is in flight is the parent's."""
        self._open.clear()
        self.capturing.clear()

    def _compare(self, running: list[_Running], entries: list[dict[str, Any]], now: int) -> None:
        offset = time.time_ns() - _clock()  # entries carry unix time
        entries = sorted(entries, key=_created)
        times = [_created(entry) - offset for entry in entries]
        for each in running:
            first = bisect.bisect_left(times, each.since - _SLACK)
            last = bisect.bisect_right(times, each.until + _SLACK)
            own = entries[first:last]
            if any(entry.get("state") != _COMPLETED for entry in own):
                each.seen = now
            else:
                del self._open[each.operation.n]
                self._recorder.completed(
                    each.operation, gap=max(0, now - each.seen), duration=_duration(own)
                )

    def _give_up(self, running: list[_Running]) -> None:
        """Nobody can say when the device has finished: the return of the call must do."""
        self._recorder.note("note", text=BLIND)
        for each in running:
            self._recorder.end(each.operation)
        self._open.clear()


def _created(entry: dict[str, Any]) -> int:
    return int(entry.get("time_created_ns", 0))


def _duration(entries: list[dict[str, Any]]) -> int | None:
    """The backend's own duration in ns, where it measures it and only one entry can be meant."""
    duration = entries[0].get("duration_ms") if len(entries) == 1 else None
    return None if duration is None else round(float(duration) * 1e6)


def _watch_captures(capture: Capture, device: DeviceOperations, module: Any) -> None:
    """Ask nothing while a CUDA graph is captured."""

    def door(begins: bool, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if begins:
                device.capturing.add(id(self))
            over = True
            try:
                result = original(self, *args, **kwargs)
                over = not begins
                return result
            finally:
                if over:
                    device.capturing.discard(id(self))

        return method

    for name, begins in (
        ("capture_begin", True),
        ("capture_end", False),
        ("capture_end_post", False),
    ):
        door_of = functools.partial(door, begins)
        capture.engine.attribute(PART, module.CUDAGraph, name, door_of)
