"""The span of a whole collective, over the members that this host can see."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disttrace_viewer.load import ids
from disttrace_viewer.load.ids import Context
from disttrace_viewer.otlp import attributes
from disttrace_viewer.otlp.journal import JournalReader, Operation
from disttrace_viewer.otlp.spans import Builder, Exchanged, Span, as_pending

if TYPE_CHECKING:
    from disttrace_viewer.otlp.metrics import Meters

_REMEMBERED = 65536
_QUIET_NS = 5_000_000_000
"""Where members may be on other hosts, an exchange is over when nothing came for so long."""

Key = tuple[str, str, str | None, int]


@dataclass(slots=True)
class Exchange:
    """One collective: who of this host is in, who is through."""

    part: Exchanged
    begun: dict[int, tuple[JournalReader, Operation]] = field(default_factory=dict)
    """By group rank."""
    ended: set[int] = field(default_factory=set)
    first: int = 0
    last_arrival: int = 0
    last_end: int = 0
    seen: int = 0
    """When something was last heard of it, by the reader's clock."""
    pending_sent: bool = False


class OpenExchanges:
    """Collects members and tells which exchanges are over."""

    def __init__(self, builder: Builder) -> None:
        self.meters: Meters | None = None
        """What is told of bandwidths."""
        self._builder = builder
        self._open: dict[Key, Exchange] = {}
        self._closed: OrderedDict[Key, None] = OrderedDict()
        self._groups: set[tuple[str, str]] = set()

    def joined(self, journal: JournalReader, op: Operation, part: Exchanged, now: int) -> None:
        """A member began its part, or is seen for the first time at its end."""
        key = (self._builder.trace(journal), part.group, part.backend, part.seq)
        if key in self._closed:
            return
        exchange = self._open.get(key)
        if exchange is None:
            exchange = self._open[key] = Exchange(part)
        begin = self._builder.time.unix(journal, op.begin)
        if part.rank not in exchange.begun:
            exchange.first = min(exchange.first or begin, begin)
            exchange.last_arrival = max(exchange.last_arrival, begin)
        exchange.begun[part.rank] = (journal, op)
        exchange.seen = now
        if op.end is not None:
            exchange.ended.add(part.rank)
            exchange.last_end = max(exchange.last_end, begin + op.end)

    def without(self, journal: JournalReader) -> None:
        """Forget the members of a journal that cannot be used."""
        self._forget(lambda of, _: of is journal)

    def left(self, op: Operation) -> None:
        """A call raised on issue: it was no part of the exchange that it seemed to begin."""
        self._forget(lambda _, member: member is op)

    def _forget(self, gone: Callable[[JournalReader, Operation], bool]) -> None:
        """Forget members, and when they came."""
        for key, exchange in list(self._open.items()):
            kept = {rank: member for rank, member in exchange.begun.items() if not gone(*member)}
            if not kept:
                del self._open[key]
            elif len(kept) < len(exchange.begun):
                begins = [self._builder.time.unix(of, op.begin) for of, op in kept.values()]
                exchange.begun = kept
                exchange.first, exchange.last_arrival = min(begins), max(begins)

    def poll(
        self, journals: Iterable[JournalReader], now: int, *, final: bool = False
    ) -> Iterator[Span]:
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
                _tell_bandwidth(exchange, self.meters)
            if 0 in exchange.begun:  # the host of group rank 0 speaks for all
                yield from self._group_once(key, exchange)
                yield self._span(key, exchange, 0, exchange.last_end or exchange.last_arrival)

    def pending(self, now: int, older_than: int) -> Iterator[Span]:
        """Exchanges in flight for long, each once."""
        for key, exchange in self._open.items():
            if exchange.pending_sent or now - exchange.first < older_than or exchange.ended:
                continue
            exchange.pending_sent = True
            rank = min(exchange.begun)
            if rank == 0:
                yield from self._group_once(key, exchange)
            span = self._span(key, exchange, rank, max(now, exchange.first))
            yield as_pending(
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

    def _group_once(self, key: Key, exchange: Exchange) -> Iterator[Span]:
        journal, _ = exchange.begun[0]
        trace, group, _, _ = key
        if (trace, group) not in self._groups:
            self._groups.add((trace, group))
            yield self._group(trace, journal, exchange.part)

    def _group(self, trace: str, journal: JournalReader, part: Exchanged) -> Span:
        """A group: a moment at its creation, under which its exchanges stand."""
        known = journal.definitions.get("group", part.number) or {}
        at = self._builder.time.unix(journal, known.get("t", 0))
        return Span(
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

    def _span(self, key: Key, exchange: Exchange, rank: int, end: int) -> Span:
        journal, op = exchange.begun[rank]
        trace, group, backend, seq = key
        found = attributes.group(journal.definitions, exchange.part.number)
        found.pop("disttrace.group.rank", None)
        found[attributes.TYPE] = "exchange"
        found["disttrace.op"] = str(op.call.get("op"))
        found["disttrace.seq"] = seq
        found["disttrace.exchange.arrived"] = sorted(exchange.begun)
        found["disttrace.exchange.imbalance_ns"] = exchange.last_arrival - exchange.first
        ops = sorted({str(o.call.get("op")) for _, o in exchange.begun.values()})
        return Span(
            process=journal,
            name=" | ".join(ops),
            context=Context(trace, ids.exchange_span(trace, group, backend, seq)),
            parent=self._builder.of_job(journal, ids.group_span(trace, group)),
            start=exchange.first,
            end=end,
            attributes=found,
        )


def _tell_bandwidth(exchange: Exchange, meters: Meters) -> None:
    if len(exchange.ended) != len(exchange.begun) or exchange.last_end <= exchange.last_arrival:
        return
    rank = 0 if 0 in exchange.begun else min(exchange.begun)
    journal, op = exchange.begun[rank]
    own = [each.record.get("z") for _, each in exchange.begun.values()]
    device = [ns for ns in own if ns]
    if len(device) == len(own):  # the last to come waited least, on the device too
        meters.exchanged(journal, op, min(device), clock="device")
    else:
        took = exchange.last_end - exchange.last_arrival
        meters.exchanged(journal, op, took, clock="host")
