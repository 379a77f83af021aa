"""Row 24: a rank does not move at all, and somebody ends the job in the end.

    python examples/faults/launch.py --world 3 examples/faults/frozen.py --how gil

`--how gil`: a library call sleeps with the interpreter's lock (L1); `stop`: the process is stopped
by SIGSTOP (L2); `regex`: a regular expression never ends (L4), which is told with its line. No
heartbeat comes from it any more, but its connections stay open. Verdict, live and after the job was
killed: `missing_participant`, the culprit, never `process_failed`. With `--how stop --inside` it is
stopped in the operation: all are in, nothing moves: `no_progress` (gloo needs no GIL: not `gil`).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal

import torch
import torch.distributed as dist
from common import deeper, join, options, subgroup

STEPS = 4


def hold(how: str) -> None:
    """Stop the whole process in one way or the other."""
    if how == "gil":
        ctypes.PyDLL(None).sleep(600)  # <- L1
    if how == "regex":
        re.match("(a+)+$", "a" * 64 + "b")  # <- L4
    os.kill(os.getpid(), signal.SIGSTOP)  # <- L2


def main() -> None:
    """Train; in one step one rank freezes."""
    parser = options(__doc__, culprit=1)
    parser.add_argument("--how", choices=["gil", "regex", "stop"], default="gil")
    parser.add_argument("--inside", action="store_true", help="freeze in the operation")
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            here = step == chosen.step and rank == chosen.culprit
            if here and not chosen.inside:
                deeper(chosen.deep, lambda: hold(chosen.how))
            # Large, so that it is not over before the process has frozen.
            tensor = torch.ones(1 << 24 if chosen.inside else 8)
            if here and chosen.inside:
                work = dist.all_reduce(tensor, group=group, async_op=True)
                deeper(chosen.deep, lambda: hold(chosen.how))
                work.wait()
            dist.all_reduce(tensor, group=group)  # <- L3
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
