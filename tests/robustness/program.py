"""A program whose journal meets trouble in mid-run: argv is the trouble, its result is printed."""

import os
import resource
import shutil
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

FOLDER = os.environ.get("DISTTRACE_DIR", "")
LINE = "x" * 200  # a key, so that the journal grows
MINE: list[int] = []


def trouble(kind: str) -> None:
    """Take away what the journal needs."""
    if kind.startswith("deleted") and os.path.isdir(FOLDER):
        shutil.rmtree(FOLDER)
        time.sleep(2.5 * (kind == "deleted, then idle"))  # every part meets that, by itself
    elif kind == "descriptors":
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, highest + 1))
    elif kind.startswith("closed"):  # as daemons do, and the numbers are the program's from there
        os.closerange(3, 4096)
        with tempfile.TemporaryDirectory() as folder:
            for number in range(40):
                MINE.append(os.open(f"{folder}/{number}", os.O_CREAT | os.O_RDWR))
                os.write(MINE[-1], b"mine")
    elif kind in ("size", "size with a signal"):
        if kind != "size":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python itself ignores it
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


def main() -> int:
    """Issue operations before and after the trouble; the exit code is the program's own."""
    if sys.argv[1] == "closed, written":
        from disttrace.journal import segment

        segment.MAPPABLE = frozenset()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    store = dist.HashStore()
    tensor = torch.ones(4)
    for step in range(3_000):
        if step == 100:
            trouble(sys.argv[1])
        dist.all_reduce(tensor)
        store.set(f"{LINE}{step}", str(step))
    if sys.argv[1] == "deleted" and FOLDER:
        time.sleep(2.5)  # a heartbeat looks whether the folder is there
    assert [os.pread(fd, 9, 0) for fd in MINE] == [b"mine"] * len(MINE)
    print(store.get(f"{LINE}2999").decode(), store.num_keys(), tensor.sum().item())
    dist.destroy_process_group()
    return 3


if __name__ == "__main__":
    sys.exit(main())
