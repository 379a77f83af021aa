"""Row 18: the agents of several nodes do not find together, or one of them does not come back.

    N="python examples/faults/nodes.py"; P=examples/faults/nodes_rendezvous.py
    $N --nnodes 2 --start 1 $P                                 node 1 never comes
    $N --nnodes 3 --start 2 $P                                 node 2 never comes
    $N --nnodes 2 --set 1:rdzv-id=other $P                     node 1 has another id
    $N --nnodes 2 --set 1:nnodes=3 $P                          node 1 waits for a third
    $N --nnodes 1:2 --start 1 $P --then sleep                  one node is enough: nothing is wrong
    $N --nnodes 2 $P --then slow                               node 1 ends later: nothing is wrong
    $N --nnodes 2 --set 0:max-restarts=1 $P --then leave       node 1 does not come back

Verdict: `rendezvous_incomplete` with the agents that came, how many of how many nodes, and who is
missing as far as that is known; nobody is named, for a node that never came has no rank.
"""

from __future__ import annotations

import argparse
import os
import time

import common
import torch
import torch.distributed as dist


def main() -> None:
    """Join, communicate, and then do as told."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--then", choices=["end", "sleep", "slow", "leave"], default="end")
    parser.add_argument("--seconds", type=float, default=15.0)
    chosen = parser.parse_args()
    common.join()
    dist.all_reduce(torch.ones(8))  # <- L1
    first = os.environ["NODE"] == "0"
    if chosen.then == "sleep":
        time.sleep(chosen.seconds)
    if chosen.then == "leave" and first:
        raise ValueError("node 0 starts anew")  # <- L2
    dist.destroy_process_group()
    if chosen.then == "slow" and not first:
        time.sleep(chosen.seconds)


if __name__ == "__main__":
    main()
