"""The smallest job that stands in the same way.

An exchange that all members got over is left out on all sides, and what is left keeps its order.
Of ranks that do the same two are kept, so that it stays visible who is alone; of those that are
blamed, and of those that others send to or receive from, all. What is left out may not change who
stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from disttrace_viewer.replay.calls import STAYS, Call, Job, Rank, is_remote
from disttrace_viewer.replay.sequences import COMES, ISSUE, LEAVES, MAKES, WAIT

_ALIKE = 2
Told = tuple[str, str | None, int | None]
"""``collective`` or ``message``, the id of a group, and a number."""


def shrunk(job: Job, blamed: Collection[int], told: Collection[Told] = ()) -> Job:
    """``blamed``: ranks that stay; ``told``: collectives and messages that stay although they are
    over: by which they are, the ids of their groups and their numbers.
    """
    found = _without_what_is_over(job, told)
    stands = _standing(found)
    for rank in sorted(found.ranks, reverse=True):
        if not job.joined or rank in blamed or len(found.ranks) <= _ALIKE:
            continue
        if _is_needed(found, rank):
            continue
        smaller = without(found, rank)
        if _standing(smaller) == stands - {rank}:
            found = smaller
    return _numbered_anew(_without_idle_groups(found))


def _without_what_is_over(job: Job, told: Collection[Told]) -> Job:
    open_ = {call.key for call in job.calls if not call.over}
    sides = Counter(call.key for _, what, call in job.steps if what == ISSUE)
    remote = any(is_remote(call) and not call.over for call in job.calls)

    def stays(call: Call) -> bool:
        if is_remote(call) and call.op in (COMES, LEAVES):
            return remote
        if _is_stored(call) or is_remote(call):
            return call.key in open_
        whole = _whole(job, call)
        if call.key is None or call.key in open_ or sides[call.key] < whole:
            return True
        return (call.key[0], call.key[1], call.key[-1]) in told

    ranks = {
        number: replace(
            rank,
            threads={
                thread: kept
                for thread, steps in rank.threads.items()
                if (kept := [(what, call) for what, call in steps if stays(call)])
            },
        )
        for number, rank in job.ranks.items()
    }
    found = replace(job, ranks=ranks)
    called = {call.function for call in found.calls}
    for rank in ranks.values():
        rank.threads = {
            one: steps
            for one, steps in rank.threads.items()
            if isinstance(one, int) or one in called
        }
    return found


def _is_stored(call: Call) -> bool:
    return call.key is not None and call.key[0] == "store"


def _whole(job: Job, call: Call) -> int:
    """How many have to call it."""
    return 2 if call.message else len(job.groups[0 if call.op == MAKES else call.group])


def _standing(job: Job) -> set[int]:
    """Ranks that do not get over a call, by what was recorded of it and who is still there."""
    begun = Counter(call.key for _, what, call in job.steps if what == ISSUE)
    found = set()
    for number, what, call in job.steps:
        shared = not _is_stored(call) and not is_remote(call)
        alone = shared and begun[call.key] < _whole(job, call)
        if what == WAIT and (not call.over or alone):
            found.add(number)
    return found


def _is_needed(job: Job, rank: int) -> bool:
    """Whether it is one end of a message, a root, a member of a group that is made, or one of the
    last two that do what it does.
    """
    for number, _, call in job.steps:
        if call.peer is not None and rank in (number, call.peer):
            return True
        if (call.message and rank == number) or call.root == rank:
            return True
        if rank in (call.ranks or ()):
            return True
    return sum(_does(one) == _does(job.ranks[rank]) for one in job.ranks.values()) <= _ALIKE


def _does(rank: Rank) -> object:
    steps = [
        (what, call.op, call.group, call.where, tuple(map(tuple, call.shapes)))
        for steps in rank.threads.values()
        for what, call in steps
    ]
    return (steps, rank.end, rank.word if rank.end != STAYS else "")


def without(job: Job, rank: int) -> Job:
    """The job with one rank less, also in all groups."""
    groups = [tuple(one for one in members if one != rank) for members in job.groups]
    return replace(job, ranks={n: r for n, r in job.ranks.items() if n != rank}, groups=groups)


def _without_idle_groups(job: Job) -> Job:
    used = sorted({0, *(call.group for call in job.calls)})
    places = {group: place for place, group in enumerate(used)}
    for call in {id(call): call for call in job.calls}.values():
        call.group = places[call.group]
    return replace(job, groups=[job.groups[group] for group in used])


def _numbered_anew(job: Job) -> Job:
    ranks = {rank: place for place, rank in enumerate(sorted(job.ranks))}
    for call in {id(call): call for call in job.calls}.values():
        call.root = None if call.root is None else ranks.get(call.root)
        call.peer = None if call.peer is None else ranks.get(call.peer)
        if call.ranks is not None:
            call.ranks = [ranks[one] for one in call.ranks if one in ranks]
    groups = [tuple(ranks[one] for one in members if one in ranks) for members in job.groups]
    found = {ranks[number]: rank for number, rank in job.ranks.items()}
    return replace(job, ranks=found, groups=groups)
