"""The calls of a recorded job, from the journals of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.mismatches import KINDS
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.replay.calls import (
    ENDS,
    FAILS,
    KILLED,
    MONITORED,
    STAYS,
    STOPS,
    Call,
    Job,
    Rank,
    Steps,
    is_remote,
)
from disttrace_viewer.replay.remote import Remote
from disttrace_viewer.replay.sequences import (
    COMES,
    ISSUE,
    JOINS,
    MAKES,
    WAIT,
    Action,
    Composed,
    Key,
    Script,
)
from disttrace_viewer.trace.process import Process


def job_of(scripts: Sequence[Script], evidence: Evidence, findings: Sequence[Finding]) -> Job:
    """The calls of the ranks of a job."""
    failed = {i for one in findings if one.kind in _FAILURES for i in one.culprits}
    processes = {process.id: process for process in evidence.trace.processes}
    groups: dict[str, int] = {}
    members: list[tuple[int, ...]] = []
    found: dict[int, Rank] = {}
    places: dict[str, int] = {}
    pending = {(op.process, op.number) for op in evidence.pending}
    # What torch refuses since members differ (TORCH_DISTRIBUTED_DEBUG=DETAIL) hangs without that.
    differing = {one.seq for one in findings if one.kind in KINDS}
    refused = {op.id for op in evidence.raised_in_call if op.seq in differing}
    workers = [one for one in scripts if processes[one.journal.id].rank is not None]
    attempt = _attempt([processes[one.journal.id] for one in workers], findings)
    workers = [one for one in workers if (processes[one.journal.id].attempt or 0) == attempt]
    remote = Remote(workers, processes)
    # Who failed by itself did not give up since others did not come.
    waited = [one for one in workers if processes[one.journal.id].index not in failed]
    world = _world(processes[one.journal.id] for one in workers)
    joined = all(one.over for script in workers for one in script.those(JOINS))
    alike = joined and _made_alike(workers)
    for script in sorted(workers, key=lambda one: not _has_default(one.journal.definitions)):
        process = processes[script.journal.id]
        place = next((n for n in (process.rank, *range(world)) if n not in found), None)
        if place is None or process.rank is None or (joined and place != process.rank):
            continue
        definitions = script.journal.definitions
        for number, group in sorted(definitions.numbered["group"].items()):
            gid, ranks = definitions.group_id(number), group.get("ranks")
            if gid is not None and ranks and gid not in groups:
                groups[gid] = len(members)
                members.append(tuple(ranks))
        places[script.journal.id] = place
        threads = _steps(
            script, groups, members, process.index, pending, refused, remote, alike=alike
        )
        rank = found[place] = Rank(threads, remote.ends(script))
        _end(rank, evidence, process.index, failed)
        rank.joins = _joining(script, process, place, world)
        rank.late = _joins_late(script, waited)
    _mark_late(found.values())
    if joined or not found:
        job = Job(found, members)
        if _only_remote(workers):
            job.groups = members or [tuple(sorted(found))]
            job.has_default = not all(map(is_remote, job.calls))  # anything else needs it
        for call in job.calls:
            if call.function is not None:
                call.peer = places.get(remote.worker(call.args.get("to")) or "")
        return job
    members = members or [tuple(range(world))]
    ports = Counter(port for one in workers if (port := _port(processes[one.journal.id])))
    for script in workers:
        place = processes[script.journal.id].rank or 0
        port = _port(processes[script.journal.id])
        if port and place in found:
            found[place].port = port != ports.most_common(1)[0][0]
    absent = {n: Rank(end=STAYS, word="a line that nobody knows") for n in range(world)}
    return Job({**absent, **found}, members, joined=False)


_WORK = ("collective", "message")
_FAILURES = ("process_failed", "not_in_group")


def _attempt(workers: Sequence[Process], findings: Sequence[Finding]) -> int:
    """Of a job that was started again: the attempt that the first finding is about."""
    known = {one.index: one.attempt or 0 for one in workers}
    about = [i for one in findings[:1] for i in (*one.culprits, *one.waiting) if i in known]
    return max((known[i] for i in about or known), default=0)


def _joins_late(script: Script, others: Sequence[Script]) -> bool:
    """Whether a process joined after another one had given up."""
    ends = [one.gave_up_ns for other in others for one in other.those(JOINS)]
    gave_up = min((at_ns for at_ns in ends if at_ns is not None), default=None)
    return gave_up is not None and any(one.at_ns > gave_up for one in script.those(JOINS))


def _mark_late(ranks: Iterable[Rank]) -> None:
    """Mark the calls that began after another member of the same exchange had given up, and those
    that ended since somebody had left.
    """
    ranks = list(ranks)
    left = [one.left_ns for one in ranks if one.end == ENDS and one.left_ns is not None]
    calls = [(rank, call) for rank in ranks for steps in rank.threads.values() for _, call in steps]
    gave_up: dict[Key, int] = {}
    for rank, call in calls:
        if rank.end not in (FAILS, KILLED) and call.key is not None and call.gave_up_ns is not None:
            gave_up[call.key] = min(call.gave_up_ns, gave_up.get(call.key, call.gave_up_ns))
    for _, call in calls:
        call.late = call.key in gave_up and call.begin_ns > gave_up[call.key]
        call.late |= call.lost and any(left_ns < call.begin_ns for left_ns in left)


def _world(processes: Iterable[Process]) -> int:
    """How many ranks most say that there are."""
    sizes = Counter(one.world_size for one in processes if one.world_size)
    return max(sizes, key=lambda size: (sizes[size], size), default=0)


def _port(process: Process) -> str | None:
    return process.env.get("MASTER_PORT")


def _made_alike(scripts: Sequence[Script]) -> bool:
    """Whether all made the same groups in the same order, so that a program may do so before
    anything else.
    """
    made = [script.those(MAKES) for script in scripts]
    if any(not one.over for of in made for one in of):
        return False
    return len({repr([one.args.get("ranks") for one in of]) for of in made}) <= 1


def _joining(script: Script, process: Process, place: int, world: int) -> str | None:
    if not script.those(JOINS) and not script.groups:
        return None
    claims = ""
    if process.rank != place or (process.world_size or world) != world:
        claims = f", rank={process.rank}, world_size={process.world_size or world}"
    return claims


def _only_remote(scripts: Sequence[Script]) -> bool:
    """Whether the workers of remote calls do without a default group."""
    called = any(script.those(COMES) for script in scripts)
    definitions = (script.journal.definitions for script in scripts)
    joined = any(script.those(JOINS) for script in scripts)
    return called and not joined and not any(map(_has_default, definitions))


def _has_default(definitions: Definitions) -> bool:
    return any(group.get("default") for group in definitions.numbered["group"].values())


def _steps(
    script: Script,
    groups: Mapping[str, int],
    members: Sequence[tuple[int, ...]],
    process: int,
    pending: set[tuple[int, int]],
    differing: set[tuple[int, int]],
    remote: Remote,
    *,
    alike: bool,
) -> dict[int | str, Steps]:
    definitions = script.journal.definitions
    calls: dict[int, Call] = {}
    found: dict[int | str, list[tuple[int, str, Call]]] = {}
    for number, steps in script.threads.items():
        for step in steps:
            action = step.action
            thread = remote.thread(script, number, action.run)
            gid = definitions.group_id(action.call.get("group", -1))
            stored = action.key is not None and action.key[0] == "store"
            taken = action.call.get("op") == MONITORED or (process, action.number) in differing
            refused = action.refused and not taken
            if thread is None or refused or action.inside or not (stored or gid in groups):
                continue
            if id(action) not in calls:
                over = (process, action.number) not in pending and not action.broken
                group = 0 if stored else groups[gid or ""]
                where = script.line(action.call.get("stack"))
                calls[id(action)] = _call(action, group, members, where, over)
            whats = (ISSUE, WAIT) if stored else (step.what,)
            rows = [(step.place, what, calls[id(action)]) for what in whats]
            found.setdefault(thread, []).extend(rows)
    for made, call in () if alike else _making(script, groups, members):
        thread = remote.thread(script, made.thread, made.run)
        if thread is not None:
            rows = found.setdefault(thread, [])
            rows += [(made.place, ISSUE, call), (made.place, WAIT, call)]
    for thread, place, what, call in remote.steps(script):
        found.setdefault(thread, []).append((place, what, call))
    threads = {
        thread: [(what, call) for _, what, call in sorted(rows, key=lambda row: row[0])]
        for thread, rows in found.items()
    }
    for issued in threads.values():
        # Whatever C++ waits for (DDP's reducer) is waited for without a word.
        waited = {id(call) for what, call in issued if what == WAIT}
        silent = (call for _, call in issued if not call.over and call.function is None)
        issued += [(WAIT, call) for call in silent if id(call) not in waited]
    return threads


def _making(
    script: Script, groups: Mapping[str, int], members: Sequence[tuple[int, ...]]
) -> Iterable[tuple[Composed, Call]]:
    """The groups that a process made, or was about to make."""
    known = [groups[gid] for gid in script.groups if gid in groups]
    times: Counter[tuple[int, ...]] = Counter()
    for made in script.those(MAKES):
        given = made.args.get("ranks")
        ranks = tuple(given) if isinstance(given, (list, tuple)) else members[0] if members else ()
        same = [group for group in known if group and members[group] == tuple(sorted(ranks))]
        place, times[ranks] = times[ranks], times[ranks] + 1
        yield (
            made,
            Call(
                op=MAKES,
                key=("made", ranks, place),
                begin_ns=made.at_ns,
                over=made.over,
                group=same[place] if place < len(same) else 0,
                gave_up_ns=made.gave_up_ns,
                lost=made.lost,
                ranks=ranks,
            ),
        )


def _call(
    action: Action,
    group: int,
    members: Sequence[tuple[int, ...]],
    where: str,
    over: bool,
) -> Call:
    call: Mapping[str, Any] = action.call
    ranks = members[group] if members else ()

    def everywhere(rank: int | None) -> int | None:
        return ranks[rank] if rank is not None and 0 <= rank < len(ranks) else None

    return Call(
        op=call.get("op") or "barrier",
        group=group,
        key=action.key,
        message=call.get("kind") == "message",
        asynchronous=call.get("kind") != fmt.STORE and call.get("async") is not False,
        shapes=call.get("shapes") or (),
        dtypes=call.get("dtypes") or (),
        reduce_op=call.get("reduce_op"),
        root=everywhere(call.get("root")),
        peer=everywhere(call.get("peer")),
        tag=call.get("tag") or 0,
        where=where,
        begin_ns=action.at_ns,
        over=over,
        gave_up_ns=action.gave_up_ns,
        lost=action.lost,
    )


def _end(rank: Rank, evidence: Evidence, process: int, failed: Collection[int]) -> None:
    """Who was ended from outside, or since others were, stood until then."""
    end = evidence.ends[process]
    rank.left_ns = evidence.trace.processes[process].last_ns if end.over else None
    if process in failed and end.failure is not None:
        rank.end, rank.word = FAILS, f"{end.failure.type}: {end.failure.text}"
    elif process in failed and end.how != CLEAN:
        rank.end = KILLED if end.code is None or end.code < 0 else FAILS
        rank.word = f"exit code {end.code}"
    elif end.held == fmt.STOPPED:
        rank.end = STOPS
        for _, call in (step for steps in rank.threads.values() for step in steps):
            if not call.over and call.key is not None and call.key[0] in _WORK:
                call.asynchronous |= call.op != MONITORED  # what it is in goes on without it
    elif end.how != CLEAN:
        at = evidence.whereabouts(process)
        rank.end, rank.word = STAYS, "" if at is None else f"{at.file.rpartition('/')[2]}:{at.line}"


def named(found: Sequence[Finding], evidence: Evidence) -> frozenset[int]:
    """The ranks that findings blame."""
    processes = evidence.trace.processes
    ranks = (processes[i].rank for one in found for i in one.culprits)
    absent = (rank for one in found for rank in one.absent_ranks)
    return frozenset(rank for rank in (*ranks, *absent) if rank is not None)
