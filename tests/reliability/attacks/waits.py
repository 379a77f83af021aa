"""Waiting: signals, loops, pools and threads get what they wait for, once, and nothing else."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

from reliability.attacks.ground import (
    STALL_S,
    code_of,
    command,
    forked,
    group,
    ran,
    reduce,
    say,
    stall,
)


def interrupted_anywhere(dist: Any) -> None:
    """Each of many Ctrl-C comes out once, with a traceback of the program's and torch's frames."""
    store = dist.HashStore()
    pid, ready = os.getpid(), os.pipe()
    if os.fork() == 0:
        for n in range(150):
            os.read(ready[0], 1)
            time.sleep(0.001 + 0.00013 * (n % 37))
            os.kill(pid, signal.SIGINT)
        os._exit(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    came, ours = 0, 0
    for _ in range(150):
        try:
            os.write(ready[1], b"x")
            until = time.monotonic() + 10
            while time.monotonic() < until:
                reduce(dist, 3)
                store.set("a", "b")
                store.get("a")
        except KeyboardInterrupt as error:
            came += 1
            files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            ours += sys.version_info >= (3, 11) and any("/disttrace/" in x for x in files)
    say(came=came, ours=ours, code=os.wait()[1])


def timed_waits() -> None:
    """sigtimedwait runs to its end in a stall, pause ends by the program's own signal only."""
    group()
    every = set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)) | {signal.SIGCHLD, signal.SIGIO}
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    began = time.monotonic()
    say(came=signal.sigtimedwait(every, 3 * STALL_S), full=time.monotonic() - began > 2.9 * STALL_S)
    counted: list[int] = []
    signal.signal(signal.SIGUSR1, lambda n, _: counted.append(n))
    threading.Timer(2 * STALL_S, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    signal.pause()
    say(counted=counted)


def handlers_while_it_stalls() -> None:
    """Handlers that set, replaced and taken away during a stall run as often as signals came."""
    group()
    counts: Counter[int] = Counter()
    for turn in range(6):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, lambda n, _: counts.update([int(n)]))
            os.kill(os.getpid(), number)
            if turn % 2:
                signal.signal(number, signal.SIG_IGN)
                os.kill(os.getpid(), number)
        stall(0.6)
    say(counts=sorted(counts.items()))


def asyncio_loop(dist: Any) -> None:
    """Signals, sockets and timers of a loop beside collectives in threads."""

    async def echo(reader: Any, writer: Any) -> None:
        writer.write(await reader.read(5))
        await writer.drain()
        writer.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        for number in (signal.SIGUSR1, signal.SIGCHLD):
            loop.add_signal_handler(number, seen.append, signal.Signals(number).name)
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        done = await asyncio.gather(*(asyncio.to_thread(reduce, dist, 20) for _ in range(4)))
        await asyncio.sleep(2 * STALL_S)
        os.kill(os.getpid(), signal.SIGUSR1)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        got = await reader.read(5)
        writer.close()
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.2)
        except asyncio.TimeoutError:
            seen.append("time-out")
        server.close()
        say(seen=seen, done=len(done), got=got)

    asyncio.run(main(), debug=True)


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


def switched_by_a_hub(dist: Any) -> None:
    """Locks, sleeps, queues and selects are replaced by a library, as gevent does: nobody but the
    program calls what it put there on the program's thread."""
    used: Counter[str] = Counter()
    main = threading.get_ident()

    def counting(original: Any) -> Any:
        def replaced(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == main:
                used[original.__name__] += 1
            return original(*args, **kwargs)

        return replaced

    places: list[tuple[Any, str]] = [
        (threading, "Lock"), (threading, "RLock"), (threading, "Event"), (threading, "Thread"),
        (queue, "SimpleQueue"), (select, "poll"), (time, "sleep"), (time, "time"),
    ]  # fmt: skip
    for module, name in places:
        setattr(module, name, counting(getattr(module, name)))
    reduced = reduce(dist, 500)
    dist.HashStore().set("a", "b")
    stall(2)
    say(slept=used.pop("sleep", 0) > 0, used=sorted(used.items()), reduced=reduced)


def threads_that_fork(dist: Any) -> None:
    """Four threads fork at once while others record: each child's code comes back."""
    store = dist.HashStore()
    codes: list[int] = []
    over = threading.Event()

    def forks(n: int) -> None:
        codes.extend(code_of(forked((n + m) % 7)) for m in range(15))

    def records() -> None:
        n = 0
        while not over.is_set():
            n += 1
            store.set(f"{n}", "x" * (n % 700))

    recording = [threading.Thread(target=records) for _ in range(2)]
    forking = [threading.Thread(target=forks, args=(n,)) for n in range(4)]
    for one in recording + forking:
        one.start()
    for one in forking:
        one.join()
    over.set()
    for one in recording:
        one.join(20)
    say(codes=sorted(codes), alive=[one.is_alive() for one in recording])


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


def held_lock_of_the_collector(dist: Any) -> None:
    """Garbage that issues operations when it is collected, at every allocation."""
    import gc

    store = dist.HashStore()
    collected = [0]

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            collected[0] += 1
            store.set("x", "y")

    gc.set_threshold(20, 2, 2)
    for _ in range(400):
        Cycle()
        reduce(dist)
        store.get("x") if collected[0] else None
    gc.collect()
    say(collected=collected[0])
