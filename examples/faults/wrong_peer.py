"""Row 25: a message to the wrong address.

    python examples/faults/launch.py --world 3 examples/faults/wrong_peer.py --how to

Rank 0 should send to 1, and 1 to 2. `--how to`: rank 0 sends to 2 (L1) while rank 1 receives from 0
(L2) and rank 2 from 1 (L3): 0 waits for a receive of 2, 1 for a send of 0, 2 for a send of 1. With
`--busy`, rank 2 has no such receive and is in its loader (L6). `--how from`: rank 1 receives from 2
while 0 sends to 1. `--how group`: ranks 0 and 1 reduce in one group
(L5), rank 1 in another one, whose third member is in its loader. Verdict: both ends are shown and
nobody is named, for whoever is at the end of the chain was addressed by mistake.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options


def rest() -> None:
    """Be busy elsewhere."""
    time.sleep(600)  # <- L6


def messages(how: str, rank: int, busy: bool) -> None:
    """0 sends to 1, 1 sends to 2; somebody is wrong about it."""
    data = torch.ones(8)
    if rank == 0:
        dist.send(data, dst=2 if how == "to" else 1)  # <- L1
    elif rank == 1:
        dist.recv(data, src=2 if how == "from" else 0)  # <- L2
        dist.send(data, dst=2)
    elif busy:
        rest()
    else:
        dist.recv(data, src=1)  # <- L3


def main() -> None:
    """A healthy step, then the mistake."""
    parser = options(__doc__)
    parser.add_argument("--how", choices=["to", "from", "group"], default="to")
    parser.add_argument("--busy", action="store_true")
    chosen = parser.parse_args()
    rank, _ = join()
    near, far = dist.new_group([0, 1]), dist.new_group([1, 2])
    for group, members in ((None, [0, 1, 2]), (near, [0, 1]), (far, [1, 2])):
        if rank in members:
            dist.all_reduce(torch.ones(8), group=group)
    if chosen.how != "group":
        messages(chosen.how, rank, chosen.busy)
    elif rank == 2:
        rest()
    else:
        dist.all_reduce(torch.ones(8), group=near if rank == 0 else far)  # <- L5
    dist.barrier()


if __name__ == "__main__":
    main()
