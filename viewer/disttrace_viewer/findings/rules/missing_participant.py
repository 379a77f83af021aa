"""Members of a group never began the collective that the others are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.operation import Op, frame, ops
from disttrace_viewer.analysis.wait_graph import COLLECTIVE, MEETING, Wait
from disttrace_viewer.findings.case import EARLY, Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.findings.rules.rendezvous_incomplete import new_group
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """Per collective that waits directly for somebody who waits for nothing: all such members."""
    seen = set()
    for wait in sorted(case.oldest(), key=lambda w: any(not case.outside(t) for t in w.targets)):
        # First where nobody else is in between: the others wait for those who wait there.
        if wait.kind not in (COLLECTIVE, MEETING) or wait.exchange in seen:
            continue
        if wait in case.owner or not case.old(wait):
            continue
        if wait.kind == MEETING and not new_group(case, wait):
            continue
        sinks = [t for t in wait.targets if case.outside(t)]
        if sinks or (wait.absent and all(case.outside(t) for t in wait.targets)):
            seen.add(wait.exchange)
            yield _finding(case, wait, sinks)


@dataclass(frozen=True, slots=True)
class Extra:
    """The one call that those who wait made and those who are missing did not."""

    op: Op


def _finding(case: Case, wait: Wait, sinks: Sequence[int]) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    inside = [w for w in case.open() if w.exchange == wait.exchange]
    who = [w.process for w in inside]
    group = None if wait.op.call.group is None else trace.groups[wait.op.call.group]
    extra = _extra(case, wait, sinks)
    age = max(evidence.age_ns(w.op) for w in inside)
    missing = sentences.processes(trace, sinks)
    if wait.absent:
        unseen = f"{sentences.ranks(wait.absent)} (no process of it was seen)"
        missing = f"{missing} and {unseen}" if sinks else unseen
    places = dict.fromkeys(sentences.place(frame(trace, w.op)) for w in inside)
    name = sentences.operation(trace, wait.op)
    if wait.kind == MEETING:
        name = f"the creation of a group ({wait.op.call.op})"
    waited = f"{sentences.processes(trace, who)} {sentences.have(len(who))} been waiting"
    summary = (
        f"{missing[0].upper() + missing[1:]} never came to {name}, in which {waited} at"
        f" {sentences.listed(list(places))} for {sentences.span(age)}"
        f"{outside.where(case, sinks)}."
    )
    hint = _hint(case, wait, sinks)
    if extra is not None:
        at = sentences.place(frame(trace, extra.op))
        called = f"{extra.op.call.op} #{extra.op.seq} at {at}"
        hint = (
            f"Without one more call at {at} both sides have made the same calls: look for a"
            " collective under a condition on the rank."
        )
        summary = (
            f"{sentences.processes(trace, who).capitalize()} made one more call ({called}) than"
            f" {missing} and {sentences.have(len(who))} been waiting alone in {name} at"
            f" {sentences.listed(list(places))} for {sentences.span(age)}"
            f"{outside.where(case, sinks)}."
        )
    members = {*who, *sinks}
    whole = not wait.absent and case.certain_journals(members)
    unsure = any(w.op.call.origin == "c++" for w in inside)
    early = all(case.early(w) for w in inside)
    blamed = () if extra is not None else tuple(sinks)
    sites = [extra.op] if extra is not None else []
    return Finding(
        kind="missing_participant",
        summary=summary,
        certainty=CERTAIN if whole and extra is None and not unsure and not early else LIKELY,
        hint=hint,
        culprits=blamed,
        absent_ranks=() if extra is not None else wait.absent,
        waiting=tuple(who),
        op=wait.op.call.op,
        group=None if group is None else group.id,
        seq=wait.op.seq,
        locations=outside.locations(case, sinks)
        + evidence.locations([*(w.op for w in inside), *sites]),
        at_ns=wait.op.begin_ns,
        scope=Scope(
            exchanges=frozenset({wait.exchange}),
            roots=frozenset(sinks),
            absent=frozenset((wait.op.call.group, r) for r in wait.absent),
        ),
        settles=("the journals of these ranks",) if wait.absent else (EARLY,) if early else (),
    )


def _hint(case: Case, wait: Wait, sinks: Sequence[int]) -> str:
    if wait.op.call.origin == "c++" or all(case.clean(s) for s in sinks):
        return (
            "Look for uneven inputs: one rank has fewer batches, or leaves the loop earlier; use"
            " join() of DistributedDataParallel, or drop_last."
        )
    return "Look at what these ranks do where they stand: a loader, a lock, a branch by rank."


def _extra(case: Case, wait: Wait, sinks: Sequence[int]) -> Extra | None:
    """The one extra call of the waiting side, if leaving it out makes both sides equal."""
    if wait.kind != COLLECTIVE or wait.stream is None or not sinks:
        return None
    mine = _sites(case, wait, wait.process)
    for sink in sinks:
        theirs = _sites(case, wait, sink)
        common = min(len(mine), len(theirs))
        if len(mine) != len(theirs) + 1 or mine[:common].equals(theirs):
            return None
        differ = (mine[:common] != theirs[:common]).arg_max() or 0
        if not mine[differ + 1 :].equals(theirs[differ:]):
            return None
    calls = _calls(case, wait, wait.process)
    return Extra(next(ops(case.evidence.trace, calls[differ : differ + 1])))


def _calls(case: Case, wait: Wait, process: int) -> pl.DataFrame:
    assert wait.stream is not None
    group, backend = wait.stream
    calls = (
        case.evidence.trace.calls.lazy()
        .with_row_index("call")
        .filter(
            (pl.col("kind") == "collective")
            & (pl.col("process") == process)
            & (pl.col("group") == group)
            & pl.col("backend").eq_missing(pl.lit(backend))
        )
        .select("call", "stack", "op")
    )
    return (
        case.evidence.trace.operations.lazy()
        .filter((pl.col("process") == process) & pl.col("seq").is_not_null())
        .join(calls, on="call", how="inner")
        .sort("seq")
        .collect()
    )


def _sites(case: Case, wait: Wait, process: int) -> pl.Series:
    """Call sites of one process in a stream, by sequence number."""
    rows = _calls(case, wait, process)
    return (
        rows.select(pl.format("{}@{}", "op", pl.col("stack").fill_null(0))).to_series().rename("")
    )
