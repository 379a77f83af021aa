"""Communicators: made in the first call, with the group, beside the host; many, split."""

from __future__ import annotations

from gpu.proof.rank import Rank, say


def communicators(rank: Rank) -> None:
    """The first calls of the default group, of another and of a pair."""
    say(blocks="the first call")
    if rank.absent():
        rank.never_come()
    rank.dist.all_reduce(rank.x)
    group = rank.dist.new_group(list(range(rank.world)))
    rank.dist.all_reduce(rank.x, group=group)
    (rank.dist.send if rank.rank == 0 else rank.dist.recv)(rank.x, 1 - rank.rank)
    rank.end_well()


def first_call(rank: Rank) -> None:
    """The first call of the default group, which takes two minutes."""
    rank.dist.all_reduce(rank.x)
    rank.end_well()


def split(rank: Rank) -> None:
    """`split_group`, and forty groups one after another."""
    halves = rank.dist.split_group(split_ranks=[[r] for r in range(rank.world)])
    rank.dist.all_reduce(rank.x, group=halves)
    for _ in range(40):
        rank.dist.all_reduce(rank.x, group=rank.dist.new_group(list(range(rank.world))))
    rank.end_well()
