"""Row 24: a rank does not move at all, and somebody ends the job in the end.

    python examples/faults/launch.py --world 3 examples/faults/frozen.py --how gil

`--how gil`: a library call sleeps with the interpreter's lock (L1); `stop`: the process is stopped
by SIGSTOP (L2); `regex`: a regular expression never ends (L4), which is told with its line. No
heartbeat comes from it any more, but its connections stay open. Verdict, live and after the job was
killed: `missing_participant`, the culprit, never `process_failed`.
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
    chosen = parser.parse_args()
    rank, _ = join()
    group, members = subgroup(chosen.group)
    if rank in members:
        for step in range(STEPS):
            if step == chosen.step and rank == chosen.culprit:
                deeper(chosen.deep, lambda: hold(chosen.how))
            dist.all_reduce(torch.ones(8), group=group)  # <- L3
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
