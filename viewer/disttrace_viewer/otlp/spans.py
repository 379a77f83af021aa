"""Spans as values: of operations, of what is still in flight, of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import disttrace.journal.format as fmt
from disttrace_viewer.analysis.liveness import GONE
from disttrace_viewer.analysis.process_ends import FAILED, KILLED, Communication, End, ends
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load import ids
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.ids import Context
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.merge.processes import clocks_of, process_of
from disttrace_viewer.otlp import attributes
from disttrace_viewer.otlp.attributes import Attributes
from disttrace_viewer.otlp.journal import IN_FLIGHT, JournalReader, LiveOperation
from disttrace_viewer.trace.values import dataclass, replace
from disttrace_viewer.wording.sentences import ended

_REMEMBERED = 65536
"""Spans in traces of the program's own; what is older was linked to long ago."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span to be sent. Times are unix nanoseconds; ``process`` gives the resource."""

    process: JournalReader
    name: str
    context: Context
    parent: Context | None
    start: int
    end: int
    attributes: Attributes
    links: tuple[tuple[Context, str], ...] = ()
    """Spans it is linked to, and what the link means."""
    failed: str | None = None
    """Description of the error status; None: no error."""
    kind: str = "internal"
    """As OpenTelemetry names it."""
    events: tuple[tuple[str, int, Attributes], ...] = ()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The part of an operation in an exchange: a collective's member or a message's end."""

    group: str
    backend: str | None
    rank: int
    seq: int
    peer: int | None = None
    tag: int | None = None


def exchanged(op: LiveOperation) -> Exchanged | None:
    """What an operation takes part in; None for store operations, failed calls, and so on."""
    call, definitions = op.call, op.journal.definitions
    number = call.get("group")
    if op.seq is None or number is None:
        return None
    identifier = definitions.group_id(number)
    rank = (definitions.get("group", number) or {}).get("rank")
    if identifier is None or rank is None:
        return None
    backend = call.get("backend")
    if call.get("kind") == fmt.COLLECTIVE:
        return Exchanged(identifier, backend, rank, op.seq)
    peer = op.peer
    if call.get("kind") != fmt.MESSAGE or peer is None:
        return None
    tag = None if backend in fmt.ON_DEVICE else call.get("tag")
    return Exchanged(identifier, backend, rank, op.seq, peer, tag)


class Builder:
    """Makes the spans of operations; knows which traces the processes are in."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        """Of unix time, by boot: the processes of this host share a clock."""
        # What is linked to and in a trace of the user's own, by span: links must name that trace.
        self._elsewhere: dict[str, str] = {}

    def unix(self, journal: JournalReader, t: int) -> int:
        """Unix time of ``t`` in a journal."""
        header = journal.definitions.process
        t0: int = header.get("t0", 0)
        own = header.get("unix_ns", 0) - t0
        offset = self._offsets.setdefault(str(header.get("boot_id")), own)
        # OTLP knows no time before 1970, to which another journal's offset may lead.
        return max(0, t0 + offset + t)

    def began(self, op: LiveOperation) -> None:
        """Remember what others link to in a trace of the user's own."""
        part, own = exchanged(op), context_of(op)
        if part is None or own.trace == op.journal.root.trace:
            return
        if part.peer is not None or part.rank == 0:
            while len(self._elsewhere) >= _REMEMBERED:
                del self._elsewhere[next(iter(self._elsewhere))]
            self._elsewhere[own.span] = own.trace

    def operation(self, op: LiveOperation) -> Span:
        """The span of an operation that is over, or whose process ended first."""
        end = op.begin + op.end if op.end is not None else max(op.journal.last, op.begin)
        return Span(
            process=op.journal,
            name=_name(op),
            context=context_of(op),
            parent=_parent(op),
            start=self.unix(op.journal, op.begin),
            end=self.unix(op.journal, end),
            attributes=attributes.operation(op),
            links=self._links(op),
            failed="it never ended" if op.status == IN_FLIGHT else op.error,
            kind=_kind(op),
        )

    def pending(self, op: LiveOperation, now: int) -> Span:
        """The span of an operation in flight, as of ``now``, under an id of its own: no backend
        replaces a span."""
        final, outer = self.operation(op), _around(op)
        about: Attributes = {
            attributes.PENDING: True,
            "disttrace.replaced_by": final.context.span,
        }
        in_flight = outer is not None and outer.pending_sent  # of it there is no other one so far
        return replace(
            final,
            name=f"{final.name} (pending)",
            context=_pending(final.context),
            parent=_pending(final.parent) if in_flight and final.parent else final.parent,
            end=max(now, final.start),
            attributes={**final.attributes, **about},
            links=(*final.links, (final.context, "final")),
            failed=None,
        )

    def stalled(self, op: LiveOperation, now: int, summary: str) -> Span:
        """The pending span with the stall as an event; another one where it was sent already."""
        span = self.pending(op, now)
        if op.pending_sent:
            other = ids.span_id(span.context.trace, "stalled", span.context.span, now)
            span = replace(span, context=span.context._replace(span=other))
        about: Attributes = {"disttrace.summary": summary}
        return replace(span, events=(*span.events, (attributes.STALLED, now, about)))

    def _links(self, op: LiveOperation) -> tuple[tuple[Context, str], ...]:
        root, part = op.journal.root, exchanged(op)
        links: list[tuple[Context, str]] = []
        if part is not None and part.peer is None and part.rank != 0:
            # Of group rank 0, by which all members know the collective.
            first = ids.span_id(root.trace, "member", part.group, part.backend, part.seq, 0)
            links.append((Context(self._elsewhere.get(first, root.trace), first), "exchange"))
        elif part is not None and part.peer is not None and op.call.get("op") != "send":
            sent = _message(root.trace, part, "send", part.peer, part.rank)
            links.append((Context(self._elsewhere.get(sent, root.trace), sent), "send"))
        if op.user is not None:
            links.append((root, "process"))
        if op.pending_sent and op.end is not None:
            links.append((_pending(context_of(op)._replace(sampled=None)), "pending"))
        return tuple(links)


