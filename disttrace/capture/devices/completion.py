"""When a device has finished an operation, on backends that only enqueue it (NCCL and its kin).

There a call returns, and a wait orders streams, long before anything has happened. What still runs
is known from torch's flight recorders, or of the Work where a backend writes to none. An operation
is bound to its entries once, by its number where a hook tells it, else by thread, group and time,
and is over only when they show it, or when they show it of a younger one of the same stream; what
cannot be known is recorded as unknown.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from disttrace import errors
from disttrace.capture.devices import flight_recorder, graphs, matching
from disttrace.capture.devices.answers import STEP, Answers, Open
from disttrace.capture.devices.asker import Asker, AskingDevice, is_of_device
from disttrace.capture.devices.flight_recorder import (
    NATIVE,
    QUERIED,
    Ask,
    Question,
    Reply,
    unix_offset,
)
from disttrace.capture.devices.graphs import Graphs
from disttrace.capture.devices.matching import Note, Running
from disttrace.capture.devices.recorders import (
    SPOILT,
    UNSAFE,
    Channel,
    Followed,
    Recorders,
    blind,
    spoils,
)
from disttrace.capture.objects.works import Unwatched
from disttrace.capture.wrapping.context import Capture
from disttrace.capture.wrapping.wrappers import before
from disttrace.foreign import ours
from disttrace.journal.originals import Lock, get_ident, sleep
from disttrace.recording.background import SOON_NS
from disttrace.recording.operation import CallRecord, Operation

PART = "completion on devices"

# At most one part in so many of a core goes into asking for all entries, with what follows; into
# asking for those that are not complete; and of the time into asking where the GIL is held.
_SHARE, _SHARE_ACTIVE, _SHARE_HELD = 200, 400, 200
_ACTIVE_NS = 20_000_000
_FULL_NS = 100_000_000
_RARELY_NS = 1_000_000_000  # where nothing has moved for so many times as long:
_CALM = 100
_LAST_LOOK_S = 1.0
_BEFORE_ABORT_S = 0.5
_SHRINK_ABORTS = 1  # of torch's flags: what is in flight is aborted

_clock = time.perf_counter_ns
_ABORTED = RuntimeError("the process group was aborted before the device had finished")


def install(capture: Capture) -> None:
    """Follow what devices do, as far as the backends of this torch tell it.

    Where that is switched off nothing is queried of torch or of a device, in any thread: what stays
    in place records that the end of an operation is unknown.
    """
    if not capture.asks_devices:
        return
    from torch._C._distributed_c10d import Backend, ProcessGroup

    device = DeviceOperations(capture, flight_recorder.source)
    unwatched, given_to = capture.works.device, capture.works.given_to
    given_to(device, blocking=device.blocking)
    capture.engine.on_undo(PART, "devices", functools.partial(given_to, unwatched))
    capture.on_fork.append(device.forget)
    capture.poll(PART, device.poll, functools.partial(device.look, _LAST_LOOK_S))
    capture.when_imported("torch.cuda.graphs", device.graphs.watch)

    def aborting(group: Any, *args: Any, **kwargs: Any) -> None:
        """It makes every operation look complete: what had not been before has failed."""
        device.aborting(capture.groups.of(group).n)

    def shrinking(group: Any, ranks: Any = None, flags: Any = 0, *_: Any, **named: Any) -> None:
        """The same, where its flags are for that."""
        if named.get("shrink_flags", flags) == _SHRINK_ABORTS:
            aborting(group)

    for owner in (ProcessGroup, Backend, *Backend.__subclasses__()):
        for name, look in (("abort", aborting), ("_abort", aborting), ("shrink", shrinking)):
            capture.engine.attribute(PART, owner, name, before(capture, PART, look))


# None: it was not queried, for a graph is being captured. An exception: asking raised it.
_Found = tuple[Channel, "Reply | Exception | None"]


class DeviceOperations(Unwatched):
    """Operations issued and not seen finished. ``source`` gives how to query a recorder."""

    def __init__(
        self, capture: Capture, source: Callable[[str], Ask | None], *, asker: Any = None
    ) -> None:
        super().__init__(capture.recorder)
        self._capture = capture
        self._inbox = matching.make(self._issued, lambda: capture.wake())
        self.add = self._inbox.add  # type: ignore[method-assign]
        self.graphs = Graphs(capture, PART, self._replayed, self._inbox.known.clear)
        self._asker: Asker[_Found] = asker or Asker()
        self._device = AskingDevice()
        self._recorders = Recorders(
            capture.groups, source, lambda channel: self._switch_off(channel, UNSAFE)
        )
        self.blocking = self._recorders.blocking  # so each wait is the end of what it waits for
        self._open = Open(capture.recorder)
        self._answers = Answers(self._open, capture.groups)
        self._followed = Followed(capture.recorder, self._unknown)
        self._noted_ns = 0  # spent on what was noted, since the last answer
        self.forget()

    def forget(self) -> None:
        """At first, and after fork in the child: what is in flight is the parent's."""
        self._inbox.take()
        self._open.running.clear()
        self._followed.forget()
        self._looking = Lock()
        self.graphs.forget()
        self._asker.forget()

    # -- what is issued ----------------------------------------------------------------------

    def _issued(self, operation: Operation, call: tuple[int, int] | None, work: Any) -> None:
        """What ``add`` does where a note is not enough."""
        if operation.ended or operation.n in self._open.running:
            return
        if self.graphs.here():
            self._captured(operation)
            name = self._recorders.of(operation.call)
            if name == NATIVE and spoils(operation.call, batched=call is not None):
                channel = self._recorders.channel(name)
                if not channel.off:
                    self._switch_off(channel, SPOILT)
            return
        name = self._recorders.of(operation.call)
        pending = True
        if name is None or (call is not None and name not in QUERIED):
            # A hook's recorder takes what was coalesced for complete when it is issued: only the
            # Work of all knows.
            completed = self._capture.works.is_completed
            over = None if work is None else functools.partial(completed, work)
            pending = self._followed.hold(operation, over, self._recorders.device(operation.call))
        elif self._recorders.queried(operation.call) is None:
            pending = self._followed.await_wait(operation, work)
        else:
            thread, ids = get_ident(), self._capture.op_ids
            number = None if call is not None or name in QUERIED else ids.get(thread)
            note = (operation, thread, *unix_offset(), number)
            self._run(note, call, *self._channel_of(operation.call))
            self._note_further(operation.call.group, name)
        if pending:
            self._capture.wake()

    def enqueued(self, operation: Operation, stream: Any) -> None:
        if self.graphs.here():
            self._captured(operation)
        else:
            self._replayed(operation, graphs.after(stream))

    def _captured(self, operation: Operation) -> None:
        """It runs when the graph is replayed."""
        self.graphs.holds(operation.call)
        self._recorder.end(operation)

    def _replayed(self, operation: Operation, over: Callable[[], bool] | None) -> None:
        """It was enqueued by no backend: ``over`` shows when the device is through."""
        if self._followed.hold(operation, over, self._recorders.device(operation.call)):
            self._capture.wake()

    def waited(self, operation: Operation, work: Any) -> None:
        """Records something only where the wait blocks the host."""
        call = operation.call
        blocks = self.blocking and self._recorders.of(call) is not None
        if blocks and self._recorders.queried(call) is None and not operation.ended:
            self._followed.waited(operation)
        elif call.synchronous and not (
            operation.n in self._open.running or operation in self._followed
        ):
            self.add(operation, None, work)  # any other was added when it was issued

    def by_recorder(self, call: CallRecord) -> bool:
        return self._recorders.queried(call) is not None

    def aborting(self, group: int) -> None:
        """The group is about to be aborted: what is not over by now never will be."""
        self._take_notes()
        if not any(e.operation.call.group == group for e in self._open.running.values()):
            return
        self.look(_BEFORE_ABORT_S)
        for each in list(self._open.running.values()):
            if each.operation.call.group == group:
                self._open.fail(each, _ABORTED)

    def _note_further(self, group: int | None, name: str) -> None:
        """From now on a note is enough, until something is out of the ordinary."""
        channel = self._recorders.channel(name)
        if channel.pausing() or self.graphs.any():
            return
        self._inbox.capturing = _capturing()
        numbers = None if name in QUERIED else self._capture.op_ids
        self._inbox.known[group] = self._unknown if channel.off else numbers

    def _take_notes(self) -> None:
        begin = time.thread_time_ns()
        of_group: dict[int | None, tuple[Channel | None, str | None]] = {}
        notes = [note for note in self._inbox.take() if not note[0].ended]
        for index, (note, behind) in enumerate(matching.in_chunks(notes)):
            call = note[0].call
            found = of_group.get(call.group)
            if found is None:
                found = of_group[call.group] = self._channel_of(call)
            self._run(note, None, *found, behind)
            if index % STEP == STEP - 1:
                sleep(0)
        self._noted_ns += time.thread_time_ns() - begin

    def _channel_of(self, call: CallRecord) -> tuple[Channel | None, str | None]:
        """The recorder of a call's group, if it is queried now, and the group's name."""
        name = self._recorders.of(call)
        channel = None if name is None else self._recorders.channel(name)
        if channel is None or channel.off or channel.pausing():
            return None, None
        channel.moved = _clock()
        entry = self._capture.groups.by_number(call.group)
        return channel, None if entry is None else entry.keys.get("name")

    def _run(
        self,
        note: Note,
        call: tuple[int, int] | None,
        channel: Channel | None,
        group: str | None,
        behind: Sequence[Note] = (),
    ) -> None:
        """It was issued, by ``call`` too if not by its own; those ``behind`` it were before it."""
        operation, thread, offset, error, number = note
        if channel is None:
            for each in (*behind, note):
                self._unknown(each[0])
            return
        known = self._open.running.get(operation.n)
        if known is not None:  # it was waited for, too
            known.behind = (*known.behind, *behind)
            return
        begin, counter = operation.begin, operation.call.counter
        until = begin + operation.issued
        windows: tuple[tuple[int, int], ...] = ((begin + offset - error, until + offset + error),)
        if call is not None:
            windows += ((call[0] + offset - error, call[1] + offset + error),)
            until = call[1]
        stream = None if counter is None else (id(counter), call is not None)
        self._open.running[operation.n] = Running(
            operation, channel.name, windows, until, thread, group, stream, until, number, behind
        )

    def _look_behind(self, channel: Channel) -> None:
        """Of what was queried and runs, what is behind it is queried by itself."""
        for each in [e for e in self._open.of(channel) if e.behind and e.confirmed]:
            notes, each.behind = each.behind, ()
            for note in notes:
                if not note[0].ended:
                    self._run(note, None, channel, each.group)

    # -- asking ------------------------------------------------------------------------------

    def poll(self) -> int:
        """Look for what is finished; nanoseconds until the next look, 0 if nothing runs."""
        self._followed.notice_dropped()
        self._ask_works()
        if self._open.running or self._inbox.notes:
            with self._looking:
                try:
                    self._take(0.0)
                    if not self._asker.busy and self._recorders.due_in_ns() <= 0:
                        self._take_notes()
                        self._ask_due()
                        self._take(0.0)
                except BaseException:
                    for note in self._inbox.take():
                        self._unknown(note[0])
                    for each in list(self._open.running.values()):
                        self._open.lose(each)
                    raise
        pending = self._open.running or self._inbox.notes
        if self._followed or (pending and self._asker.busy):
            return SOON_NS
        return max(SOON_NS, self._recorders.due_in_ns()) if pending else 0

    def look(self, timeout_s: float) -> None:
        """Ask every recorder for all it has, and wait for the answer, but not for long."""
        self._ask_works()
        self._take_notes()
        with self._looking:
            self._take(timeout_s)
            for again in (False, True):  # what is behind what runs is known after the first time
                running = self._open.running.values()
                for name in {e.recorder for e in running if not (again and e.confirmed)}:
                    if not self._asker.busy:
                        self._ask(self._recorders.channel(name), active=False)
                        self._take(timeout_s)
            self._answers.stop_doubting()

    def _ask_due(self) -> None:
        now = _clock()
        by_recorder: dict[str, list[Running]] = {}
        for each in list(self._open.running.values()):
            if not each.stale:
                by_recorder.setdefault(each.recorder, []).append(each)
        for name, waiting in by_recorder.items():
            channel = self._recorders.channel(name)
            if self._asker.busy:
                return
            unsure = self._answers.timed or any(not e.confirmed or e.gone for e in waiting)
            if unsure and now >= channel.full_due:
                self._ask(channel, active=False)
            elif now >= channel.active_due:
                self._ask(channel, active=True)

    def _ask(self, channel: Channel, *, active: bool) -> None:
        question = matching.question(active, self._open.of(channel))
        ask = channel.ask
        assert ask is not None

        def put() -> _Found:
            try:
                if channel.name not in QUERIED:
                    return channel, ask(question)
                return channel, self.graphs.query(lambda: self._query(ask, question))
            except ours(Exception) as error:
                return channel, error

        self._asker.ask(put)

    def _query(self, ask: Ask, question: Question) -> Reply:
        self._device.enter()
        return ask(question)

    def _take(self, timeout_s: float) -> None:
        if not self._asker.busy:
            return
        found = self._asker.answer(timeout_s)
        if found is None:
            return
        (channel, answer), now = found, _clock()
        begin = time.thread_time_ns()
        if answer is None:
            channel.active_due = now + _ACTIVE_NS
            return
        if isinstance(answer, Exception):
            self._refused(channel, answer)
            return
        channel.failures = 0
        quiet = min(_RARELY_NS, (now - channel.moved) // _CALM)
        held = channel.ask is not None and not flight_recorder.frees_gil(channel.ask)
        if not self._answers.take(channel, answer):
            self._switch_off(channel, blind())
        elif answer.full:
            self._look_behind(channel)
        cost = answer.cost + time.thread_time_ns() - begin + self._noted_ns
        self._noted_ns = 0
        share = (_SHARE if answer.full else _SHARE_ACTIVE) * cost
        if held and answer.full:
            share = max(share, _SHARE_HELD * (answer.answered - answer.asked))
        # The longer the pause, the more is issued meanwhile; and what is over would look hung.
        share = min(share, round(self._capture.unseen_s * 1e9))
        channel.active_due = now + max(_ACTIVE_NS, quiet, 0 if answer.full else share)
        if answer.full:
            channel.full_due = now + max(_FULL_NS, share)

    def _refused(self, channel: Channel, error: Exception) -> None:
        """Asking raised: again after a pause that grows. A device that failed is queried no more.

        What was issued stays in flight for some seconds only: it is not known to hang.
        """
        what = errors.first_line(error)
        if is_of_device(error):
            self._switch_off(channel, f"When devices finish is unknown from now on: {what}")
            return
        channel.failed()
        if not channel.noted:
            channel.noted = True
            recorder = f"torch's flight recorder '{channel.name}'"
            self._recorder.note("note", text=f"asking {recorder} failed, is tried again: {what}")
        if channel.fails():
            self._give_up(channel)

    def _switch_off(self, channel: Channel, why: str) -> None:
        """When the device has finished is unknown: that is on record, once."""
        channel.off = True
        self._recorder.note("note", text=why)
        self._give_up(channel)

    def _give_up(self, channel: Channel) -> None:
        self._inbox.known.clear()
        self._take_notes()
        for each in self._open.of(channel):
            self._open.lose(each)

    def _ask_works(self) -> None:
        if not self.graphs.any():
            self._followed.ask()


def _capturing() -> Callable[[], bool] | None:
    """Whether the calling thread's stream is captured; None where nothing can be."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    found: Callable[[], bool] | None = getattr(
        torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
    )
    return found
