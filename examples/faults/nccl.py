"""Row 17: faults on NCCL, where a call returns although the device waits for ever.

    python examples/faults/launch.py --world 2 examples/faults/nccl.py --how missing

Needs CUDA. Two ranks share one GPU, each with an NCCL_HOSTID of its own. Hangs in `.item()` at L1
(`--block synchronize`: in `torch.cuda.synchronize()`, L1s), although each collective (L2) has
returned. Verdict: an operation is in flight until the device has finished it:
`missing`: `missing_participant`, culprit 1, which sleeps at L3.
`opposite`: two groups in opposite order (L4, L5): `deadlock`, nobody blamed.
`other_op`: all_gather (L6) on rank 1 against all_reduce (L2): `op_mismatch`, of two ranks nobody.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from common import LONG, options


def block(how: str, data: torch.Tensor) -> None:
    """Where the host waits for the device."""
    if how == "item":
        data.sum().item()  # <- L1
    else:
        torch.cuda.synchronize()  # <- L1s


def fault(how: str, rank: int, culprit: int, data: torch.Tensor) -> None:
    """The wrong step; returns unless the culprit sleeps."""
    if how == "missing":
        if rank == culprit:
            time.sleep(600)  # <- L3
        dist.all_reduce(data)  # <- L2
    elif how == "opposite":
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups:
            dist.all_reduce(data, group=group)
        torch.cuda.synchronize()
        first, second = groups if rank != culprit else groups[::-1]
        dist.all_reduce(data, group=first)  # <- L4
        # Waiting here keeps the second call from overtaking on the device.
        data.sum().item()  # <- L5
        dist.all_reduce(data, group=second)
    elif rank == culprit:
        dist.all_gather([torch.zeros_like(data) for _ in range(2)], data)  # <- L6
    else:
        dist.all_reduce(data)  # <- L2o


def main() -> None:
    """Some good steps, then the wrong one, and block on the device."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--how", choices=["missing", "opposite", "other_op"], default="missing")
    parser.add_argument("--block", choices=["item", "synchronize"], default="item")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("needs CUDA\n")
        raise SystemExit(77)
    rank = int(os.environ["RANK"])
    device = rank % torch.cuda.device_count()
    os.environ["NCCL_HOSTID"] = f"host-{rank}"
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=LONG)
    data = torch.ones(1 << 20, device=f"cuda:{device}")
    for _ in range(chosen.step):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    fault(chosen.how, rank, chosen.culprit, data)
    block(chosen.block, data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