def context_of(op: LiveOperation) -> Context:
    """The span of an operation."""
    part, trace = exchanged(op), op.journal.root.trace
    if part is None:
        span = ids.span_id(trace, "operation", op.journal.definitions.id, op.number)
    elif part.peer is None:
        span = ids.span_id(trace, "member", part.group, part.backend, part.seq, part.rank)
    elif op.call.get("op") == "send":
        span = _message(trace, part, "send", part.rank, part.peer)
    else:
        span = _message(trace, part, "recv", part.peer, part.rank)
    return _parent(op)._replace(span=span)


def _parent(op: LiveOperation) -> Context:
    """The innermost of: composed operation around it, the user's span, the process's root."""
    if (outer := _around(op)) is not None:
        return context_of(outer)
    return op.user if op.user is not None else op.journal.root


def _around(op: LiveOperation) -> LiveOperation | None:
    """The composed operation around it, unless a span of the user's is between the two."""
    outer = op.parent
    return outer if outer is not None and (op.user is None or op.user == outer.user) else None


def _message(trace: str, part: Exchanged, op: str, sender: int, receiver: int) -> str:
    return ids.span_id(trace, op, part.group, sender, receiver, part.tag, part.seq)


def _pending(final: Context) -> Context:
    """The pending span of ``final``."""
    return final._replace(span=ids.span_id(final.trace, "pending", final.span))


def label(journal: JournalReader) -> str:
    """``rank 3``, or the role of a process without a rank."""
    rank = journal.definitions.rank
    return f"rank {rank}" if rank is not None else journal.definitions.role or "main"


def process_start(builder: Builder, journal: JournalReader) -> Span:
    """The root span, from the process's start to its first word: sent at once, so that the tree is
    connected while the job runs. A span is immutable once sent."""
    definitions = journal.definitions
    begins = [op.begin for op in journal.in_flight.values()]
    until = definitions.identity.get("t") or min(begins, default=journal.last)
    root, above = journal.root, journal.outer
    if parent := definitions.process.get("parent"):
        above = root._replace(span=fmt.process_span_id(root.trace, str(parent)))
    return Span(
        process=journal,
        name=label(journal),
        context=root,
        parent=above,
        start=builder.unix(journal, 0),
        end=builder.unix(journal, max(0, int(until))),
        attributes={attributes.TYPE: "process"},
    )


def end_of(journal: JournalReader) -> End:
    """How a process ended of which nothing is known but its own journal, and that it is gone."""
    read = Journal(journal.definitions.id, Files(journal.base, journal.base), journal.definitions)
    process = process_of(0, read, *clocks_of([read]))
    nothing = Communication(frozenset(), frozenset(), None, native=False, blocked=False, held=False)
    return ends([process], {process.index: nothing}, process.last_ns, [GONE])[0]


def process_end(
    builder: Builder, journal: JournalReader, how: End, verdict: Sequence[RuleFinding] = ()
) -> Span:
    """How a process ended: a moment under its root, with what concerns it of the verdict."""
    definitions = journal.definitions
    left = definitions.exit
    failures = definitions.listed["failure"]
    found: Attributes = {attributes.TYPE: "end", "disttrace.process.state": how.state}
    if left is not None:
        found["disttrace.process.exit"] = str(left.get("how"))
    if how.code is not None:
        found["process.exit.code"] = how.code
    events = []
    description = f"{label(journal)} {ended(how)}" if how.state in (FAILED, KILLED) else None
    for record in failures:
        exception: Attributes = {
            "exception.type": str(record.get("type")),
            "exception.message": str(record.get("text")),
            "exception.stacktrace": attributes.stacktrace(definitions.frames(record.get("stack"))),
        }
        events.append(("exception", builder.unix(journal, record.get("t", 0)), exception))
    if failures:
        found["error.type"] = str(failures[0].get("type"))
        description = f"{failures[0].get('type')}: {failures[0].get('text')}"
    root = journal.root
    at = builder.unix(journal, journal.last)
    for finding in verdict:
        about: Attributes = {
            "disttrace.finding": finding.kind,
            "disttrace.severity": finding.severity,
            "disttrace.certainty": finding.certainty,
            "disttrace.summary": finding.summary,
        }
        events.append((attributes.VERDICT, at, about))
    return Span(
        process=journal,
        name=f"end of {label(journal)}",
        context=Context(root.trace, ids.span_id(root.trace, "end", definitions.id)),
        parent=root,
        start=at,
        end=at,
        attributes=found,
        failed=description,
        events=tuple(events),
    )


def _name(op: LiveOperation) -> str:
    name = op.call.get("name")
    if op.call.get("op") == "annotate" and name:
        return str(name)
    return str(op.call.get("op", "operation"))


def _kind(op: LiveOperation) -> str:
    kind = op.call.get("kind")
    if kind == fmt.MESSAGE:
        return "producer" if op.call.get("op") == "send" else "consumer"
    return "client" if kind == fmt.STORE else "internal"


Emit = Callable[[Span], None]
