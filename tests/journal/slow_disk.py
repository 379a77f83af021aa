"""A program whose journal lies on a file system that becomes slow; prints its own results.

    python slow_disk.py FOLDER LINES SECONDS

From the LINES-th write of the journal on, each takes SECONDS longer.
"""

from __future__ import annotations

import os
import sys
import time
from unittest import mock


def main(folder: str, lines: int, seconds: float) -> None:
    import disttrace

    written, write = 0, os.write

    def slowly(fd: int, data: bytes) -> int:
        nonlocal written
        written += 1
        if written >= lines:
            time.sleep(seconds)
        return write(fd, data)

    answer = ("written", "asked for")
    with mock.patch("disttrace.journal.segment.mechanism", return_value=answer):
        disttrace.install(dir=folder)
        import torch.distributed as dist

        store = dist.HashStore()
        begun = time.monotonic()
        with mock.patch("disttrace.journal.own_file.write", slowly):
            for n in range(200):
                store.set(str(n), "v")
    print(store.num_keys(), f"{time.monotonic() - begun:.1f}")
    print(os.path.basename(disttrace.__file__), dist.Store.set.__name__)
    disttrace.uninstall()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
