"""Row 9: the ranks do not find together. The launcher makes the fault, the program is innocent.

    L="python examples/faults/launch.py"; P=examples/faults/rendezvous.py
    $L --world 3 --ranks 0,1 $P                           rank 2 never started
    $L --world 3 --ranks 1,2 $P                           nobody claims rank 0
    $L --world 3 --ranks 0,1,0 --pause 3 $P               two processes claim rank 0, none rank 2
    $L --world 3 --set '1:MASTER_PORT={free}' $P          a wrong port on rank 1
    $L --world 3 --set 1:WORLD_SIZE=4 $P                  a wrong world size on rank 1
    $L --world 3 --taken $P                               another program has rank 0's port
    $L --world 3 --set 1:INIT_SUFFIX=b $P --file          another file on rank 1

Waits at L1, for 30 minutes or `--timeout` seconds. Verdicts: `rendezvous_incomplete`, culprit 2, a
rank without a process, and who is there; `rendezvous_unreachable`, culprit 0, no listener;
`duplicate_rank` with both pids, which explains the missing rank; `rendezvous_unreachable`,
culprit 1, with the port where a listener is; `group_mismatch` of the default group, culprit 1;
`process_failed`, rank 0, which could not listen; `rendezvous_incomplete`, culprit 1, with both
paths.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from datetime import timedelta

import common
import torch
import torch.distributed as dist


def main() -> None:
    """Join the group and prove it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timeout", type=float, default=common.LONG.total_seconds())
    parser.add_argument("--file", action="store_true", help="meet in a file")
    chosen = parser.parse_args()
    timeout = timedelta(seconds=chosen.timeout)
    if chosen.file:
        name = f"disttrace-{os.environ['MASTER_PORT']}{os.environ.get('INIT_SUFFIX', '')}"
        dist.init_process_group(  # <- L1f
            "gloo",
            init_method=f"file://{tempfile.gettempdir()}/{name}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timeout,
        )
    else:
        dist.init_process_group("gloo", timeout=timeout)  # <- L1
    dist.all_reduce(torch.ones(8))  # <- L2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
