"""From journals to spans and metrics: what happens with each operation, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.otlp import spans
from disttrace_viewer.otlp.journal import JournalReader, LiveOperation
from disttrace_viewer.trace.plain_text import plain

if TYPE_CHECKING:
    from disttrace_viewer.findings.finding import RuleFinding
    from disttrace_viewer.otlp.sdk import Meters

_ROOT_AFTER_NS = 2_000_000_000
"""The root span waits so long for a rank to become known."""


class Pipeline:
    """The journals of one host and job (or of a folder), turned into spans as they grow."""

    def __init__(
        self,
        emit: spans.Emit,
        *,
        pending_ns: int,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """``say`` gets a sentence on what is left out; nothing is read while ``emit`` waits."""
        self.journals: dict[str, JournalReader] = {}
        self._emit = emit
        self._pending_ns = pending_ns
        self._say = say
        self._builder = spans.Builder()
        self._meters: Meters | None = None
        self._rooted: set[str] = set()
        self._ended: list[LiveOperation] = []
        """To be sent at the next turn."""

    def use(self, meters: Meters) -> None:
        """Feed these instruments from now on (they ask the pipeline what is in flight)."""
        self._meters = meters

    def follow(self, directory: str, base: str, *, owner: int | None = None) -> None:
        """Take in the journal ``base``; see ``JournalReader`` for ``owner``."""
        if base not in self.journals:
            self.journals[base] = JournalReader(directory, base, owner=owner)

    def poll(self) -> None:
        """Take in what is new, and send what had ended a turn ago: a receive links to its send,
        whose begin was read by then, whatever the order of the journals."""
        due, self._ended = self._ended, []
        self._read_all()
        now = time.time_ns()
        for operation in due:
            if not operation.journal.gone:
                try:
                    self._send(operation)
                except Exception as error:
                    self._give_up(operation.journal, error)
        self._send_pending(now)

    def ended(self, base: str) -> None:
        """The process of a journal is gone: read its last records, and send how it ended."""
        self._read_all()
        try:
            for _ in self.replay(base):
                pass
        except Exception as error:
            self._give_up(self.journals[base], error)

    def replay(
        self, base: str, how: End | None = None, verdict: Sequence[RuleFinding] = ()
    ) -> Iterator[None]:
        """Read a journal to its end, and yield between spans. ``how`` its process ended (default:
        it is gone); of one that may still run what it has in flight is pending."""
        journal = self.journals[base]
        if journal.gone:
            return
        now = time.time_ns()
        waiting = [one for one in self._ended if one.journal is journal]
        self._forget(journal)
        for operation in chain(waiting, journal.poll(final=True)):
            self._send(operation)
            yield
        running = how is not None and how.runs
        for operation in list(journal.in_flight.values()):
            if running:
                self._emit(self._builder.pending(operation, now))
            else:
                self._send(operation)
        journal.in_flight.clear()
        if journal.definitions.process:
            self._root(journal)
            if not running:
                how = spans.end_of(journal) if how is None else how
                self._emit(spans.process_end(self._builder, journal, how, verdict))
        for _, what in journal.definitions.checker.sentences():
            self._say(f"{plain(journal.base)[:200]}: {what}")
        journal.close()
        yield

    def finish(self) -> None:
        """Everything was read: what is still open will not be completed."""
        for base in self.journals:
            self.ended(base)

    def stalled(self, summary: str, ops: Iterable[tuple[str, int]]) -> None:
        """Send operations in flight, [process, number], as stalled."""
        wanted = set(ops)
        now = time.time_ns()
        for operation, _ in self.in_flight():
            if (operation.journal.definitions.id, operation.number) in wanted:
                self._root(operation.journal)
                operation.pending_sent = True
                self._emit(self._builder.stalled(operation, now, summary))

    def in_flight(self) -> Iterator[tuple[LiveOperation, int]]:
        """Every operation in flight with its age in nanoseconds."""
        now = time.time_ns()
        for journal in list(self.journals.values()):
            for operation in list(journal.in_flight.values()):
                begin = self._builder.unix(journal, operation.begin)
                yield operation, max(0, now - begin)

    # -- inside ------------------------------------------------------------------------------

    def _read_all(self) -> None:
        for journal in list(self.journals.values()):
            if not journal.gone:
                try:
                    self._read(journal)
                except Exception as error:
                    self._give_up(journal, error)

    def _give_up(self, journal: JournalReader, error: Exception) -> None:
        """What one journal holds must not end the export of the others: it may be a stranger's."""
        journal.in_flight.clear()
        self._forget(journal)
        journal.close()
        what = plain(f"{type(error).__name__}: {error}")[:200]
        self._say(f"the journal {plain(journal.base)[:200]} is not sent any further: {what}")

    def _forget(self, journal: JournalReader) -> None:
        self._ended = [one for one in self._ended if one.journal is not journal]

    def _read(self, journal: JournalReader) -> None:
        now = time.time_ns()
        self._ended += journal.poll()
        for operation in journal.begun():
            self._builder.began(operation)
        if journal.base not in self._rooted and journal.definitions.process:
            since = now - self._builder.unix(journal, 0)
            if journal.definitions.identity or since > _ROOT_AFTER_NS:
                self._root(journal)

    def _send(self, operation: LiveOperation) -> None:
        self._emit(self._builder.operation(operation))
        if self._meters is not None:
            self._meters.ended(operation)

    def _root(self, journal: JournalReader) -> None:
        if journal.base not in self._rooted and journal.definitions.process:
            self._rooted.add(journal.base)
            self._emit(spans.process_start(self._builder, journal))

    def _send_pending(self, now: int) -> None:
        for operation, age in self.in_flight():
            if age >= self._pending_ns and not operation.pending_sent:
                operation.pending_sent = True
                self._root(operation.journal)
                self._emit(self._builder.pending(operation, now))
