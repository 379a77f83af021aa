"""Traces and stops tracing again and again, each time with the package imported anew.

    python reinstalled.py FOLDER [CORE] [ROUNDS]

What a notebook does that reloads its modules, and what nothing of ours may outlive: threads,
frames, types, numbers of code objects. Beside it threads come and go, each round leaves an
operation in flight, and the collector runs often and lets other threads run. Whatever is said on
stderr is a fault; at the end it prints what grew since the first tenth of the rounds. Some 0.5 MB
a round are what the interpreter keeps with its handlers for forks.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist


class Local:
    """What lies in their frames."""


class Cycle:
    """Garbage that lets other threads run when it is collected. (It starts none: `threading` takes
    a lock for that, in whose midst the collector may have come.)"""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        time.sleep(0)


def down(depth: int, *values: object) -> None:
    """Frames of many sizes, with words of every kind in them; the last one handles an exception."""
    a = b = c = Local()  # noqa: F841
    if depth:
        down(depth - 1, *values, a, b)
        return
    try:
        raise LookupError(len(values), "of", a)  # noqa: TRY301
    except LookupError:
        time.sleep(0.0001)


def works(is_over: threading.Event) -> None:
    """Stands nowhere for long, and starts others."""
    turn = 0
    while not is_over.is_set():
        turn += 1
        down(turn % 23, *range(turn % 5))
        if turn % 20 == 0:
            thread = threading.Thread(target=down, args=(turn % 7,))
            thread.start()
            thread.join()


def reimported() -> Any:
    """The package, as in a process that had not imported it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "disttrace"]:
        del sys.modules[name]
    import disttrace

    return disttrace


def turn(folder: str, core: str) -> None:
    disttrace = reimported()
    disttrace.install(dir=folder, quiet=True, core=core)
    assert disttrace.session._session.recorder.core.name == core
    dist.all_reduce(torch.ones(1))
    Cycle()
    disttrace.session._session.live._stacks.take()  # what the background thread does now and then
    held = dist.all_reduce(torch.ones(1), async_op=True)
    disttrace.uninstall()
    held.wait()


def rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(folder: str, core: str, rounds: int) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    is_over = threading.Event()
    beside = threading.Thread(target=works, args=(is_over,))
    beside.start()
    gc.set_threshold(97, 5, 5)
    sys.setswitchinterval(1e-4)
    first = 0
    try:
        for number in range(rounds):
            turn(folder, core)
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            if number == rounds // 10:
                gc.collect()
                first = rss()
        gc.collect()
        grown = (rss() - first) // (rounds - rounds // 10)
        count = threading.active_count()
        print(f"{rounds} rounds on {core}: {grown} bytes a round, {count} threads")
    finally:
        is_over.set()
        beside.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    chosen, number = (sys.argv[2:] + ["c", "300"][len(sys.argv) - 2 :])[:2]
    os.makedirs(sys.argv[1], exist_ok=True)
    main(sys.argv[1], chosen, int(number))
