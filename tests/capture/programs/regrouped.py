"""Makes groups in the less trodden ways, and issues one operation or two in each.

python regrouped.py RANK WORLD STORE_FILE    as paths.py
"""

from __future__ import annotations

from typing import Any

import torch
from paths import LIMIT, dist, main


def regroups(group: Any) -> bool:
    """Whether groups that C++ makes over gloo connect: before torch 2.15 they hang now and then."""
    return hasattr(group, "register_pre_hook")


def local(rank: int, world: int, store: Any) -> str:
    """A group that only its members make, one of a single rank among them."""
    both = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=both)
    alone = dist.new_group([rank], use_local_synchronization=True)
    dist.broadcast(torch.ones(2), rank, group=alone)
    dist.destroy_process_group(both)
    again = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=again)
    return "made"


def split(rank: int, world: int, store: Any) -> str:
    """The method of the group, which C++ runs: each its own half, then both ranks."""
    parent = dist.group.WORLD
    if not hasattr(parent, "split_group"):
        return "not in this torch"
    alone = parent.split_group([rank], group_name=f"alone {rank}")
    alone.barrier().wait()
    if not regroups(parent):
        return "alone"
    both = parent.split_group([0, 1], group_name="both")
    both.allreduce([torch.ones(2)]).wait()
    dist.all_reduce(torch.ones(2), group=both)
    return f"{both.size()} {alone.size()}"


def merge(rank: int, world: int, store: Any) -> str:
    """Two groups of one become a group of two."""
    parent = dist.group.WORLD
    if not regroups(parent):
        return "not in this torch"
    half = parent.split_group([rank], group_name=f"half {rank}")
    meeting = dist.PrefixStore("merge", store)
    whole = half.merge_remote_group(meeting, world, LIMIT, group_name="whole")
    whole.allreduce([torch.ones(2)]).wait()
    return str(whole.size())


def shrink(rank: int, world: int, store: Any) -> str:
    """A group without its last rank, where the backend can."""
    if not hasattr(dist, "shrink_group"):
        return "not in this torch"
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=dist.shrink_group([1], group=group))
    return "shrunk"


def abort(rank: int, world: int, store: Any) -> str:
    """One rank aborts a group; the default group lives on."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    if rank == 1 and hasattr(group, "abort"):
        group.abort()
    dist.barrier()
    return "aborted"


def again(rank: int, world: int, store: Any) -> str:
    """Everything is destroyed and made anew under another prefix, twice."""
    for turn in range(2):
        dist.destroy_process_group()
        fresh = dist.PrefixStore(f"again-{turn}", store)
        dist.init_process_group("gloo", store=fresh, rank=rank, world_size=world)
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), group=dist.new_group())
    return "made"


if __name__ == "__main__":
    main([split, merge, shrink, abort, again, local])
