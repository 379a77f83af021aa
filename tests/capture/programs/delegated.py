"""Gloo over a traced store: ports come free, errors are torch's own, all ends well."""

import datetime
import gc
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

PORT = int(sys.argv[1])
LONG, SHORT = datetime.timedelta(seconds=20), datetime.timedelta(seconds=1)


def server() -> TCPStore:
    return TCPStore("127.0.0.1", PORT, is_master=True, wait_for_workers=False)


def by_hand() -> None:
    group = ProcessGroupGloo(PrefixStore("hand", server()), 0, 1, LONG)
    # Named: torch 2.5 may hang in destroying a group when the tensor went before.
    tensor = torch.ones(2)
    group.allreduce(tensor).wait()


def by_init() -> None:
    dist.init_process_group("gloo", store=server(), rank=0, world_size=1)
    group = dist.new_group([0])
    gc.collect()  # the backends' Python objects are gone, the backends are not
    dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    dist.destroy_process_group()


def alone() -> None:
    try:
        ProcessGroupGloo(PrefixStore("alone", server()), 0, 2, SHORT)
    except dist.DistStoreError as error:
        print(type(error).__name__, error)


def in_threads() -> None:
    store, sums = dist.HashStore(), []

    def member(rank: int) -> None:
        tensor = torch.ones(2)
        ProcessGroupGloo(PrefixStore("two", store), rank, 2, LONG).allreduce(tensor).wait()
        sums.append(tensor.tolist())

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sums)


for step in (by_hand, by_hand, by_init, by_init, alone, in_threads):
    step()
    gc.collect()
    print(step.__name__)
