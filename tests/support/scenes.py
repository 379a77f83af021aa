"""Jobs that are in trouble, as journals: what tests of findings start from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from disttrace_viewer.analysis.liveness import GONE, UNKNOWN, Look, Observation
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.diagnosis.verdict import verdict as judge_states
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import KINDS, RuleFinding
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import merge, pack, unpack
from disttrace_viewer.trace.process import Process
from support.journals import MS, Journal, workers

T = TypeVar("T", Journal, tuple[Journal, int])


def nobody_knows(_process: Process) -> Observation:
    """The journals are of another host."""
    return UNKNOWN


def all_gone(_process: Process) -> Observation:
    """Every process is known to be dead."""
    return GONE


def findings(folder: Path, *, stall_s: float = 10, look: Look = nobody_knows) -> list[RuleFinding]:
    """What is said about the journals in a folder."""
    return list(verdict(folder, stall_s=stall_s, look=look)[1])


def _of_history(hint: str | None) -> bool:
    return hint is not None and ("skipped the " in hint or "made one more " in hint)


def verdict(
    folder: Path, *, stall_s: float = 10, look: Look = nobody_knows
) -> tuple[Case, tuple[RuleFinding, ...]]:
    """The case too. Of the states of the same journals the rules must say the same."""
    whole = verdict_on(load([str(folder)]), stall_ns=round(stall_s * 1e9), look=look)
    found = (whole.case, whole.findings)
    _RANKS[folder] = [process.rank for process in whole.case.evidence.trace.processes]
    assert {one.kind for one in found[1]} <= {*KINDS}
    again = _by_states(folder, stall_s, look, history=False)
    if any("made one more call" in f.summary for f in found[1]):
        # It takes the history to tell; without it nobody is blamed.
        assert [(f.certainty, f.culprits) for f in again.findings] == [("likely", ())]
        again = _by_states(folder, stall_s, look, history=True)
    elif any(_of_history(f.hint) for f in found[1]):
        # The same finding, with the general hint: which call was left out takes the history too.
        assert [(f.kind, f.culprits) for f in again.findings] == [
            (f.kind, f.culprits) for f in found[1]
        ]
        again = _by_states(folder, stall_s, look, history=True)
    kept = [told(found[0], f) for f in found[1] if f.kind not in OF_HISTORY]
    assert [told(again.case, f) for f in again.findings] == kept
    return found


def _by_states(folder: Path, stall_s: float, look: Look, *, history: bool) -> Verdict:
    """The verdict by states, half of which have travelled."""
    files = evidence([str(folder)], Problems())
    states = [state for one in files if (state := reduce(one, history=history))]
    halves = (merge(states[::2]), merge(unpack(pack(states[1::2]))))
    return judge_states(merge(halves), stall_ns=round(stall_s * 1e9), look=look)


_SPANS = re.compile(r"[\d.]+ (h|min|s|ms|us)\b")  # where processes live they grow
OF_HISTORY = ("straggler", "late_sender", "unwaited_work", "unreduced_gradients")
"""Findings that need all operations; states hold the few that say where processes are."""


def told(case: Case, finding: RuleFinding) -> tuple[object, ...]:
    """What a finding says, with processes by their ids."""
    names = [p.id for p in case.evidence.trace.processes]
    return (
        finding.kind,
        finding.severity,
        finding.certainty,
        _SPANS.sub("#", finding.summary),
        [_SPANS.sub("#", text) for text in finding.consequences],
        [names[p] for p in finding.culprits], [names[p] for p in finding.waiting],
        finding.absent_ranks, finding.hint, finding.locations,
    )  # fmt: skip


def only(found: Sequence[RuleFinding]) -> RuleFinding:
    assert [f.kind for f in found] == [found[0].kind if found else "one finding"]
    return found[0]


def finds(folder: Path, kind: str, culprits: list[int] | None = None, **facts: Any) -> RuleFinding:
    """The one finding of a folder: of this kind, blaming these ranks, with these attributes, and
    where it ``says`` or ``hints`` something with that in its sentence or hint.
    """
    says, hints = (facts.pop(name, "") for name in ("says", "hints"))
    case, found = verdict(folder, **{k: facts.pop(k) for k in ("look", "stall_s") if k in facts})
    facts |= {"kind": kind} if culprits is None else {"kind": kind, "culprits": culprits}
    assert {name: _fact(case, only(found), name) for name in facts} == facts
    assert says in found[0].summary
    assert hints in (found[0].hint or "")
    return found[0]


def _fact(case: Case, finding: RuleFinding, name: str) -> object:
    """An attribute; processes as their ranks."""
    value = getattr(finding, name)
    if name not in ("culprits", "waiting"):
        return value
    processes = case.evidence.trace.processes
    return sorted((processes[index].rank for index in value), key=lambda rank: rank or 0)


_RANKS: dict[Path, list[int | None]] = {}
"""Those of the processes of folders that were judged: to load them again takes long."""


def ranks(folder: Path, indices: Sequence[int]) -> list[int | None]:
    """Ranks of processes by their index in the trace of a folder."""
    known = _RANKS.get(folder) or [one.rank for one in load([str(folder)]).processes]
    return sorted((known[i] for i in indices), key=lambda rank: rank or 0)


def alive(jobs: Iterable[T], until_s: int = 20) -> Iterator[T]:
    """Each journal, alone or with its group, which beats after what the loop's body adds to it."""
    for one in jobs:
        yield one
        (one if isinstance(one, Journal) else one[0]).beat(until_s)


def steps(folder: Path, world_size: int, count: int = 2, **keys: Any) -> list[tuple[Journal, int]]:
    """A job that has made ``count`` all_reduces, a millisecond apart; each with its group."""
    found = []
    for journal in workers(folder, world_size, **keys):
        group = journal.world()
        journal.run_all([journal.collective(group)] * count)
        found.append((journal, group))
    return found


def tried(folder: Path, agent: Journal, attempt: int, rank: int, **more: Any) -> Journal:
    """One of the two ranks of an attempt of a launcher."""
    pid, keys = 4000 + 100 * attempt + rank, {"attempt": attempt}
    parent = agent.process
    return Journal(folder, pid, rank=rank, world_size=2, parent=parent, keys=keys, **more)


def hang_without(
    folder: Path, world_size: int, *away: int, beats: bool = True, until_s: int = 20
) -> Iterator[tuple[Journal, int]]:
    """All but ``away`` wait in all_reduce #3 since 200 ms, and beat; the rest is the loop's."""
    for journal, group in steps(folder, world_size):
        if journal.rank in away:
            yield journal, group
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        if beats or journal.rank not in away:
            journal.beat(until_s)
