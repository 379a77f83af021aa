"""Disturbs the recorder from every side at once, and counts what is on record.

    python stress.py FOLDER [CORE] [SECONDS]

Threads that come and go, forks, signal handlers that communicate and raise, dropped works, failing
calls, an interpreter that ends under threads. `make sanitize` runs it on a core built with address
and undefined behaviour sanitizers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import disttrace

_ALARM_S = 0.003


class Interrupted(Exception):  # noqa: N818 - no error
    """What the handler raises."""


def handler(number: int, frame: object) -> None:
    """Communicates, and raises every third time; the next alarm comes some time after that."""
    handler.calls += 1  # type: ignore[attr-defined]
    dist.broadcast(torch.ones(1), 0)
    signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
    if handler.calls % 3 == 0:  # type: ignore[attr-defined]
        raise Interrupted


handler.calls = 0  # type: ignore[attr-defined]


def turn(store: Any, number: int) -> None:
    """Every form of call once."""
    shape = torch.ones(number % 200 + 1)
    dist.all_reduce(shape)
    dist.all_reduce(shape, async_op=True).wait()
    del_me = dist.all_reduce(shape, async_op=True)
    future = dist.all_reduce(shape, async_op=True).get_future()
    del del_me, future
    store.set(f"key {number % 50} \u00e9", "v" * (number % 3000))
    store.get(f"key {number % 50} \u00e9")
    store.set(f"step/{number}/never/again", b"")
    functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    functional.wait_tensor(functional.all_reduce(shape, "sum", name))
    functional.all_gather_into_tensor(shape, 2, name)
    with disttrace.annotate(f"step {number}"):
        exec("dist.barrier()", {"dist": dist})
    for refused in (store.get, lambda: dist.group.WORLD.allreduce(None)):
        try:
            refused()
        except TypeError:
            pass


def worker(store: Any, until: float) -> None:
    """Threads of threads, each with a state of its own."""
    number = 0
    while time.monotonic() < until:
        number += 1
        turn(store, number)
        if number % 40 == 0:
            brief = threading.Thread(target=turn, args=(store, number))
            brief.start()
            brief.join()


def main(folder: str, core: str, seconds: float) -> None:
    """Run, fork, and leave with threads still at work."""
    disttrace.install(dir=folder, core=core, max_mb=4)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    store = dist.HashStore()
    until = time.monotonic() + seconds
    for _ in range(3):
        threading.Thread(target=worker, args=(store, until), daemon=True).start()
    signal.signal(signal.SIGALRM, handler)
    number = 0
    while time.monotonic() < until:
        try:
            signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
            while number % 300 or not number:
                number += 1
                turn(store, number)
            signal.setitimer(signal.ITIMER_REAL, 0)
            number += 1
            child = os.fork()
            if child == 0:
                for each in range(20):
                    turn(store, each)
                os._exit(0)
            os.waitpid(child, 0)
        except Interrupted:
            pass
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        signal.setitimer(signal.ITIMER_REAL, 0)
    broken = disttrace.session._session.capture.broken  # type: ignore[union-attr]
    print(number, handler.calls, sorted(broken))  # type: ignore[attr-defined]


if __name__ == "__main__":
    chosen, lasting = (sys.argv[2:] + ["c", "5"][len(sys.argv) - 2 :])[:2]
    main(sys.argv[1], chosen, float(lasting))
