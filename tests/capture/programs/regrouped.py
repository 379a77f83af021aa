"""Makes groups in the less trodden ways, and issues one operation or two in each.

    python regrouped.py RANK WORLD STORE_FILE count|trace FOLDER

As in `paths.py`: with `count` this program's own kernels count the operators `c10d::*` and print
them by way, with `trace` disttrace records. Both print how each way ended.
"""

from __future__ import annotations

import collections
import datetime
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

from paths import count_operators

LIMIT = datetime.timedelta(seconds=20)


def regroups(group: Any) -> bool:
    """Whether groups that C++ makes over gloo connect: before torch 2.15 they hang now and then."""
    return hasattr(group, "register_pre_hook")


def local(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
    """A group that only its members make, one of a single rank among them."""
    both = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=both)
    alone = dist.new_group([rank], use_local_synchronization=True)
    dist.broadcast(torch.ones(2), rank, group=alone)
    dist.destroy_process_group(both)
    again = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(2), group=again)
    return "made"


def split(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
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


def merge(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
    """Two groups of one become a group of two."""
    parent = dist.group.WORLD
    if not regroups(parent):
        return "not in this torch"
    half = parent.split_group([rank], group_name=f"half {rank}")
    meeting = dist.PrefixStore("merge", store)
    whole = half.merge_remote_group(meeting, world, LIMIT, group_name="whole")
    whole.allreduce([torch.ones(2)]).wait()
    return str(whole.size())


def shrink(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
    """A group without its last rank, where the backend can."""
    if not hasattr(dist, "shrink_group"):
        return "not in this torch"
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    if rank == 0:
        dist.all_reduce(torch.ones(2), group=dist.shrink_group([1], group=group))
    return "shrunk"


def abort(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
    """One rank aborts a group; the default group lives on."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    if rank == 1 and hasattr(group, "abort"):
        group.abort()
    dist.barrier()
    return "aborted"


def again(dist: Any, torch: Any, rank: int, world: int, store: Any) -> str:
    """Everything is destroyed and made anew under another prefix, twice."""
    for turn in range(2):
        dist.destroy_process_group()
        fresh = dist.PrefixStore(f"again-{turn}", store)
        dist.init_process_group("gloo", store=fresh, rank=rank, world_size=world)
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), group=dist.new_group())
    return "made"


WAYS = (split, merge, shrink, abort, again, local)


def ending(way: Callable[[], str]) -> str:
    """What ``way`` says, or its exception."""
    try:
        return way()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def main(rank: int, world: int, file: str, mode: str, folder: str) -> None:
    if mode == "trace":
        import disttrace

        disttrace.install(dir=folder)
    import torch
    import torch.distributed as dist

    store = dist.FileStore(file, world)
    first = dist.PrefixStore("first", store)
    dist.init_process_group("gloo", store=first, rank=rank, world_size=world, timeout=LIMIT)
    counts = count_operators() if mode == "count" else {}
    endings, by_way = {}, {}
    for way in WAYS:
        before = collections.Counter(counts)
        endings[way.__name__] = ending(functools.partial(way, dist, torch, rank, world, store))
        by_way[way.__name__] = dict(collections.Counter(counts) - before)
    print(json.dumps({"endings": endings, "counts": by_way}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
