"""Row 5: of two messages one has no other end.

    python examples/faults/launch.py --world 2 examples/faults/one_sided_batch.py

Ranks 0 and 1 (or `--pair`) exchange in a batch; rank 0 posts [isend, irecv] and waits at L1, rank 1
only [irecv] (L2), and sleeps at L3. Hangs. Verdict: `unmatched_recv` on 0 from 1, culprit 1, which
never posts that send; the other message did match. `--missing recv`: rank 1 posts only [isend], so
it is `unmatched_send` on 0 to 1. `--missing tag`: both post both, but the tags of one direction
differ: `unmatched_recv` or `unmatched_send` whose summary names both tags; nobody is blamed. With
`--then barrier` rank 1 goes on to a collective with rank 0 (L4) instead: a `deadlock`. Any further
ranks sleep at L5 and have no part in it.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options, ranks


def batch(other: int, *, send: bool, recv: bool, tag: int) -> list[dist.Work]:
    """Post what this rank posts; the tag is that of its receive."""
    ops = []
    if send:
        ops.append(dist.P2POp(dist.isend, torch.ones(8), other, tag=0))
    if recv:
        ops.append(dist.P2POp(dist.irecv, torch.zeros(8), other, tag=tag))
    works: list[dist.Work] = dist.batch_isend_irecv(ops)  # <- L0
    return works


def main() -> None:
    """One good exchange, then the one-sided one."""
    parser = options(__doc__)
    parser.add_argument("--pair", type=ranks, default=[0, 1])
    parser.add_argument("--missing", choices=["send", "recv", "tag"], default="send")
    parser.add_argument("--then", choices=["sleep", "barrier"], default="sleep")
    chosen = parser.parse_args()
    rank, _ = join()
    first, second = chosen.pair
    if rank in chosen.pair:
        other = second if rank == first else first
        for _ in range(chosen.step):
            for work in batch(other, send=True, recv=True, tag=0):
                work.wait()
    if rank == first:
        tag = 5 if chosen.missing == "tag" else 0
        for work in batch(second, send=True, recv=True, tag=tag):
            work.wait()  # <- L1
    elif rank == second:
        send, recv = chosen.missing != "send", chosen.missing != "recv"
        for work in batch(first, send=send, recv=recv, tag=0):
            work.wait()  # <- L2
        if chosen.then == "sleep":
            time.sleep(600)  # <- L3
    else:
        time.sleep(600)  # <- L5
    dist.barrier()  # <- L4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
