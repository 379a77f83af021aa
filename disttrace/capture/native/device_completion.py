"""When a device has finished an operation, on backends that only enqueue it (NCCL and its kin).

There a call returns, and a wait orders streams, long before anything has happened. What still runs
is asked of torch's flight recorders, or of the Work where a backend writes to none. An operation is
bound to its entries once, by thread, group and time, and is over only when they say so, or when
they say so of a younger one of the same stream; what cannot be known is recorded as unknown.

Longer than most files: what is asked, when, and what follows from the answer belong together.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from disttrace import errors
from disttrace.capture.native import flight_recorder, matching
from disttrace.capture.native.asker import Asker, AskingDevice, is_of_device
from disttrace.capture.native.flight_recorder import (
    NATIVE,
    QUERIED,
    Answer,
    Ask,
    Question,
    Record,
    unix_offset,
)
from disttrace.capture.native.graph_captures import GraphCaptures
from disttrace.capture.native.matching import Entries, Running, State
from disttrace.capture.objects.works import Unwatched
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import before
from disttrace.journal.format import ends_on_device
from disttrace.recording.operation import Call, Operation

PART = "completion on devices"

_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", "TORCH_NCCL_DESYNC_DEBUG")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_EVENT_CACHE = "TORCH_NCCL_CUDA_EVENT_CACHE"
# Of TORCH_NCCL_ASYNC_ERROR_HANDLING: with these the watchdog aborts, and what hung looks complete.
_ABORTING = ("1", "2")

_SHARE = 50  # at most one part in so many of a thread's time goes into asking
_SHARE_HELD = 200  # the same where the GIL is held meanwhile
_ACTIVE_NS = 20_000_000
_FULL_NS = 100_000_000
_RARELY_NS = 1_000_000_000  # where nothing has moved for long
_RETIRED_NS = 1_000_000_000  # the backend's own duration comes when its entry is retired
_LAST_LOOK_S = 1.0
_BEFORE_ABORT_S = 0.5
_MISSES = 2
_FAILURES = 3  # one after another, within four seconds: nothing looks hung for that
_PAUSE_NS = 250_000_000  # after a failure, doubled by each
_LONGEST_PAUSE_NS = 60_000_000_000
_HELD = 256  # works of backends without a recorder, which are all that can be asked

_clock = time.perf_counter_ns
_ABORTED = RuntimeError("the process group was aborted before the device had finished")
_TIMED_OUT = RuntimeError("aborted by the watchdog after the time-out of the group")


def install(capture: Capture) -> None:
    """Follow what devices do, as far as the backends of this torch tell it.

    Where that is switched off nothing is asked of torch or of a device, in any thread: what stays
    in place says that nobody knows when an operation is over.
    """
    if not capture.asks_devices:
        return
    from torch._C._distributed_c10d import Backend, ProcessGroup

    device = DeviceOperations(capture, flight_recorder.source)
    unwatched, capture.works.device = capture.works.device, device
    capture.engine.on_undo(PART, "devices", lambda: setattr(capture.works, "device", unwatched))
    capture.on_fork.append(device.forget)
    capture.poll(PART, device.poll, functools.partial(device.look, _LAST_LOOK_S))
    watch_captures = functools.partial(device.captures.watch, capture, PART)
    capture.when_imported("torch.cuda.graphs", watch_captures)

    def aborting(group: Any, *args: Any, **kwargs: Any) -> None:
        """It makes every operation look complete: what had not been before has failed."""
        device.aborting(capture.groups.of(group).n)

    for owner in (ProcessGroup, Backend, *Backend.__subclasses__()):
        for name in ("abort", "_abort"):
            capture.engine.attribute(PART, owner, name, before(capture, PART, aborting))


def _on(names: tuple[str, ...]) -> bool:
    values = [os.environ.get(name, "").lower() for name in names]
    return any(value in ("1", "true", "yes", "on", "y", "t") for value in values)


@dataclass(slots=True)
class _Channel:
    """A recorder, how it is asked, and when it will be asked again."""

    name: str
    ask: Ask | None
    sighted: bool = False  # it has held an entry
    off: bool = False
    active_due: int = 0
    full_due: int = 0
    moved: int = 0  # when something was issued or over
    failures: int = 0  # of questions, one after another
    noted: bool = False  # that one failed
    # The begin of the newest operation known to be over, by stream of the device.
    reached: dict[tuple[int, bool], int] = field(default_factory=dict)

    def pausing(self) -> bool:
        """Asking fails, and what is issued meanwhile is in no answer in time."""
        return self.failures >= _FAILURES and _clock() < self.full_due


# None: it was not asked, for a graph is being captured. An exception: asking raised it.
_Found = tuple[_Channel, "Answer | Exception | None"]


class DeviceOperations(Unwatched):
    """Operations that were issued and not seen finished. ``source`` says how to ask a recorder."""

    def __init__(
        self, capture: Capture, source: Callable[[str], Ask | None], *, asker: Any = None
    ) -> None:
        super().__init__(capture.recorder)
        self.captures = GraphCaptures()
        self._capture = capture
        self._source = source
        self._asker: Asker[_Found] = asker or Asker()
        self._device = AskingDevice()
        self._timed = _on(_TIMING) or os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"
        self._blocking = _on(_BLOCKING)
        self._aborting = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") in _ABORTING
        self._channels: dict[str, _Channel] = {}
        self._recorders: dict[int | None, str | None] = {}  # by group
        self.forget()

    def forget(self) -> None:
        """At first, and after fork in the child: what is in flight is the parent's."""
        self._open: dict[int, Running] = {}
        self._works: dict[int, tuple[Operation, Any, int]] = {}
        # Until a wait that blocks the host, or nobody holds the Work.
        self._waiting: dict[int, tuple[Operation, weakref.ref[Any]]] = {}
        self._looking = threading.Lock()
        self.captures.forget()
        self._asker.forget()

    # -- what is issued ----------------------------------------------------------------------

    def add(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        if operation.ended or operation.n in self._open:
            return
        if self.captures.here():
            self._recorder.end(operation)  # it runs when the graph is replayed, and is not recorded
            return
        name = self._recorder_of(operation.call)
        if name is None or (call is not None and name not in QUERIED):
            # A hook's recorder takes what was coalesced for complete when it is issued: only the
            # Work of all knows.
            self._follow(operation, work)
        elif name == NATIVE and self._blocking:
            if work is None:
                self._unknown(operation)  # its wait would have been the end, and nobody can wait
            else:
                self._waiting[operation.n] = operation, weakref.ref(work)
                self._capture.wake()
        elif (channel := self._channel(name)).off or channel.pausing():
            self._unknown(operation)
        else:
            self._open[operation.n] = self._running(operation, name, call)
            channel.moved = _clock()
            self._capture.wake()

    def waited(self, operation: Operation, work: Any) -> None:
        """Says something only where the wait blocks the host."""
        in_flight = not operation.ended
        if in_flight and self._blocking and self._recorder_of(operation.call) == NATIVE:
            self._waiting.pop(operation.n, None)
            self._recorder.end(operation)
        elif operation.n not in self._works:
            self.add(operation, None, work)

    def by_recorder(self, call: Call) -> bool:
        name = self._recorder_of(call)
        return name is not None and not (name == NATIVE and self._blocking)

    def aborting(self, group: int) -> None:
        """The group is about to be aborted: what is not over by now never will be."""
        if not any(each.operation.call.group == group for each in self._open.values()):
            return
        self.look(_BEFORE_ABORT_S)
        for each in [e for e in self._open.values() if e.operation.call.group == group]:
            self._fail(each, _ABORTED)

    # -- asking ------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Look for operations that are finished; whether others run."""
        self._notice_dropped()
        self._ask_works()
        if self._open:
            with self._looking:
                try:
                    self._take(0.0)
                    self._ask_due()
                    self._take(0.0)
                except BaseException:
                    for each in list(self._open.values()):
                        self._lost(each)
                    raise
        return bool(self._open or self._works or self._waiting)

    def look(self, timeout_s: float) -> None:
        """Ask every recorder for all it has, and wait for the answer, but not for long."""
        self._ask_works()
        with self._looking:
            self._take(timeout_s)
            for name in {each.recorder for each in self._open.values()}:
                if not self._asker.busy:
                    self._ask(self._channels[name], active=False)
                    self._take(timeout_s)

    def _ask_due(self) -> None:
        now = _clock()
        by_recorder: dict[str, list[Running]] = {}
        for each in list(self._open.values()):
            if not each.stale:
                by_recorder.setdefault(each.recorder, []).append(each)
        for name, waiting in by_recorder.items():
            channel = self._channels[name]
            if self._asker.busy:
                return
            unsure = self._timed or any(not each.confirmed or each.gone for each in waiting)
            if unsure and now >= channel.full_due:
                self._ask(channel, active=False)
            elif now >= channel.active_due:
                self._ask(channel, active=True)

    def _ask(self, channel: _Channel, *, active: bool) -> None:
        mine = [each for each in self._open.values() if each.recorder == channel.name]
        earliest = min((each.windows[0][0] for each in mine if not each.entries), default=1 << 62)
        lowest = min((number for each in mine for number, _ in each.entries), default=1 << 62)
        question = Question(active, earliest - 1_000_000, lowest)
        ask = channel.ask
        assert ask is not None

        def put() -> _Found:
            try:
                if channel.name not in QUERIED:
                    return channel, ask(question)
                return channel, self.captures.query(lambda: self._query(ask, question))
            except Exception as error:
                return channel, error

        self._asker.ask(put)

    def _query(self, ask: Ask, question: Question) -> Answer:
        self._device.enter()
        return ask(question)

    def _take(self, timeout_s: float) -> None:
        if not self._asker.busy:
            return
        found = self._asker.answer(timeout_s)
        if found is None:
            return
        (channel, answer), now = found, _clock()
        if answer is None:
            channel.active_due = now + _ACTIVE_NS
            return
        if isinstance(answer, Exception):
            self._refused(channel, answer)
            return
        channel.failures = 0
        quiet = min(_RARELY_NS, (now - channel.moved) // _SHARE)
        held = channel.ask is not None and not flight_recorder.frees_gil(channel.ask)
        self._compare(channel, answer)
        compared = _clock() - now
        share = (_SHARE_HELD if held and answer.full else _SHARE) * (answer.answered - answer.asked)
        share += _SHARE * (answer.read - answer.answered + compared)  # what follows takes its time
        channel.active_due = now + max(_ACTIVE_NS, quiet, 0 if answer.full else share)
        if answer.full:
            channel.full_due = now + max(_FULL_NS, share)

    def _refused(self, channel: _Channel, error: Exception) -> None:
        """Asking raised: again after a pause that grows. A device that failed is asked no more.

        What was issued stays in flight for some seconds only: it is not known to hang.
        """
        what = errors.first_line(error)
        if is_of_device(error):
            self._switch_off(channel, f"When devices finish is unknown from now on: {what}")
            return
        channel.failures += 1
        pause = min(_PAUSE_NS << channel.failures, _LONGEST_PAUSE_NS)
        channel.active_due = channel.full_due = _clock() + pause
        if not channel.noted:
            channel.noted = True
            recorder = f"torch's flight recorder '{channel.name}'"
            self._recorder.note("note", text=f"asking {recorder} failed, is tried again: {what}")
        if channel.failures >= _FAILURES:
            for each in [e for e in self._open.values() if e.recorder == channel.name]:
                self._lost(each)

    # -- what the answer says ----------------------------------------------------------------

    def _compare(self, channel: _Channel, answer: Answer) -> None:
        asked = [
            each
            for each in self._open.values()
            if each.recorder == channel.name and each.until <= answer.asked
        ]
        channel.sighted = channel.sighted or not answer.empty
        if not channel.sighted and answer.full and asked:
            self._switch_off(channel)
            return
        claimed = (key for each in self._open.values() for key in each.entries)
        entries = matching.Entries(answer.records.values(), claimed)
        for each in sorted(asked, key=lambda one: one.operation.begin):
            if each.operation.ended:
                self._open.pop(each.operation.n, None)  # a wait that raised has ended it
            elif answer.full:
                self._judge(channel, each, answer, entries)
            else:
                self._still_active(each, answer, entries)
        if answer.full:
            self._younger_is_over(channel, asked, answer)

    def _still_active(self, each: Running, answer: Answer, entries: Entries) -> None:
        if not each.entries:
            each.entries = entries.claim(each)
        if any(key in answer.records for key in each.entries):
            each.seen, each.gone = answer.asked, 0
        elif not each.gone:
            each.gone = answer.answered

    def _judge(self, channel: _Channel, each: Running, answer: Answer, entries: Entries) -> None:
        if not each.confirmed:
            found = entries.claim(each)
            if found:
                each.entries, each.confirmed = found, True
            else:
                each.misses += 1
        said = matching.state(each, answer.records)
        if said is State.RUNNING:
            each.seen, each.gone = answer.asked, 0
        elif said is State.COMPLETED:
            self._completed(channel, each, answer)
        elif each.confirmed and all(key in answer.records for key in each.entries):
            self._lost(each)  # the recorder itself does not know
        elif each.entries:
            each.stale = True  # overwritten, or the recorder was reset: it may run for ever

    def _younger_is_over(self, channel: _Channel, asked: list[Running], answer: Answer) -> None:
        """A device executes the operations of a stream in order."""
        for each in asked:
            if each.operation.n not in self._open:
                continue
            if each.stream is not None and each.until <= channel.reached.get(each.stream, -1):
                self._end(each, answer.answered, None)
            elif each.misses >= _MISSES and not each.entries:
                self._lost(each)

    def _completed(self, channel: _Channel, each: Running, answer: Answer) -> None:
        records = [answer.records[key] for key in each.entries]
        only = records[0] if len(records) == 1 else None
        late = self._timed and only is not None and only.duration_ms is None and not only.retired
        if late and answer.answered - each.until < _RETIRED_NS:
            each.gone = each.gone or answer.answered
            return
        if self._aborting and any(map(_timed_out, records)):
            self._fail(each, _TIMED_OUT)
            return
        if each.stream is not None:
            reached = channel.reached.get(each.stream, -1)
            channel.reached[each.stream] = max(reached, each.operation.begin)
        at = each.gone or answer.answered
        told = [r.discovered - answer.offset for r in records if r.discovered is not None]
        if len(told) == len(records):  # torch's own watchdog may have seen it before us
            at = min(at, max(each.seen, each.until, *told))
        duration = only.duration_ms if only is not None else None
        channel.moved = answer.answered
        self._end(each, at, None if duration is None else round(duration * 1e6))

    # -- on record ---------------------------------------------------------------------------

    def _end(self, each: Running, at: int, duration: int | None) -> None:
        self._open.pop(each.operation.n, None)
        gap = max(0, at - each.seen)
        self._recorder.completed(each.operation, gap=gap, duration=duration, at=at)

    def _lost(self, each: Running) -> None:
        self._open.pop(each.operation.n, None)
        self._unknown(each.operation)

    def _fail(self, each: Running, error: BaseException) -> None:
        self._open.pop(each.operation.n, None)
        self._recorder.failed(each.operation, error, on_issue=False)

    def _unknown(self, operation: Operation) -> None:
        """When it is over cannot be known; it need not be a hang."""
        if not operation.ended:
            self._recorder.lost(operation, asked=True)

    def _notice_dropped(self) -> None:
        for n, (operation, work) in list(self._waiting.items()):
            if work() is None and self._waiting.pop(n, None) is not None:
                self._unknown(operation)

    def _switch_off(self, channel: _Channel, why: str | None = None) -> None:
        """Nobody can say when the device has finished: that is on record, once."""
        channel.off = True
        self._recorder.note("note", text=why or blind())
        for each in [e for e in self._open.values() if e.recorder == channel.name]:
            self._lost(each)

    # -- backends without a recorder ---------------------------------------------------------

    def _follow(self, operation: Operation, work: Any) -> None:
        """Only its Work can tell, so it is held until it does."""
        if work is None or len(self._works) >= _HELD:
            self._unknown(operation)
        else:
            self._works[operation.n] = (operation, work, _clock())
            self._capture.wake()

    def _ask_works(self) -> None:
        if self.captures.any():
            return
        for n, (operation, work, seen) in list(self._works.items()):
            now = _clock()
            try:
                complete = operation.ended or self._capture.works.is_completed(work)
            except Exception:  # the backend cannot say it
                del self._works[n]
                self._unknown(operation)
                continue
            if not complete:
                self._works[n] = (operation, work, now)
            else:
                del self._works[n]
                if not operation.ended:
                    self._recorder.completed(operation, gap=max(0, now - seen))

    # -- which recorder ----------------------------------------------------------------------

    def _running(self, operation: Operation, name: str, call: tuple[int, int] | None) -> Running:
        offset, error = unix_offset()
        calls = [(operation.begin, operation.begin + operation.issued)]
        if call is not None:
            calls.append(call)
        entry = self._capture.groups.by_number(operation.call.group)
        counter = operation.call.counter
        return Running(
            operation=operation,
            recorder=name,
            windows=tuple((b + offset - error, e + offset + error) for b, e in calls),
            until=calls[-1][1],
            thread=threading.get_ident(),
            group=entry.keys.get("name") if entry is not None else None,
            stream=None if counter is None else (id(counter), call is not None),
            seen=calls[-1][1],
        )

    def _recorder_of(self, call: Call) -> str | None:
        if call.group not in self._recorders:
            self._recorders[call.group] = self._resolve(call.group)
        return self._recorders[call.group]

    def _resolve(self, number: int | None) -> str | None:
        entry = self._capture.groups.by_number(number)
        if entry is None:
            return None
        for device, backend in entry.backends.items():
            if ends_on_device(backend, device):
                kind = flight_recorder.implementation(entry.reference(), device)
                name = flight_recorder.recorder_of(backend, kind)
                known = name is not None and self._channel(name).ask is not None
                return name if known else None
        return None

    def _channel(self, name: str) -> _Channel:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = _Channel(name, self._source(name))
            if name == NATIVE and not _safe():
                self._switch_off(channel, UNSAFE)
        return channel


def blind() -> str:
    """What is said where a recorder is off; true for this torch."""
    return (
        "When NCCL finishes an operation: torch's flight recorder is off, so that is unknown "
        f"({flight_recorder.advice()})."
    )


UNSAFE = (
    f"When NCCL finishes an operation: with {_EVENT_CACHE}=0 this torch crashes when its flight "
    f"recorder is asked, so that is unknown (leave out {_EVENT_CACHE})."
)


def _safe() -> bool:
    """From torch 2.6 to 2.14 a dump queries events that others may free, unless they are cached."""
    cache = os.environ.get(_EVENT_CACHE, "").lower()
    if cache not in ("0", "false", "no", "off", "n", "f"):
        return True
    import torch._C._distributed_c10d as c10d

    return hasattr(c10d, "ProcessGroupNCCL2") or flight_recorder.off_by_default()


def _timed_out(record: Record) -> bool:
    """Whether its end came after the time-out at which torch's watchdog aborts."""
    if record.discovered is None or record.timeout_ms is None:
        return False
    return record.discovered - record.created > record.timeout_ms * 1_000_000
