"""Where journals are reduced: here, in processes of this machine, or on a cluster.

An engine is one function, ``map(function, tasks)``, which gives the number of each task and its
result, in any order. A task whose worker is lost is done once more; then its result is None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from disttrace_viewer.trace.errors import ViewerError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
R = TypeVar("R")
Function = Callable[[T], R]
Results = Iterator[tuple[int, "R | None"]]
Engine = Callable[[Function[Any, Any], Sequence[Any]], Iterator[tuple[int, Any]]]

WORKERS = min(16, os.cpu_count() or 1)
CONNECT_S = 10


def engine_of(address: str | None) -> Engine:
    """The engine of an address: ``dask://host:port``, ``ray://host:port``; None: this machine.

    Raises ViewerError for others, and where what it needs is not installed.
    """
    if address is None:
        return local
    scheme = address.partition("://")[0]
    if scheme in ("dask", "tcp", "tls"):
        return _dask("tcp" + address[len(scheme) :] if scheme == "dask" else address)
    if scheme == "ray":
        return _ray(address)
    raise ViewerError(f"--engine {address} is none: give dask://HOST:PORT or ray://HOST:PORT")


def here(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
    """One task after the other, in this process."""
    return ((number, function(task)) for number, task in enumerate(tasks))


def local(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
    """In a pool of processes of this machine; few tasks are not worth starting one."""
    if len(tasks) < 2 or WORKERS < 2:
        yield from here(function, tasks)
        return
    from concurrent.futures import FIRST_COMPLETED, wait  # here, for nobody else pays for it
    from concurrent.futures.process import BrokenProcessPool

    waiting = list(enumerate(tasks))[::-1]
    suspects: list[int] = []
    while waiting:
        with _pool(WORKERS) as pool:
            running: dict[Future[R], int] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < WORKERS:
                        number, task = waiting[-1]
                        running[pool.submit(function, task)] = number
                        waiting.pop()
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        yield running.pop(future), result
            except BrokenProcessPool:
                # Nobody knows which of those that ran has taken its worker down.
                suspects += running.values()
    for number in suspects:
        yield number, _alone(function, tasks[number])


def _pool(workers: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Not forked: threads of libraries that this process has loaded would be missing there.
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _alone(function: Function[T, R], task: T) -> R | None:
    from concurrent.futures.process import BrokenProcessPool

    try:
        with _pool(1) as pool:
            return pool.submit(function, task).result()
    except BrokenProcessPool:
        return None


def _dask(address: str) -> Engine:
    try:
        dask = importlib.import_module("distributed")
    except ImportError as error:
        raise ViewerError(
            "--engine dask:// needs Dask: pip install 'disttrace[cluster]'."
        ) from error

    def run(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
        try:
            client = dask.Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise ViewerError(
                f"no Dask scheduler answers at {address}: see whether it runs and can be reached."
            ) from error
        with client:
            numbers = {}
            again = set(range(len(tasks)))
            for number, task in enumerate(tasks):
                numbers[client.submit(function, task, pure=False)] = number
            queue = dask.as_completed(list(numbers))
            for future in queue:
                number = numbers.pop(future)
                if future.status == "finished":
                    yield number, future.result()
                elif number in again:
                    again.discard(number)
                    retried = client.submit(function, tasks[number], pure=False)
                    numbers[retried] = number
                    queue.add(retried)
                else:
                    yield number, None

    return run


def _ray(address: str) -> Engine:
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ViewerError("--engine ray:// needs Ray on this machine: pip install ray.") from error

    def run(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
        try:
            ray.init(address=address, ignore_reinit_error=True)
        except (OSError, ConnectionError, RuntimeError) as error:
            raise ViewerError(f"no Ray cluster answers at {address}.") from error
        remote = ray.remote(max_retries=1)(function)
        numbers = {remote.remote(task): number for number, task in enumerate(tasks)}
        while numbers:
            (done,), _ = ray.wait(list(numbers), num_returns=1)
            number = numbers.pop(done)
            try:
                yield number, ray.get(done)
            except ray.exceptions.RayError:
                yield number, None

    return run
