"""Row 21: a rank fails, torchrun starts all anew, and the second attempt ends well, or hangs.

    N="python examples/faults/nodes.py --nnodes 1 --start 1 --per-node 2 --set 0:max-restarts=1"
    $N examples/faults/restarted.py

Verdict: a note (`process_failed`, culprit 1, with its exception and L1): the first attempt failed,
and the second one ran to its end. With `--then sleep` that is an error, and rank 0 stands at L2 in
the second attempt: `missing_participant`, culprit 0, besides. Each attempt meets under a prefix of
its own: under the usual one the addresses of the first attempt are still there, and torch 2.13
itself fails or hangs.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from common import options


def join(attempt: str) -> int:
    """Join the default group under a prefix that no other attempt uses; returns the rank."""
    torch.set_num_threads(1)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    server = dist.TCPStore(address, port, is_master=False)
    store = dist.PrefixStore(f"attempt{attempt}", server)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return rank


def main() -> None:
    """Train; the first attempt does not come far."""
    parser = options(__doc__)
    parser.add_argument("--then", choices=["end", "sleep"], default="end")
    chosen = parser.parse_args()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    rank = join(attempt)
    dist.all_reduce(torch.ones(8))
    again = attempt != "0"
    if not again and rank == chosen.culprit:
        raise ValueError("the first attempt fails")  # <- L1
    if again and rank != chosen.culprit and chosen.then == "sleep":
        time.sleep(600)  # <- L2
    dist.all_reduce(torch.ones(8))  # <- L3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
