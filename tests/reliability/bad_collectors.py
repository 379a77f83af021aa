"""Collectors that behave badly, each a context manager that gives its place."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from support.collector import Collector, serve_grpc  # noqa: E402

SLOW_S = 5.0
ANSWERED_S = 0.5  # a request was counted, now let its answer out
START_S = 60.0


@dataclass(slots=True)
class Place:
    """Where spans go, and how many came in when it is asked."""

    endpoint: str
    taken: Callable[[], int]


@contextlib.contextmanager
def unreachable() -> Iterator[Place]:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield Place(f"http://127.0.0.1:{probe.getsockname()[1]}", lambda: 0)


@contextlib.contextmanager
def slow() -> Iterator[Place]:
    """Every request is answered after five seconds."""
    with serve_grpc(Collector(delay=SLOW_S)) as collector:
        yield Place(collector.endpoint, lambda: len(collector.spans))


def _serve(pipe: Connection) -> None:
    """The process of a collector, which reports the number of its spans whenever it grows."""
    collector = serve_grpc(Collector())
    pipe.send(collector.endpoint)
    count = 0
    while True:
        if len(collector.spans) > count:
            count = len(collector.spans)
            pipe.send(count)
        time.sleep(0.02)


@contextlib.contextmanager
def killed() -> Iterator[Place]:
    """A process of its own that works, and gets SIGKILL half a second after its first spans."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    counts: list[int] = [0]

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            counts.append(ours.recv())
            time.sleep(ANSWERED_S)
            process.kill()
            while True:
                counts.append(ours.recv())

    try:
        if not ours.poll(START_S):
            raise TimeoutError("the collector does not start")
        place = Place(ours.recv(), lambda: counts[-1])
        threading.Thread(target=watch, daemon=True).start()
        yield place
    finally:
        process.kill()
        process.join()


COLLECTORS: dict[str, Callable[[], contextlib.AbstractContextManager[Place]]] = {
    "unreachable": unreachable,
    "slow": slow,
    "killed": killed,
}
