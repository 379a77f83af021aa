"""What the answer of a flight recorder means for the operations that were issued."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from disttrace import foreign
from disttrace.capture.devices import matching
from disttrace.capture.devices.flight_recorder import Record, Reply
from disttrace.capture.devices.matching import Entries, Running
from disttrace.capture.devices.recorders import Channel, is_on
from disttrace.capture.objects.groups import Groups, backend_for
from disttrace.journal.originals import sleep
from disttrace.recording.recorder import Recorder

_MODES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")


_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", "TORCH_NCCL_DESYNC_DEBUG")
_RETIRED_NS = 1_000_000_000  # the backend's own duration comes when its entry is retired
_MISSES = 2
_DOUBT_NS = 2_000_000_000  # nothing looks hung for that
STEP = 64  # operations between two moments at which other threads may go on

_ABORTED = RuntimeError("aborted by the watchdog, after the time-out of the group or an error")


class Open:
    """Operations that were issued and are not known to be over, and how each of them ends."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.running: dict[int, Running] = {}

    def of(self, channel: Channel) -> list[Running]:
        return [each for each in list(self.running.values()) if each.recorder == channel.name]

    def end(self, each: Running, at: int, duration: int | None) -> None:
        self.running.pop(each.operation.n, None)
        gap = max(0, at - each.seen)
        self._recorder.completed(each.operation, gap=gap, duration=duration, at=at)
        self._recorder.core.completed([note[0] for note in each.behind], at)

    def lose(self, each: Running) -> None:
        """When it is over cannot be known; it need not be a hang."""
        self.running.pop(each.operation.n, None)
        for operation in (each.operation, *(note[0] for note in each.behind)):
            self._recorder.lost(operation, asked=True)

    def fail(self, each: Running, error: BaseException) -> None:
        self.running.pop(each.operation.n, None)
        self._recorder.failed(each.operation, error, on_issue=False)
        for operation, *_ in each.behind:
            self._recorder.lost(operation, asked=True)


class Answers:
    """Binds operations to their entries, and ends those that are over by their entries.

    In modes 1 and 2 of ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` torch's watchdog aborts communicators
    after a time-out or any other error of NCCL's. Their kernels end then, and their events are
    complete like those of operations that did their work.
    """

    def __init__(self, opened: Open, groups: Groups) -> None:
        self._open, self._groups = opened, groups
        self._may_be_aborted = any(os.environ.get(name) in ("1", "2") for name in _MODES)
        self.timed = is_on(_TIMING) or os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"

    def take(self, channel: Channel, answer: Reply) -> bool:
        """Compare; False where the recorder is seen to record nothing."""
        issued = [each for each in self._open.of(channel) if each.until <= answer.asked]
        channel.sighted = channel.sighted or not answer.empty
        if not channel.sighted and answer.full and issued:
            return False
        running = list(self._open.running.values())
        claimed = (key for each in running for key in each.entries)
        entries = matching.Entries(answer.records.values(), claimed, channel.groups)
        for index, each in enumerate(sorted(issued, key=lambda one: one.operation.begin)):
            if each.operation.ended:
                self._open.lose(each)  # a wait that raised has ended it, and not what is behind it
            elif answer.full:
                self._judge(channel, each, answer, entries)
            else:
                self._still_active(each, answer, entries)
            if index % STEP == STEP - 1:
                sleep(0)
        if answer.full:
            self._younger_is_over(channel, issued, answer)
        return True

    def _still_active(self, each: Running, answer: Reply, entries: Entries) -> None:
        if not each.entries and answer.records:
            each.entries = entries.claim(each)
        if any(key in answer.records for key in each.entries):
            each.seen, each.gone = answer.asked, 0
        elif not each.gone:
            each.gone = answer.answered

    def _judge(self, channel: Channel, each: Running, answer: Reply, entries: Entries) -> None:
        if not each.confirmed:
            found = entries.claim(each)
            if found:
                each.entries, each.confirmed = found, True
            else:
                each.misses += 1
        complete = matching.is_complete(each, answer.records)
        if complete is False:
            each.seen, each.gone = answer.asked, 0
        elif complete:
            self._completed(channel, each, answer)
        elif each.confirmed and all(key in answer.records for key in each.entries):
            self._open.lose(each)  # the recorder itself does not know
        elif each.entries:
            each.stale = True  # overwritten, or the recorder was reset: it may run for ever

    def _younger_is_over(self, channel: Channel, issued: Iterable[Running], answer: Reply) -> None:
        """A device executes the operations of a stream in order."""
        newest: dict[tuple[int, bool] | None, int] = {}  # begins of what is doubted
        for each in issued:
            if each.doubted:
                newest[each.stream] = max(newest.get(each.stream, 0), each.operation.begin)
        for each in issued:
            if each.operation.n not in self._open.running:
                continue
            if each.doubted:
                # Nothing is issued on a communicator that was aborted.
                if each.doubted < newest[each.stream]:
                    self._open.end(each, each.doubted, None)
                elif answer.answered - each.doubted > _DOUBT_NS:
                    self._open.lose(each)
            elif each.stream is not None and each.until <= channel.reached.get(each.stream, -1):
                self._open.end(each, answer.answered, None)
            elif each.misses >= _MISSES and not each.entries:
                self._open.lose(each)

    def _completed(self, channel: Channel, each: Running, answer: Reply) -> None:
        records = [answer.records[key] for key in each.entries]
        only = records[0] if len(records) == 1 else None
        late = self.timed and only is not None and only.duration_ms is None and not only.retired
        if late and answer.answered - each.until < _RETIRED_NS:
            each.gone = each.gone or answer.answered
            return
        if self._may_be_aborted and not self._stands(each, records, answer):
            return
        if each.stream is not None:
            reached = channel.reached.get(each.stream, -1)
            channel.reached[each.stream] = max(reached, each.operation.begin)
        at = each.gone or answer.answered
        seen = [r.discovered - answer.offset for r in records if r.discovered is not None]
        if len(seen) == len(records):  # torch's own watchdog may have seen it before us
            at = min(at, max(each.seen, each.until, *seen))
        duration = only.duration_ms if only is not None else None
        channel.moved = answer.answered
        self._open.end(each, at, None if duration is None else round(duration * 1e6))

    def _stands(self, each: Running, records: Iterable[Record], answer: Reply) -> bool:
        """Whether it did its work, and was not aborted. Where torch does not tell, that is known
        when a younger one completes that was issued after it had been seen complete."""
        happened = self._has_error(each.operation.call.group)
        if happened or (happened is None and any(map(_timed_out, records))):
            self._open.fail(each, _ABORTED)
        elif happened is None:
            each.doubted = each.doubted or answer.answered
        return happened is False

    def _has_error(self, group: int | None) -> bool | None:
        """Whether an error of the group's is known, which torch notes before it aborts; None where
        this torch does not tell. Called after an operation was seen complete, so it decides."""
        entry = self._groups.by_number(group)
        live = None if entry is None else entry.reference()
        for device in {} if entry is None else entry.backends:
            error: Any = foreign.attempt(lambda d=device: backend_for(live, d).get_error())
            if error is not None:
                return bool(error.name != "SUCCESS")
        return None

    def stop_doubting(self) -> None:
        """Nothing younger will tell: what is doubted by now is unknown."""
        for each in list(self._open.running.values()):
            if each.doubted:
                self._open.lose(each)


def _timed_out(record: Record) -> bool:
    """Whether its end came after the time-out at which torch's watchdog aborts."""
    if record.discovered is None or record.timeout_ms is None:
        return False
    return record.discovered - record.created > record.timeout_ms * 1_000_000
