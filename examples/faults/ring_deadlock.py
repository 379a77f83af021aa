"""Row 4: in a ring every rank does first what can only end when its neighbour does the other.

    python examples/faults/launch.py --world 3 examples/faults/ring_deadlock.py
    python examples/faults/launch.py --world 2 examples/faults/ring_deadlock.py --first send

Hangs. Verdict: one `deadlock` with the whole cycle, each rank at L1 (all receive first) or L2 (all
send first: on gloo small messages block too), sizes and tags; no culprit. `--group` closes the ring
over these ranks only; the others wait in the last barrier (L3), a consequence.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4


def exchange(previous: int, following: int, first: str, tag: int) -> None:
    """Pass data on by blocking calls, in the order that cannot work."""
    data, received = torch.ones(8), torch.zeros(8)
    if first == "recv":
        dist.recv(received, src=previous, tag=tag)  # <- L1
        dist.send(data, dst=following, tag=tag)
    else:
        dist.send(data, dst=following, tag=tag)  # <- L2
        dist.recv(received, src=previous, tag=tag)


def healthy(place: int, previous: int, following: int) -> None:
    """The same ring in an order that works: the first one starts it."""
    data = torch.ones(8)
    if place == 0:
        dist.send(data, dst=following)
        dist.recv(data, src=previous)
    else:
        dist.recv(data, src=previous)
        dist.send(data, dst=following)


def main() -> None:
    """Go round properly for some steps, then close the cycle."""
    parser = options(__doc__)
    parser.add_argument("--first", choices=["recv", "send"], default="recv")
    parser.add_argument("--tag", type=int, default=7)
    chosen = parser.parse_args()
    rank, _ = join()
    _, members = subgroup(chosen.group)
    if rank in members:
        place = members.index(rank)
        previous, following = members[place - 1], members[(place + 1) % len(members)]
        for _ in range(chosen.step):
            healthy(place, previous, following)
        deeper(chosen.deep, lambda: exchange(previous, following, chosen.first, chosen.tag))
    dist.barrier()  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
