"""The companion's duty of exporting: follow the journals of a job, and send them as OTLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disttrace_viewer.companion.service import CompanionLog, Order, Task
from disttrace_viewer.otlp.pipeline import Pipeline
from disttrace_viewer.otlp.sdk import Tracers
from disttrace_viewer.otlp.sending import LAST_S, Metrics, to_collector
from disttrace_viewer.otlp.spans import Emit


class Export(Task):
    """The duty of sending: everything between the journals and the collector."""

    def __init__(self, order: Order, log: CompanionLog, *, owner: int) -> None:
        """Raises ViewerError for settings that cannot be followed."""
        self._order = order
        self._owner = owner
        self._log = log
        emit: Emit = lambda span: None  # noqa: E731 - no collector is set
        self._sender = to_collector(log.write)
        if self._sender is not None:
            emit = Tracers(self._sender).emit
        self.pipeline = Pipeline(emit, pending_ns=int(order.pending_s * 1e9), say=log.write)
        self._metrics = Metrics(self.pipeline, self._sender)

    def follow(self, base: str) -> None:
        self.pipeline.follow(self._order.directory, base, owner=self._owner)

    def turn(self) -> None:
        self.pipeline.poll()
        self._metrics.begin()

    def stalled(self, summary: str, ops: Sequence[Sequence[Any]]) -> None:
        """Send a stall: an event on the spans of the waiting ranks."""
        self.turn()
        self.pipeline.stalled(summary, [(str(one), int(number)) for one, number in ops])

    def ended(self, base: str) -> None:
        self.turn()  # of a short job it is the first one: metrics count from then on
        self.pipeline.ended(base)

    def finish(self) -> None:
        """Deliver what the job left, or give it up."""
        self.pipeline.finish()
        if unread := sum(journal.unread for journal in self.pipeline.journals.values()):
            self._log.write(
                f"{unread} segments of journals were dropped before they were sent; "
                "DISTTRACE_MAX_MB keeps more"
            )
        self._metrics.finish().join(LAST_S)
        if self._sender is not None:
            self._sender.finish()
        if not self._order.keep:
            for journal in self.pipeline.journals.values():
                journal.delete()
