"""Two processes that live at one time claim one rank at one rendezvous place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from disttrace_viewer.evidence.waits.wait import COLLECTIVE, MESSAGE, RENDEZVOUS, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, Scope
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.findings.rules.parts import Join, joins
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[Finding]:
    """One finding per rank that is claimed twice, where somebody waits or fails over it."""
    claims: dict[tuple[Hashable, int], list[Join]] = {}
    everybody: dict[Hashable, list[Join]] = {}
    for join in joins(case, by_hand=True):
        if join.store.port == 0:
            continue  # any free port: nobody can meet anybody there
        everybody.setdefault(join.address, []).append(join)
        if join.rank is not None:
            claims.setdefault((join.address, join.rank), []).append(join)
    for (address, rank), found in sorted(claims.items(), key=lambda item: item[0][1]):
        rivals = _rivals(case, found) if len(found) > 1 else []
        if len(rivals) < 2:
            continue
        all_of = everybody[address]
        members = {join.op.process for join in all_of}
        waits = [w for w in case.open() if w.kind == RENDEZVOUS and w.process in members]
        who = {join.op.process for join in rivals}
        hang = [w for w in case.open() if w.kind in (COLLECTIVE, MESSAGE) and case.old(w)]
        if any(w.process in who for w in hang):  # they came through, and meet nobody now
            waits += [w for w in hang if w.process in members]
        if waits or any(join.open for join in all_of):
            yield _finding(case, rank, rivals, _unclaimed(all_of), waits)


def _rivals(case: Case, found: Sequence[Join]) -> list[Join]:
    """The newest join of each process; those that lived together with another one."""
    gone = case.evidence.followed
    newest = {join.op.process: join for join in found if join.op.process not in gone}
    return [
        join
        for process, join in newest.items()
        if any(other != process and _overlap(case, process, other) for other in newest)
    ]


def _overlap(case: Case, one: int, two: int) -> bool:
    """Whether two processes lived at one time."""
    processes, until_ns = case.evidence.trace.processes, case.evidence.until_ns
    return processes[one].start_ns <= until_ns(two) and processes[two].start_ns <= until_ns(one)


def _unclaimed(found: Sequence[Join]) -> list[int]:
    """Ranks of the world that nobody claims."""
    world = max((j.world_size or 0 for j in found), default=0)
    return sorted(set(range(world)) - {j.rank for j in found if j.rank is not None})


def _finding(
    case: Case, rank: int, rivals: Sequence[Join], left: Sequence[int], waits: Sequence[Wait]
) -> Finding:
    who = [join.op.process for join in rivals]
    waiting = sorted({w.process for w in waits} - set(who))
    return Finding(
        kind="duplicate_rank",
        summary=summary(
            case.evidence.trace,
            rank,
            who,
            at=rivals[0].store.name,
            unclaimed=left,
            stand={p: frame for p in who if (frame := case.evidence.stands(p)) is not None},
        ),
        hint=HINT,
        culprits=tuple(who),
        waiting=tuple(waiting),
        op=rivals[0].op.call.op,
        locations=case.evidence.locations(join.op for join in rivals)
        + outside.locations(case, who),
        at_ns=max(join.op.begin_ns for join in rivals),
        scope=Scope(
            exchanges=frozenset(w.exchange for w in waits),
            roots=frozenset(who),
            absent=frozenset((None, r) for r in left),
            members=frozenset(who),
        ),
    )


HINT = (
    "Give each process a RANK of its own; look for a launcher that was started twice, or for a"
    " rank left over from an earlier run."
)


def summary(
    trace: Trace,
    rank: int,
    who: Sequence[int],
    *,
    at: str | None,
    unclaimed: Sequence[int],
    stand: Mapping[int, Frame],
) -> str:
    """``at``: where they meet; ``unclaimed``: ranks that nobody claims there; ``stand``: where each
    one is."""
    rivals = [trace.processes[p] for p in who]
    pids = sentences.listed([f"pid {one.pid} on {one.host}" for one in rivals])
    nobody = f"; nobody claims {sentences.ranks(unclaimed)}" if unclaimed else ""
    started = ""
    for one in rivals:
        parent = trace.parent_of(one)
        if parent is not None and parent.index in who:
            where = stand.get(parent.index)
            at_line = "" if where is None else f", which stands at {sentences.is_at(where)}"
            started += f"; pid {one.pid} was started by pid {parent.pid}{at_line}"
    return f"{len(who)} processes claim rank {rank} at {at}: {pids}{started}{nobody}."
