"""From journals to spans and metrics: what happens with each operation, once."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.load import ids
from disttrace_viewer.load.ids import Context
from disttrace_viewer.otlp import attributes, spans
from disttrace_viewer.otlp.journal import JournalReader, LiveOperation
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.values import dataclass, field

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
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``say`` gets a sentence on what is left out; nothing is read while it is ``full``."""
        self.journals: dict[str, JournalReader] = {}
        self._emit = emit
        self._pending_ns = pending_ns
        self._say = say
        self._builder = spans.Builder()
        self._exchanges = OpenExchanges(self._builder)
        self._rooted: set[str] = set()
        self._full = full
        self._ended: deque[tuple[JournalReader, LiveOperation]] = deque()
        """To be sent at the next turn."""
        self._due: deque[tuple[JournalReader, LiveOperation]] = deque()
        """To be sent now, or when there is room again."""

    def use(self, meters: Meters) -> None:
        """Feed these instruments from now on (they ask the pipeline what is in flight)."""
        self._exchanges.meters = meters

    def follow(self, directory: str, base: str, *, owner: int | None = None) -> None:
        """Take in the journal ``base``; see ``JournalReader`` for ``owner``."""
        if base not in self.journals:
            self.journals[base] = JournalReader(directory, base, owner=owner)

    def poll(self) -> None:
        """Take in what is new, and send what had ended a turn ago: a receive links to its send,
        whose begin was read by then, whatever the order of the journals."""
        if not self._due:
            self._due, self._ended = self._ended, deque()
            self._read_all()
        now = time.time_ns()
        while self._due:
            if self._full():
                return
            journal, operation = self._due.popleft()
            try:
                self._over(journal, operation, now)
            except Exception as error:
                self._give_up(journal, error)
        self._send_exchanges(now)
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
        """Read a journal to its end, and yield between spans.

        ``how`` its process ended (default: it is gone, as its own journal tells); of one that may
        still run what it has in flight is pending. ``verdict``: what concerns it of that.
        """
        journal = self.journals[base]
        if journal.gone:
            return
        now = time.time_ns()
        ended = (*self._due, *self._ended)
        waiting = [operation for of, operation in ended if of is journal]
        self._forget(journal)
        for operation in chain(waiting, journal.poll(final=True)):
            self._over(journal, operation, now)
            yield
        running = how is not None and how.runs
        for operation in list(journal.in_flight.values()):
            if running:
                self._emit(self._builder.pending(journal, operation, now))
            else:
                self._joined(journal, operation, now)
                self._send(journal, operation)
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
        self._send_exchanges(time.time_ns(), final=True)

    def stalled(self, summary: str, ops: Iterable[tuple[str, int]]) -> None:
        """Send operations in flight, [process, number], as stalled."""
        wanted = set(ops)
        now = time.time_ns()
        for journal, operation, _ in self.in_flight():
            if (journal.definitions.id, operation.number) in wanted:
                self._root(journal)
                operation.pending_sent = True
                self._emit(self._builder.stalled(journal, operation, now, summary))

    def in_flight(self) -> Iterator[tuple[JournalReader, LiveOperation, int]]:
        """Every operation in flight with its age in nanoseconds."""
        now = time.time_ns()
        for journal in list(self.journals.values()):
            for operation in list(journal.in_flight.values()):
                begin = self._builder.unix(journal, operation.begin)
                yield journal, operation, max(0, now - begin)

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
        self._exchanges.forget(lambda of, _: of is journal)
        journal.close()
        what = plain(f"{type(error).__name__}: {error}")[:200]
        self._say(f"the journal {plain(journal.base)[:200]} is not sent any further: {what}")

    def _forget(self, journal: JournalReader) -> None:
        self._due = deque(one for one in self._due if one[0] is not journal)
        self._ended = deque(one for one in self._ended if one[0] is not journal)

    def _read(self, journal: JournalReader) -> None:
        now = time.time_ns()
        self._ended += [(journal, operation) for operation in journal.poll()]
        for operation in journal.begun():
            self._builder.began(journal, operation)
            if operation.end is None:
                self._joined(journal, operation, now)
        if journal.base not in self._rooted and journal.definitions.process:
            since = now - self._builder.unix(journal, 0)
            if journal.definitions.identity or since > _ROOT_AFTER_NS:
                self._root(journal)

    def _over(self, journal: JournalReader, operation: LiveOperation, now: int) -> None:
        if operation.raised_on_issue:  # it was no part of the exchange that it seemed to begin
            self._exchanges.forget(lambda _, member: member is operation)
        self._joined(journal, operation, now)
        self._send(journal, operation)

    def _joined(self, journal: JournalReader, operation: LiveOperation, now: int) -> None:
        part: spans.Exchanged | None = spans.exchanged(journal, operation)
        if part is not None and part.peer is None:
            self._exchanges.joined(journal, operation, part, now)

    def _send(self, journal: JournalReader, operation: LiveOperation) -> None:
        self._emit(self._builder.operation(journal, operation))
        if (meters := self._exchanges.meters) is not None:
            meters.ended(journal, operation)

    def _root(self, journal: JournalReader) -> None:
        if journal.base not in self._rooted and journal.definitions.process:
            self._rooted.add(journal.base)
            self._emit(spans.process_start(self._builder, journal))

    def _send_exchanges(self, now: int, *, final: bool = False) -> None:
        for span in self._exchanges.poll(self.journals.values(), now, final=final):
            self._emit(span)

    def _send_pending(self, now: int) -> None:
        for journal, operation, age in self.in_flight():
            if age >= self._pending_ns and not operation.pending_sent:
                operation.pending_sent = True
                self._root(journal)
                self._emit(self._builder.pending(journal, operation, now))
        for span in self._exchanges.pending(now, self._pending_ns):
            self._emit(span)


