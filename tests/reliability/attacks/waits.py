"""Waiting: signals, loops, pools and threads get what they wait for, once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

from reliability.attacks.ground import (
    STALL_S,
    command,
    group,
    ran,
    reduce,
    say,
)


def interrupted_loop() -> None:
    """Ctrl-C cancels the main task of asyncio.run once."""

    async def main() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            say(cancelled=True)
            raise

    group()
    threading.Timer(1.5 * STALL_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        say(interrupted=True)


def shared_by_processes() -> None:
    """Managers, shared memory, queues, locks and events of multiprocessing, by each method."""
    import multiprocessing
    from multiprocessing import shared_memory

    group()
    for method in ("fork", "spawn", "forkserver"):
        context: Any = multiprocessing.get_context(method)
        box, event = context.Queue(), context.Event()
        block: Any = shared_memory.SharedMemory(create=True, size=16)
        worker = context.Process(target=_shares, args=(box, event, block.name))
        worker.start()
        got = box.get(timeout=60)
        event.set()
        worker.join(60)
        say(method=method, got=got, code=worker.exitcode, byte=block.buf[0])
        block.close()
        block.unlink()
        stopped = context.Process(target=time.sleep, args=(60,))
        stopped.start()
        stopped.terminate()
        stopped.join(60)
        say(stopped=stopped.exitcode, left=len(multiprocessing.active_children()))
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        say(shared=dict(shared))


def _shares(box: Any, event: Any, name: str) -> None:
    from multiprocessing import shared_memory

    block: Any = shared_memory.SharedMemory(name)
    block.buf[0] = 9
    block.close()
    box.put(os.getpid() != os.getppid())
    event.wait(60)


def spawned_by_torch() -> None:
    """torch.multiprocessing.spawn: codes, exceptions and their texts."""
    import torch.multiprocessing as mp

    for kind in ("ends", "raises", "exits", "killed"):
        try:
            mp.spawn(_spawned, args=(kind,), nprocs=2)
            say(kind=kind)
        except Exception as error:
            lines = [x for x in str(error).splitlines() if x.strip()]
            say(kind=kind, error=type(error).__name__, last=lines[-1], frames=len(lines))


def _spawned(rank: int, kind: str) -> None:
    reduce(group(), 5)
    if kind == "raises" and rank == 1:
        raise LookupError("mine")
    if kind == "exits" and rank == 1:
        sys.exit(7)
    if kind == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def order_of_the_end() -> None:
    """atexit, finalizers, threads' ends and objects that use torch while all is taken down."""
    ran(command("waits._ends"), last=3)


class _Late:
    def __init__(self, store: Any) -> None:
        self.store = store

    def __del__(self) -> None:
        self.store.set("late", "1")
        os.write(1, b"late\n")


def _ends() -> None:
    import atexit
    import weakref

    atexit.register(os.write, 1, b"first registered\n")
    dist = group()
    store = dist.HashStore()
    atexit.register(store.set, "a", "b")
    atexit.register(lambda: os.write(1, b"%r\n" % reduce(dist) if False else b"reduces\n"))
    kept = _Late(store)
    weakref.finalize(kept, os.write, 1, b"finalized\n")
    globals()["kept"] = kept

    def works() -> None:
        time.sleep(0.5)
        reduce(dist, 10)
        os.write(1, b"thread\n")

    threading.Thread(target=works).start()
    atexit.register(os.write, 1, b"last registered\n")
