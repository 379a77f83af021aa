"""Starts a rank whose store stands still for a while, adopts orphans, and waits for all children.

`adopts.py here|first`: as a subreaper, or as the first process of a pid namespace, which it is.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

RANK = """
import datetime, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=6))
try:
    store.get("never")
except dist.DistStoreError:
    print("never came", flush=True)
"""


def main() -> None:
    """Every child that ends is told by one line."""
    if sys.argv[1] == "here":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    assert (os.getpid() == 1) == (sys.argv[1] == "first")
    import torch.distributed as dist

    dist.HashStore().set("it keeps", "a journal")
    # An orphan of its own, which is its child once the shell is gone.
    shell = subprocess.Popen(["/bin/sh", "-c", "sleep 1 & "])
    rank = subprocess.Popen([sys.executable, "-c", RANK])
    names = {shell.pid: "shell", rank.pid: "rank"}
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        sys.stdout.write(f"{names.get(pid, 'orphan')} ended with {status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
