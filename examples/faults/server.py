"""A server: rank 0 waits for requests, and the others for what it broadcasts of them.

    python examples/faults/launch.py --world 3 examples/faults/server.py --waits accept
    python examples/faults/launch.py --world 3 examples/faults/server.py --waits queue --broken lock

Five requests are served, `--pace` seconds apart. Then none comes any more, which is no fault,
unless `--broken` says what is wrong after all.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from common import join, options

REQUESTS = 5
LOCK = threading.Lock()
POOL = ThreadPoolExecutor(1)


class Clients:
    """What sends the requests: a process of its own that is not traced, or a thread."""

    def __init__(self, pace: float, requests: int) -> None:
        self.pace, self.requests = pace, requests

    def process(
        self, code: str, *arguments: object, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Runs ``code`` for each request, where `n` is its number; then it lives on."""
        text = f"import socket, sys, time, os\nfor n in range({self.requests}):\n"
        text += f" time.sleep({self.pace})\n {code}\ntime.sleep(100)"
        command = [sys.executable, "-c", text, *map(str, arguments)]
        return subprocess.Popen(command, env={**os.environ, "DISTTRACE": "0"}, stdout=stdout)

    def thread(self, send: Callable[[int], object], *, fails: bool = False) -> None:
        """Sends each request; afterwards it waits as well, or an exception ends it."""

        def run() -> None:
            for n in range(self.requests):
                time.sleep(self.pace)
                send(n)
            if fails:
                raise ValueError("the client's connection is gone")
            threading.Event().wait()

        threading.Thread(target=run, daemon=True).start()


CONNECT = "socket.create_connection(('127.0.0.1', int(sys.argv[1]))).send(b'x')"


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def accept(clients: Clients) -> Iterator[object]:
    server = listener()
    clients.process(CONNECT, server.getsockname()[1])
    while True:
        connection, _ = server.accept()  # <- accept
        with connection:
            yield connection.recv(1)


def received(clients: Clients) -> Iterator[object]:
    """One connection for all of them."""
    server, client = listener(), "c = c if n else socket.create_connection((sys.argv[1], "
    clients.process(f"{client}int(sys.argv[2]))); c.send(b'x')", *server.getsockname())
    connection, _ = server.accept()
    while True:
        yield connection.recv(1)  # <- recv


def selected(clients: Clients) -> Iterator[object]:
    server = listener()
    clients.process(CONNECT, server.getsockname()[1])
    while True:
        select.select([server], [], [])  # <- select
        yield server.accept()[0].recv(1)


def polled(clients: Clients) -> Iterator[object]:
    server, poller = listener(), select.poll()
    poller.register(server, select.POLLIN)
    clients.process(CONNECT, server.getsockname()[1])
    while True:
        while not poller.poll(1000):  # <- poll
            pass
        yield server.accept()[0].recv(1)


def selector(clients: Clients) -> Iterator[object]:
    server, chosen = listener(), selectors.DefaultSelector()
    chosen.register(server, selectors.EVENT_READ)
    clients.process(CONNECT, server.getsockname()[1])
    while True:
        chosen.select()  # <- selector
        yield server.accept()[0].recv(1)


def queued(clients: Clients, *, fails: bool = False) -> Iterator[object]:
    requests: queue.Queue[int] = queue.Queue()
    clients.thread(requests.put, fails=fails)
    while True:
        yield requests.get()  # <- queue


def simple(clients: Clients) -> Iterator[object]:
    requests: queue.SimpleQueue[int] = queue.SimpleQueue()
    clients.thread(requests.put)
    while True:
        yield requests.get()  # <- simple


def condition(clients: Clients) -> Iterator[object]:
    changed, requests = threading.Condition(), list[int]()

    def put(n: int) -> None:
        with changed:
            requests.append(n)
            changed.notify()

    clients.thread(put)
    while True:
        with changed:
            changed.wait_for(lambda: requests)  # <- condition
            yield requests.pop()


def key(clients: Clients) -> Iterator[object]:
    """Asks a store again and again, and a process that has no rank sets its keys."""
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    connect = "import torch.distributed as d; s = s if n else d.TCPStore('127.0.0.1', "
    clients.process(f"{connect}int(sys.argv[1]), None, False); s.set(f'r{{n}}', '')", store.port)
    n = 0
    while True:
        while not store.check([f"r{n}"]):
            time.sleep(0.2)  # <- key
        n += 1
        yield n


def key_wait(clients: Clients) -> Iterator[object]:
    store = dist.TCPStore("127.0.0.1", 0, None, True)
    connect = "import torch.distributed as d; s = s if n else d.TCPStore('127.0.0.1', "
    clients.process(f"{connect}int(sys.argv[1]), None, False); s.set(f'r{{n}}', '')", store.port)
    n = 0
    while True:
        yield store.get(f"r{n}")  # <- key_wait
        n += 1


def empty(clients: Clients) -> Iterator[object]:
    """Nothing for three seconds is a batch as well."""
    requests: queue.Queue[int] = queue.Queue()
    clients.thread(requests.put)
    while True:
        try:
            yield requests.get(timeout=3)  # <- empty
        except queue.Empty:
            yield None


