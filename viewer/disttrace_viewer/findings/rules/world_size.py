"""Processes that meet for one default group claim different world sizes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from disttrace_viewer.evidence import mismatches
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope
from disttrace_viewer.findings.rules.parts import Join, joins
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One ``group_mismatch`` per rendezvous place where the claims differ and somebody waits."""
    found: dict[Hashable, dict[int, Join]] = {}
    for join in joins(case):
        if join.world_size is not None:
            found.setdefault(join.address, {})[join.op.process] = join
    for claims in found.values():
        values = {p: join.world_size for p, join in claims.items()}
        waiting = sorted({w.process for w in case.open() if w.process in claims})
        harmed = waiting or any(join.open for join in claims.values())
        if len(set(values.values())) > 1 and harmed:
            yield _finding(case, claims, waiting)


def _finding(case: Case, claims: dict[int, Join], waiting: list[int]) -> Finding:
    values = {p: join.world_size for p, join in claims.items()}
    odd = sorted(mismatches.minority(values, len(values)))
    order = sorted(claims, key=lambda p: (p not in odd, p))
    first = next(iter(claims.values()))
    return Finding(
        kind="group_mismatch",
        summary=summary(case.evidence.trace, {p: values[p] for p in order}, first.store.name),
        hint=HINT,
        culprits=tuple(odd),
        waiting=tuple(p for p in waiting if p not in odd),
        op=first.op.call.op,
        locations=case.evidence.locations(claims[p].op for p in order),
        at_ns=first.op.begin_ns,
        scope=Scope(
            exchanges=frozenset(w.exchange for w in case.open() if w.process in claims),
            roots=frozenset(claims),
            members=frozenset(claims),
        ),
    )


HINT = "Give all processes one WORLD_SIZE; compare the environments that start them."


def summary(trace: Trace, claims: Mapping[int, int | None], at: str | None) -> str:
    """``claims``: by process; ``at``: where they meet."""
    told = ((str(size), process) for process, size in claims.items())
    text = sentences.sides(trace, told, "claims", "claim")
    return f"The members of the default group disagree on its world size at {at}: {text}."
