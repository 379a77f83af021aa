"""A program whose journal is shortened, deleted and replaced while its threads record.

    python shortened.py FOLDER HOW...

It prints the same whether it is traced or not.
"""

from __future__ import annotations

import glob
import os
import sys
import threading
import time

import torch.distributed as dist


def newest(folder: str) -> tuple[int, str]:
    """Number and path of the segment that is being written; 0: there is no journal."""
    found = [(int(path.split(".")[-3]), path) for path in glob.glob(f"{folder}/*.ops.jsonl")]
    return max(found, default=(0, ""))


def harm(path: str, how: str) -> None:
    """What somebody else may do to a file at any time."""
    if how == "emptied":
        os.truncate(path, 0)
    elif how == "halved":
        os.truncate(path, os.path.getsize(path) // 2)
    elif how == "deleted":
        os.unlink(path)
    elif how == "replaced":
        with open(f"{path}.other", "wb") as file:
            file.write(b"another\n")
        os.replace(f"{path}.other", path)
    else:
        raise ValueError(how)


def main(folder: str, ways: list[str]) -> None:
    over = threading.Event()

    def work() -> None:
        store = dist.HashStore()
        while not over.is_set():
            store.set("key", "value")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for how in ways:
        time.sleep(0.2)
        number, path = newest(folder)
        if number:
            harm(path, how)
            until = time.monotonic() + 10
            while newest(folder)[0] <= number and time.monotonic() < until:
                time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    store = dist.HashStore()
    store.set("the last one", "value")
    print(len(threads), store.get("the last one"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
