"""Disturbs the recorder from every side at once, and counts what is on record.

    python stress.py FOLDER [CORE] [SECONDS]

Threads that come and go, forks, signal handlers that communicate and raise, dropped works, failing
calls, other interpreters beside, one that ends under threads. `make sanitize` runs it on a core
built with address and undefined behaviour sanitizers.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import disttrace
from disttrace.recording.core import PIECES

try:
    import _interpreters as interpreters  # type: ignore[import-not-found]
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]

_ALARM_S = 0.003

# In an interpreter of its own, where neither torch nor orjson can be: the native core alone.
_ELSEWHERE = f"""
import mmap
from disttrace.recording import _fast as fast
class Core(fast.Core):
    def end(self, operation):
        self.event(4, operation)
for turn in range(20):
    core, thread, call, counter = Core({PIECES!r}), fast.ThreadState(), fast.Call(), fast.Call()
    thread.tail, call.n, call.counter = b"", 7, counter
    core.recover = lambda error, line: core.put(line)
    lines = []
    core.put = lines.append
    kept = [core.begin(thread, call, b',"k":"%d"' % n) for n in range(100)]
    for operation in kept:
        core.end(operation)
    assert len(lines) == 200 and not core.in_flight(), lines[-1]
    mapping = mmap.mmap(-1, 4096)
    core.put = fast.Window(mapping, 0).put
    core.end(core.begin(thread, call))
    assert bytes(mapping).count(b"\\n") == 2
    core.dropped = core  # a cycle for the collector
"""


class Interrupted(Exception):  # noqa: N818 - no error
    """What the handler raises."""


def handler(number: int, frame: object) -> None:
    """Communicates, and raises every third time that somebody is there to catch it; the next alarm
    comes some time after that."""
    handler.calls += 1  # type: ignore[attr-defined]
    dist.broadcast(torch.ones(1), 0)
    signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
    if handler.calls % 3 == 0 and handler.caught:  # type: ignore[attr-defined]
        handler.caught = False  # type: ignore[attr-defined]
        raise Interrupted


handler.calls, handler.caught = 0, False  # type: ignore[attr-defined]


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


def turns(store: Any, numbers: Iterator[int]) -> None:
    """Up to the next fork. A function: Python 3.13.0 lets an exception that comes in a loop's
    condition pass the ``except`` around it."""
    for number in numbers:
        turn(store, number)
        if number % 300 == 0:
            break


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


def elsewhere() -> None:
    """Another interpreter beside this one, from its start to its end."""
    # Those with a lock of their own refuse modules that do not say they can be there, as ours.
    shared = ("legacy",) if sys.version_info >= (3, 13) else ()
    beside = interpreters.create(*shared)
    try:
        failed = (
            interpreters.exec(beside, _ELSEWHERE)
            if shared
            else interpreters.run_string(beside, _ELSEWHERE)
        )
    finally:
        interpreters.destroy(beside)
    if failed is not None:  # Python 3.13 returns what was raised
        raise AssertionError(failed)


def main(folder: str, core: str, seconds: float) -> None:
    """Run, fork, and leave with threads still at work."""
    disttrace.install(dir=folder, core=core, max_mb=4)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    store = dist.HashStore()
    until = time.monotonic() + seconds
    for _ in range(3):
        threading.Thread(target=worker, args=(store, until), daemon=True).start()
    signal.signal(signal.SIGALRM, handler)
    numbers = itertools.count(1)
    while time.monotonic() < until:
        signal.setitimer(signal.ITIMER_REAL, _ALARM_S)
        try:
            handler.caught = True  # type: ignore[attr-defined]
            turns(store, numbers)
            handler.caught = False  # type: ignore[attr-defined]
        except Interrupted:
            continue
        signal.setitimer(signal.ITIMER_REAL, 0)
        child = os.fork()
        if child == 0:
            own = dist.HashStore()  # a thread of the parent's may have held the other's lock
            for each in range(20):
                turn(own, each)
            os._exit(0)
        os.waitpid(child, 0)
        if core == "c":
            elsewhere()
    signal.setitimer(signal.ITIMER_REAL, 0)
    broken = disttrace.session._session.capture.broken  # type: ignore[union-attr]
    print(next(numbers), handler.calls, sorted(broken))  # type: ignore[attr-defined]


if __name__ == "__main__":
    chosen, lasting = (sys.argv[2:] + ["c", "5"][len(sys.argv) - 2 :])[:2]
    main(sys.argv[1], chosen, float(lasting))
