"""The spans of a process itself: its start, under which its operations stand, and its end."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.analysis.liveness import GONE
from disttrace_viewer.analysis.process_ends import FAILED, KILLED, End, ends
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.load import ids
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.ids import Context
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.merge.processes import Clocks, process_of
from disttrace_viewer.otlp.build import attributes
from disttrace_viewer.otlp.build.attributes import Attributes
from disttrace_viewer.otlp.build.spans import Builder, Span
from disttrace_viewer.otlp.follow.journal import JournalReader
from disttrace_viewer.wording.ends import ended


def label(journal: JournalReader) -> str:
    """``rank 3``, or the role of a process without a rank."""
    rank = journal.definitions.rank
    return f"rank {rank}" if rank is not None else journal.definitions.role or "main"


def start(builder: Builder, journal: JournalReader) -> Span:
    """The root span, from the process's start to its first word.

    It is sent at once, so that the tree is connected while the job runs or hangs: a span is
    immutable once sent, and the children of an open one would hang in the air for days.
    """
    definitions = journal.definitions
    begins = [op.begin for op in journal.in_flight.values()]
    until = definitions.identity.get("t") or min(begins, default=journal.last)
    parent = definitions.process.get("parent")
    root = builder.root(journal)
    outer = builder.top(journal)
    above = root._replace(span=ids.root_of(root.trace, str(parent))) if parent else outer
    return Span(
        process=journal,
        name=label(journal),
        context=root,
        parent=above,
        start=builder.time.unix(journal, 0),
        end=builder.time.unix(journal, max(0, int(until))),
        attributes={attributes.TYPE: "process"},
    )


def end_of(journal: JournalReader) -> End:
    """How a process ended of which nothing is known but its own journal, and that it is gone."""
    read = Journal(journal.definitions.id, Files(journal.base, journal.base), journal.definitions)
    clocks = Clocks()
    clocks.add(read)
    process = process_of(0, read, clocks, clocks.found())
    return ends([process], {}, process.last_ns, [GONE])[0]


def end(
    builder: Builder, journal: JournalReader, how: End, verdict: Sequence[Finding] = ()
) -> Span:
    """How a process ended: a moment under its root, with what concerns it of the verdict."""
    definitions = journal.definitions
    left = definitions.exit
    failure = definitions.failures[0] if definitions.failures else None
    found: Attributes = {attributes.TYPE: "end", "disttrace.process.state": how.state}
    if left is not None:
        found["disttrace.process.exit"] = str(left.get("how"))
    if how.code is not None:
        found["process.exit.code"] = how.code
    events = []
    description = f"{label(journal)} {ended(how)}" if how.state in (FAILED, KILLED) else None
    for record in definitions.failures:
        exception: Attributes = {
            "exception.type": str(record.get("type")),
            "exception.message": str(record.get("text")),
            "exception.stacktrace": attributes.stacktrace(definitions.frames(record.get("stack"))),
        }
        events.append(("exception", builder.time.unix(journal, record.get("t", 0)), exception))
    if failure is not None:
        found["error.type"] = str(failure.get("type"))
        description = f"{failure.get('type')}: {failure.get('text')}"
    root = builder.root(journal)
    at = builder.time.unix(journal, journal.last)
    for finding in verdict:
        said: Attributes = {
            "disttrace.finding": finding.kind,
            "disttrace.severity": finding.severity,
            "disttrace.certainty": finding.certainty,
            "disttrace.summary": finding.summary,
        }
        events.append((attributes.VERDICT, at, said))
    return Span(
        process=journal,
        name=f"end of {label(journal)}",
        context=Context(root.trace, ids.other_span(root.trace, "end", definitions.id)),
        parent=root,
        start=at,
        end=at,
        attributes=found,
        failed=description,
        events=tuple(events),
    )