_REMEMBERED = 65536
_QUIET_NS = 5_000_000_000
"""Where members may be on other hosts, an exchange is over when nothing came for so long."""

Key = tuple[str, str, str | None, int]


@dataclass(slots=True)
class Exchange:
    """One collective: who of this host is in, who is through."""

    part: spans.Exchanged
    begun: dict[int, tuple[JournalReader, LiveOperation]] = field(default_factory=dict)
    """By group rank."""
    ended: set[int] = field(default_factory=set)
    last_end: int = 0
    seen: int = 0
    """When something was last heard of it, by the reader's clock."""
    pending_sent: bool = False


class OpenExchanges:
    """Collects members and tells which exchanges are over."""

    def __init__(self, builder: spans.Builder) -> None:
        self.meters: Meters | None = None
        """What takes bandwidths."""
        self._builder = builder
        self._open: dict[Key, Exchange] = {}
        self._closed: OrderedDict[Key, None] = OrderedDict()
        self._groups: set[tuple[str, str]] = set()

    def joined(
        self, journal: JournalReader, op: LiveOperation, part: spans.Exchanged, now: int
    ) -> None:
        """A member began its part, or is seen for the first time at its end."""
        key = (self._builder.trace(journal), part.group, part.backend, part.seq)
        if key in self._closed:
            return
        exchange = self._open.get(key)
        if exchange is None:
            exchange = self._open[key] = Exchange(part)
        exchange.begun[part.rank] = (journal, op)
        exchange.seen = now
        if op.end is not None:
            exchange.ended.add(part.rank)
            end = self._builder.unix(journal, op.begin) + op.end
            exchange.last_end = max(exchange.last_end, end)

    def forget(self, gone: Callable[[JournalReader, LiveOperation], bool]) -> None:
        """Forget members that were none, or of which nothing more comes."""
        for key, exchange in list(self._open.items()):
            exchange.begun = {
                r: member for r, member in exchange.begun.items() if not gone(*member)
            }
            if not exchange.begun:
                del self._open[key]

    def _arrivals(self, exchange: Exchange) -> list[int]:
        """When its members came, unix ns, in their order."""
        return sorted(self._builder.unix(of, op.begin) for of, op in exchange.begun.values())

    def poll(
        self, journals: Iterable[JournalReader], now: int, *, final: bool = False
    ) -> Iterator[spans.Span]:
        """Spans of the exchanges that are over, and of their groups."""
        alive = {j.base for j in journals if not j.gone}
        for key, exchange in list(self._open.items()):
            if not final and not self._over(exchange, alive, now):
                continue
            del self._open[key]
            self._closed[key] = None
            if len(self._closed) > _REMEMBERED:
                self._closed.popitem(last=False)
            if self.meters is not None:
                _tell_bandwidth(exchange, self._arrivals(exchange)[-1], self.meters)
            if 0 in exchange.begun:  # the host of group rank 0 speaks for all
                yield from self._group_once(key, exchange)
                yield self._span(
                    key, exchange, 0, exchange.last_end or self._arrivals(exchange)[-1]
                )

    def pending(self, now: int, older_than: int) -> Iterator[spans.Span]:
        """Exchanges in flight for long, each once."""
        for key, exchange in self._open.items():
            if exchange.pending_sent or exchange.ended:
                continue
            if now - self._arrivals(exchange)[0] < older_than:
                continue
            exchange.pending_sent = True
            rank = min(exchange.begun)
            if rank == 0:
                yield from self._group_once(key, exchange)
            span = self._span(key, exchange, rank, max(now, self._arrivals(exchange)[0]))
            yield spans.as_pending(
                span, ids.other_span(span.context.trace, "pending", span.context.span, rank)
            )

    def _over(self, exchange: Exchange, alive: set[str], now: int) -> bool:
        waiting = [
            rank
            for rank, (journal, _) in exchange.begun.items()
            if rank not in exchange.ended and journal.base in alive
        ]
        if waiting:
            return False
        journal, _ = next(iter(exchange.begun.values()))
        group = journal.definitions.get("group", exchange.part.number) or {}
        return len(exchange.begun) == group.get("size") or now - exchange.seen > _QUIET_NS

    def _group_once(self, key: Key, exchange: Exchange) -> Iterator[spans.Span]:
        journal, _ = exchange.begun[0]
        trace, group, _, _ = key
        if (trace, group) not in self._groups:
            self._groups.add((trace, group))
            yield self._group(trace, journal, exchange.part)

    def _group(self, trace: str, journal: JournalReader, part: spans.Exchanged) -> spans.Span:
        """A group: a moment at its creation, under which its exchanges stand."""
        known = journal.definitions.get("group", part.number) or {}
        at = self._builder.unix(journal, known.get("t", 0))
        return spans.Span(
            process=journal,
            name=f"group {attributes.group_label(journal.definitions, part.number)}",
            context=Context(trace, ids.group_span(trace, part.group)),
            parent=self._builder.top(journal) or None,
            start=at,
            end=at,
            attributes={
                **attributes.group(journal.definitions, part.number),
                attributes.TYPE: "group",
            },
        )

    def _span(self, key: Key, exchange: Exchange, rank: int, end: int) -> spans.Span:
        journal, op = exchange.begun[rank]
        arrivals = self._arrivals(exchange)
        trace, group, backend, seq = key
        found = attributes.group(journal.definitions, exchange.part.number)
        found.pop("disttrace.group.rank", None)
        found[attributes.TYPE] = "exchange"
        found["disttrace.op"] = str(op.call.get("op"))
        found["disttrace.seq"] = seq
        found["disttrace.exchange.arrived"] = sorted(exchange.begun)
        found["disttrace.exchange.imbalance_ns"] = arrivals[-1] - arrivals[0]
        ops = sorted({str(o.call.get("op")) for _, o in exchange.begun.values()})
        return spans.Span(
            process=journal,
            name=" | ".join(ops),
            context=Context(trace, ids.exchange_span(trace, group, backend, seq)),
            parent=self._builder.of_job(journal, ids.group_span(trace, group)),
            start=arrivals[0],
            end=end,
            attributes=found,
        )


def _tell_bandwidth(exchange: Exchange, last_arrival: int, meters: Meters) -> None:
    if len(exchange.ended) != len(exchange.begun) or exchange.last_end <= last_arrival:
        return
    rank = 0 if 0 in exchange.begun else min(exchange.begun)
    journal, op = exchange.begun[rank]
    own = [each.record.get("z") for _, each in exchange.begun.values()]
    device = [ns for ns in own if ns]
    if len(device) == len(own):  # the last to come waited least, on the device too
        meters.exchanged(journal, op, min(device), clock="device")
    else:
        meters.exchanged(journal, op, exchange.last_end - last_arrival, clock="host")
