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
from support.journals import MS, Journal, S, workers

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
    where it ``says`` or ``hints`` something (or ``ends`` with it) with that in sentence or hint.
    """
    texts = {name: facts.pop(name, ()) for name in ("says", "hints", "ends")}
    case, found = verdict(folder, **{k: facts.pop(k) for k in ("look", "stall_s") if k in facts})
    facts |= {"kind": kind} if culprits is None else {"kind": kind, "culprits": culprits}
    assert {name: _fact(case, only(found), name) for name in facts} == facts
    for words in _texts(texts["says"]):
        assert words in found[0].summary
    for words in _texts(texts["hints"]):
        assert words in (found[0].hint or "")
    for words in _texts(texts["ends"]):
        assert found[0].summary.endswith(words)
    return found[0]


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


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


def retry(folder: Path) -> None:
    """Both ranks of a launcher's first attempt fail; of the second, rank 0 awaits a key."""
    agent = Journal(folder, pid=3999, role="agent")
    for attempt, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        journal = tried(folder, agent, attempt, rank)
        group = journal.world(port=29500 + attempt)
        if attempt == 0:
            journal.run(journal.collective(group), t=100 * MS, d=MS, q=1)
            journal.fail(200 * MS, "ValueError", "the first attempt fails")
            continue
        if rank == 0:
            get = journal.call("store.get", kind="store", store=1, stack=0)
            journal.begin(get, 5 * S, k="never")
        else:
            journal.run(journal.collective(group), t=5 * S, d=MS, q=1)
        journal.beat(40)


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


Act = str | dict[str, Any]
GONE_BY_THEN = ("left", "failed", "silent")


def act(journal: Journal, group: int, what: Act, t: int = 200 * MS) -> None:
    """What a rank is in: "all_reduce" or a collective with keys, "send 1", "recv any", "recv 0 7"
    (with a tag), "create 0 1" (a group), "at loader.py:9 load", "left", "failed", or nothing.
    """
    if isinstance(what, dict):
        journal.begin(journal.collective(group, **what), t, q=3)
        return
    word, *more = what.split()
    if word in ("send", "recv"):
        peer = None if more[0] == "any" else int(more[0])
        call = journal.message(group, word, peer, tag=int(more[1]) if more[1:] else 0)
        journal.begin(call, t, **({} if peer is None else {"q": 1}))
    elif word == "create":
        journal.create(t, [int(rank) for rank in more])
    elif word == "at":
        file, _, line = more[0].partition(":")
        journal.stand(3 * S, f"/src/{file}", int(line), more[1])
    elif word == "left":
        journal.leave(210 * MS)
    elif word == "failed":
        journal.fail(210 * MS, "ValueError", "bad batch")
    elif word not in ("alive", "silent"):
        shapes = None if word == "barrier" else [[4]]
        journal.begin(journal.collective(group, word, shapes=shapes), t, q=3)


def stuck(folder: Path, *acts: Act, until_s: int = 20) -> None:
    """Since 200 ms each rank is in its ``act``, and beats unless it is gone or silent."""
    for (journal, group), what in zip(steps(folder, len(acts)), acts, strict=True):
        act(journal, group, what)
        if what not in GONE_BY_THEN:
            journal.beat(until_s)
