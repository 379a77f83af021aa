"""The flight recorders of this process, when each is queried, and what is followed without one."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from disttrace import foreign
from disttrace.capture.devices import flight_recorder
from disttrace.capture.devices.flight_recorder import NATIVE, Ask
from disttrace.capture.objects.groups import GroupEntry, Groups
from disttrace.journal.format import ends_on_device
from disttrace.journal.originals import local
from disttrace.recording.background import SOON_NS
from disttrace.recording.operation import CallRecord, Operation
from disttrace.recording.recorder import Recorder

_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_EVENT_CACHE = "TORCH_NCCL_CUDA_EVENT_CACHE"
_FAILURES = 3  # one after another, within four seconds: nothing looks hung for that
_PAUSE_NS = 250_000_000  # after a failure, doubled by each
_LONGEST_PAUSE_NS = 60_000_000_000

UNSAFE = (
    f"When NCCL finishes an operation: with {_EVENT_CACHE}=0 this torch crashes when its flight "
    f"recorder is asked, so that is unknown (leave out {_EVENT_CACHE})."
)

SPOILT = (
    "When NCCL finishes an operation is unknown from now on: a CUDA graph holds a message or a "
    "coalesced operation, for which torch's flight recorder prints an error whenever it is asked."
)


@dataclass(slots=True)
class Channel:
    """A recorder, how it is queried, and when it will be again."""

    name: str
    ask: Ask | None
    sighted: bool = False  # it has held an entry
    off: bool = False
    active_due: int = 0
    full_due: int = 0
    moved: int = 0  # when something was issued or over
    failures: int = 0  # of questions, one after another
    noted: bool = False  # that one failed
    groups: set[str] = field(default_factory=set)  # names that its entries have for them
    # The begin of the newest operation known to be over, by stream of the device.
    reached: dict[tuple[int, bool], int] = field(default_factory=dict)

    def pausing(self) -> bool:
        """Asking fails, and what is issued meanwhile is in no answer in time."""
        return self.fails() and time.perf_counter_ns() < self.full_due

    def fails(self) -> bool:
        """Whether it has failed so often that what waits for it is given up."""
        return self.failures >= _FAILURES

    def failed(self) -> None:
        self.failures += 1
        pause = min(_PAUSE_NS << self.failures, _LONGEST_PAUSE_NS)
        self.active_due = self.full_due = time.perf_counter_ns() + pause


class Recorders:
    """Channels by name, made by ``source``; ``unsafe`` gets one that torch cannot query."""

    def __init__(
        self,
        groups: Groups,
        source: Callable[[str], Ask | None],
        unsafe: Callable[[Channel], None],
    ) -> None:
        self._groups, self._source, self._unsafe = groups, source, unsafe
        self.channels: dict[str, Channel] = {}
        self._by_group: dict[int | None, str | None] = {}
        self.blocking = is_on(_BLOCKING)  # waits block the host, and are the end

    def of(self, call: CallRecord) -> str | None:
        """The name of the recorder that the call's group writes to; None where there is none."""
        if call.group not in self._by_group:
            self._by_group[call.group] = self._resolve(self._groups.by_number(call.group))
        return self._by_group[call.group]

    def queried(self, call: CallRecord) -> str | None:
        """The same, where it is to be queried for completion."""
        name = self.of(call)
        return None if name == NATIVE and self.blocking else name

    def device(self, call: CallRecord) -> str | None:
        """The type of device that ends operations of the call's group."""
        entry = self._groups.by_number(call.group)
        backends = {} if entry is None else entry.backends
        return next((d for d, name in backends.items() if ends_on_device(name, d)), None)

    def channel(self, name: str) -> Channel:
        """The channel of that name, made when it is first needed."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(name, self._source(name))
            if name == NATIVE and not _safe():
                self._unsafe(channel)
        return channel

    def due_in_ns(self) -> int:
        """Until one may be queried; at most 0: now."""
        each = [c for c in list(self.channels.values()) if not c.off]
        soonest = min((min(c.active_due, c.full_due) for c in each), default=0)
        return soonest - time.perf_counter_ns() if each else SOON_NS

    def _resolve(self, entry: GroupEntry | None) -> str | None:
        for device, backend in () if entry is None else entry.backends.items():
            if entry is not None and ends_on_device(backend, device):
                kind = flight_recorder.implementation(entry.reference(), device)
                name = flight_recorder.recorder_of(backend, kind)
                known = name is not None and self.channel(name).ask is not None
                return name if known else None
        return None


def is_on(names: tuple[str, ...]) -> bool:
    """Whether any of these variables switches something on, as torch reads them."""
    values = [os.environ.get(name, "").lower() for name in names]
    return any(value in ("1", "true", "yes", "on", "y", "t") for value in values)


def spoils(call: CallRecord, *, batched: bool) -> bool:
    """Whether NCCL's own recorder keeps an entry of such a call that a graph captures, with an
    event of the graph: to query that prints an error at each dump, and up to torch 2.7 raises it.
    Of other captured calls it keeps none, or one without events.
    """
    return (call.op in ("send", "recv") and not batched) or call.op.endswith("_coalesced")


def blind() -> str:
    """The sentence for a recorder that is off; true for this torch."""
    return (
        "When NCCL finishes an operation: torch's flight recorder is off, so that is unknown "
        f"({flight_recorder.advice()})."
    )


def _safe() -> bool:
    """From torch 2.6 to 2.14 a dump queries events that others may free, unless they are cached."""
    cache = os.environ.get(_EVENT_CACHE, "").lower()
    if cache not in ("0", "false", "no", "off", "n", "f"):
        return True
    import torch._C._distributed_c10d as c10d

    return hasattr(c10d, "ProcessGroupNCCL2") or flight_recorder.off_by_default()


_HELD = 256  # works of backends without a recorder, which are all that can be queried
_clock = time.perf_counter_ns
_Device = tuple[str, int]


class Followed:
    """Operations of which only a Work shows when they are over, and those that a wait ends: of
    backends without a flight recorder, of batches whose entries are complete when they are issued,
    and of NCCL where waits block the host. ``unknown`` gets those whose end is not to be known.
    """

    def __init__(self, recorder: Recorder, unknown: Callable[[Operation], None]) -> None:
        self._recorder, self._unknown = recorder, unknown
        self._of_thread = local()
        self.forget()

    def forget(self) -> None:
        self._works: dict[int, tuple[Operation, Callable[[], bool], int, _Device | None]] = {}
        # Until a wait that blocks the host, or the Work is dropped.
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
        """Its wait will be the end; whether a wait is possible."""
        if work is None:
            self._unknown(operation)
            return False
        self._waiting[operation.n] = operation, weakref.ref(work)
        return True

    def waited(self, operation: Operation) -> None:
        self._waiting.pop(operation.n, None)
        self._recorder.end(operation)

    def notice_dropped(self) -> None:
        """No wait can come any more."""
        for n, (operation, work) in list(self._waiting.items()):
            if work() is None and self._waiting.pop(n, None) is not None:
                self._unknown(operation)

    def ask(self) -> None:
        """Ask every Work, on the device of the thread that issued its operation."""
        for n, (operation, over, seen, device) in list(self._works.items()):
            now = _clock()
            try:
                self._bind(device)
                complete = operation.ended or over()
            except foreign.ours(Exception):  # the backend does not know
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
    """The calling thread's device of that kind; None where torch has none, or none is in use."""
    module = None if kind is None else getattr(sys.modules.get("torch"), kind, None)
    if kind is None or module is None or not foreign.attempt(lambda: module.is_initialized()):
        return None
    number = foreign.attempt(lambda: int(module.current_device()))
    return None if number is None else (kind, number)