def typed(clients: Clients) -> Iterator[object]:
    """Standard input."""
    process = clients.process("print(n, flush=True)", stdout=subprocess.PIPE)
    assert process.stdout is not None
    sys.stdin = os.fdopen(process.stdout.fileno())
    while True:
        yield input()  # <- input


def pipe(clients: Clients) -> Iterator[object]:
    process = clients.process("print(n, flush=True)", stdout=subprocess.PIPE)
    assert process.stdout is not None
    while True:
        yield process.stdout.readline()  # <- pipe


def file(clients: Clients) -> Iterator[object]:
    folder = Path(tempfile.mkdtemp(prefix="disttrace-server-"))
    clients.process("open(sys.argv[1] + '/r', 'w').close()", folder)
    while True:
        while not (folder / "r").exists():
            time.sleep(0.2)  # <- file
        (folder / "r").unlink()
        yield "file"


def connection(clients: Clients) -> Iterator[object]:
    """A child by multiprocessing."""
    requests: multiprocessing.Queue[int] = multiprocessing.get_context("spawn").Queue()
    clients.thread(requests.put)
    while True:
        yield requests.get()  # <- connection


def serve(requests: Iterator[object], how: str, rank: int, broken: str) -> None:
    """The loop of all ranks. Something is wrong in the round after the last request."""
    for n in range(1_000):
        if rank == 0 and n == (0 if broken == "first" else REQUESTS):
            print("served", flush=True)
        if n == REQUESTS and broken not in ("", "first"):
            _break(broken, rank)
        request = next(requests) if rank == 0 else None
        send(how, [request])


def send(how: str, request: list[object]) -> None:
    """What each does of a request."""
    if how == "tensor":
        dist.broadcast(torch.ones(4), src=0)  # <- tensor
    elif how == "scatter":
        mine = [None]
        all_of = request * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.scatter_object_list(mine, all_of, src=0)
    elif how == "message":
        for rank in range(1, dist.get_world_size()) if dist.get_rank() == 0 else ():
            dist.send(torch.ones(4), dst=rank)
        if dist.get_rank():
            dist.recv(torch.ones(4), src=0)  # <- message
    elif how == "all_reduce":
        dist.all_reduce(torch.ones(4))
    else:
        dist.broadcast_object_list(request, src=0)  # <- objects


def _break(broken: str, rank: int) -> None:
    if broken == "others" and rank == 2:
        threading.Event().wait()  # <- away
    if rank:
        return
    if broken == "line":
        queue.Queue[int]().get()  # <- line
    elif broken == "lock":
        LOCK.acquire()
        LOCK.acquire()  # <- lock
    elif broken == "sleep":
        time.sleep(100)  # <- sleep
    elif broken == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif broken == "join":
        worker = threading.Thread(target=threading.Event().wait, daemon=True)
        worker.start()
        worker.join()  # <- join


def locked(clients: Clients) -> Iterator[object]:
    """A lock that somebody gives back for each request."""
    lock = threading.Lock()
    lock.acquire()
    clients.thread(lambda _: lock.release())
    while True:
        lock.acquire()  # <- locked
        yield None


def pooled(clients: Clients) -> Iterator[object]:
    """Work of its own, in a pool."""
    for n in range(1_000):
        yield POOL.submit(time.sleep, clients.pace if n < REQUESTS else 100).result()  # <- pooled


def of_rank(clients: Clients) -> Iterator[object]:
    """A key that another rank sets, in a thread."""
    for n in range(1_000):
        yield _store().get(f"r{n}")  # <- of_rank
    del clients


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


WAITS: dict[str, Callable[[Clients], Iterator[object]]] = {
    "accept": accept,
    "recv": received,
    "select": selected,
    "poll": polled,
    "selector": selector,
    "queue": queued,
    "simple": simple,
    "condition": condition,
    "key": key,
    "key_wait": key_wait,
    "empty": empty,
    "input": typed,
    "pipe": pipe,
    "file": file,
    "connection": connection,
    "locked": locked,
    "pooled": pooled,
    "of_rank": of_rank,
}


async def coroutine(pace: float, how: str, rank: int) -> None:
    """The loop, in an event loop."""
    requests: asyncio.Queue[int] = asyncio.Queue()

    async def client() -> None:
        for n in range(REQUESTS):
            await asyncio.sleep(pace)
            requests.put_nowait(n)

    sending = asyncio.create_task(client())
    for n in range(1_000):
        if rank == 0 and n == REQUESTS:
            print("served", flush=True)
        send(how, [await requests.get() if rank == 0 else sending])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--waits", choices=[*WAITS, "asyncio"], default="accept")
    parser.add_argument("--send", default="objects")
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--broken", default="")
    chosen = parser.parse_args()
    rank, _ = join()
    if chosen.waits == "asyncio":
        asyncio.run(coroutine(chosen.pace, chosen.send, rank))
    clients = Clients(chosen.pace, 0 if chosen.broken == "first" else REQUESTS)
    if chosen.waits == "of_rank" and rank == 1:
        store = _store().clone()
        clients.thread(lambda n: store.set(f"r{n}", ""))
    if chosen.broken == "client":
        requests = queued(clients, fails=True)
    else:
        requests = WAITS[chosen.waits](clients)
    serve(requests, chosen.send, rank, chosen.broken)


if __name__ == "__main__":
    main()
