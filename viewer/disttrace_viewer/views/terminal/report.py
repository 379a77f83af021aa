"""The whole terminal report as one value, from a trace and what the user asked to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.history.verdict import verdict_on
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.terminal.filters import Filters
from disttrace_viewer.views.terminal.header import Line, header_of
from disttrace_viewer.views.terminal.in_flight import flights_of, samples_of
from disttrace_viewer.views.terminal.init_phase import Phase, initialization, initialization_of
from disttrace_viewer.views.terminal.plan import group_indices, wanted_op
from disttrace_viewer.views.terminal.rows import Flight
from disttrace_viewer.views.terminal.sequence import SequenceView, sequence_of
from disttrace_viewer.wording.names import Names, names_of
from disttrace_viewer.wording.quantities import few, spans


@dataclass(frozen=True, slots=True)
class Report:
    """What the painter paints."""

    names: Names
    header: tuple[Line, ...]
    findings: tuple[tuple[str, str], ...]
    """(severity, sentence) of what ``diagnose`` tells at length."""
    said: tuple[str, ...]
    """What the job said itself."""
    initialization: tuple[Phase, ...]
    sequence: SequenceView
    flights: tuple[Flight, ...]
    samples: tuple[Flight, ...]
    """Where those stand that are in no operation while others are."""


def report_of(
    trace: Trace,
    filters: Filters | None = None,
    *,
    evidence: Evidence | None = None,
    exchanges: Exchanges | None = None,
    findings: Sequence[tuple[str, str]] = (),
    said: Sequence[str] = (),
) -> Report:
    """Compute the report. ``evidence``: what the findings (severity, sentence) rest on, and what is
    said of processes.

    Raises ``ViewerError`` for filters that fit nothing in this trace, and says what would.
    """
    filters = filters or Filters()
    exchanges = exchanges or Exchanges(trace)
    evidence = evidence or verdict_on(trace, exchanges).case.evidence
    _check(trace, filters)
    names = names_of(trace)
    origin = min((p.start_ns for p in trace.processes), default=0)
    inside = initialization_of(trace)
    sequence = sequence_of(
        evidence,
        exchanges,
        names,
        filters,
        origin_ns=origin,
        initialization=inside.clear() if filters.ops else _quiet(trace, inside),
    )
    flights = flights_of(evidence, names)
    return Report(
        names=names,
        header=header_of(evidence, exchanges, names),
        findings=tuple(findings),
        said=tuple(said),
        initialization=initialization(names, inside, origin_ns=origin),
        sequence=sequence,
        flights=flights,
        samples=samples_of(evidence, flights) if flights else (),
    )


def _quiet(trace: Trace, inside: pl.DataFrame) -> pl.DataFrame:
    """What of initialization the sequence leaves out: all but what is stuck or failed."""
    loud = trace.operations.filter(
        (IN_FLIGHT & ~pl.col("lost")) | pl.col("error").is_not_null()
    ).select("process", "number")
    return inside.join(loud, on=["process", "number"], how="anti")


def _check(trace: Trace, filters: Filters) -> None:
    ranks = {p.rank for p in trace.processes if p.rank is not None}
    for group in trace.groups:
        ranks |= set(group.ranks or ())
    if filters.ranks is not None and not filters.ranks & ranks:
        raise ViewerError(f"no such rank here; there are {spans(ranks) or 'none'}")
    ops = sorted(set(trace.calls["op"].to_list()))
    if filters.ops and not any(wanted_op(op, filters) for op in ops):
        raise ViewerError(f"no such operation here; there are {few(ops, 30)}")
    if filters.groups and not group_indices(trace, Filters(groups=filters.groups)):
        known = [f"{g.name or g.desc or '-'} ({g.id[:4]})" for g in trace.groups]
        raise ViewerError(f"no such group here; there are {few(known, 12) or 'none'}")
