"""One replica of a job that is replicated: its rank 1 has a child that joins the other replica's.

Started twice by `two_jobs_launcher.py`, which says how it looks when traced. Rank 1 of the last
replica hosts a TCPStore; rank 1 of each replica spawns a child; the children meet in that store
and build a process group by hand over both jobs.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import PrefixStore, TCPStore


def replica_group(store: dist.Store, options: argparse.Namespace) -> dist.ProcessGroup:
    """The group over replicas, of NCCL where each of the four workers has a GPU, else of gloo."""
    if torch.cuda.device_count() >= 4:
        from torch.distributed import ProcessGroupNCCL

        torch.cuda.set_device(options.replica_id * 2 + 1)
        return ProcessGroupNCCL(store, options.replica_id, options.replicas)
    from torch.distributed import ProcessGroupGloo

    timeout = timedelta(seconds=options.timeout)
    return ProcessGroupGloo(store, options.replica_id, options.replicas, timeout)


def child(_index: int, rank: int, options: argparse.Namespace) -> None:
    """Meet the child of the other replica and add up with it, without torch's default group."""
    base = TCPStore(
        "127.0.0.1",
        options.port,
        is_master=False,
        timeout=timedelta(seconds=options.timeout),
    )
    store = PrefixStore(f"{options.prefix}_{rank}", base)
    group = replica_group(store, options)
    device = "cuda" if torch.cuda.device_count() >= 4 else "cpu"
    data = torch.full((8,), float(options.replica_id + 1), device=device)
    work = group.allreduce(data)
    work.wait()
    sys.stdout.write(f"replica {options.replica_id}: the replicas' sum is {data[0].item():g}\n")


def main() -> None:
    """Train in the replica; rank 1 speaks to the other replica through its child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica-id", type=int, required=True)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--port", type=int, required=True, help="where the replicas meet")
    parser.add_argument("--prefix", default="replicas")
    parser.add_argument("--timeout", type=float, default=60.0, help="of the meeting, in seconds")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        server = None
        if options.replica_id == options.replicas - 1:
            server = TCPStore("0.0.0.0", options.port, is_master=True, wait_for_workers=False)
        mp.spawn(child, args=(rank, options), nprocs=1)
        del server
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
