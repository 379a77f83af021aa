"""Folders of journals into states: here, in processes of this machine or on a cluster.

An engine is one function, ``map(function, tasks)``, which gives the number of each task and its
result, in any order. A task whose worker is lost is done once more; then its result is None.
"""

from __future__ import annotations

import gc
import gzip
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

import orjson

from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.files import below, is_held, is_remote, opened
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems, ViewerError
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import (
    MOST_BYTES,
    Merged,
    State,
    StateError,
    inflated,
    merge,
    pack,
    parsed,
    unpack,
)
from disttrace_viewer.trace.values import dataclass

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


T = TypeVar("T")
R = TypeVar("R")
Function = Callable[[T], R]
Results = Iterator[tuple[int, "R | None"]]
Engine = Callable[[Function[Any, Any], Sequence[Any]], Iterator[tuple[int, Any]]]

WORKERS = min(16, os.cpu_count() or 1)
CONNECT_S = 10


def engine_of(address: str | None) -> Engine:
    """``dask://host:port``, or None: this machine. Raises ViewerError for what cannot be used."""
    if address is None:
        return local
    scheme = address.partition("://")[0]
    if scheme in ("dask", "tcp", "tls"):
        return _dask("tcp" + address[len(scheme) :] if scheme == "dask" else address)
    raise ViewerError(f"--engine {address}: must be dask://HOST:PORT")


def here(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
    """One task after the other, in this process."""
    return ((number, function(task)) for number, task in enumerate(tasks))


def local(function: Function[T, R], tasks: Sequence[T]) -> Results[R]:
    """In a pool of processes of this machine; few tasks are not worth starting one."""
    if len(tasks) < 2 or WORKERS < 2:
        yield from here(function, tasks)
        return
    from concurrent.futures.process import BrokenProcessPool

    waiting = dict(enumerate(tasks))
    with suppress(BrokenProcessPool), _pool(WORKERS) as pool:
        for number, result in enumerate(pool.map(function, tasks)):
            del waiting[number]
            yield number, result
    for number, task in waiting.items():  # it is not known which has taken its worker down
        try:
            with _pool(1) as pool:
                yield number, pool.submit(function, task).result()
        except BrokenProcessPool:
            yield number, None


def _pool(workers: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Not forked: threads of libraries that this process has loaded would be missing there.
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


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
            # The scheduler itself gives the task of a lost worker to another one.
            tasked = {future: n for n, future in enumerate(client.map(function, tasks, pure=False))}
            for future in dask.as_completed(list(tasked)):
                found = future.result() if future.status == "finished" else None
                yield tasked.pop(future), found

    return run


BATCH = 128
"""Journals of a task."""
SUFFIX = ".states.jsonl.gz"


@dataclass(frozen=True, slots=True)
class StateBatch:
    """States of some journals, packed, and the names of those whose worker was lost."""

    states: bytes | None
    count: int
    lost: tuple[str, ...] = ()


Parts = Iterator[StateBatch]
Progress = Callable[[int, int], None]
"""Called with journals done so far, and of how many."""


@contextmanager
def no_cycles() -> Iterator[None]:
    """Without the collector of reference cycles: states hold none, and it looks at all of them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@no_cycles()  # which are gone when it is over: to look through them took an eighth of all
def run(files: Sequence[Files], *, window: int | None, history: bool) -> StateBatch:
    """The states of some journals."""
    states = (reduce(one, window=window, history=history) for one in files)
    found = [state for state in states if state is not None]
    return StateBatch(pack(found, level=1), len(found))


def reduced(
    paths: Sequence[str | Files],
    *,
    window: int | None = None,
    history: bool = False,
    engine: Engine = here,
    batch: int = BATCH,
    progress: Progress | None = None,
) -> Parts:
    """The states of all journals below ``paths``, task by task; ``history``: of collectives too."""
    found = evidence(paths, Problems())
    tasks = [found[first : first + batch] for first in range(0, len(found), batch)]
    states_of = partial(run, window=window, history=history)
    done = 0
    # What was translated from other formats is in the memory of this process only.
    own = any(is_held(one.definitions or "") for one in found)
    for number, part in (here if own else engine)(states_of, tasks):
        done += len(tasks[number])
        if progress is not None:
            progress(done, len(found))
        yield part or StateBatch(None, 0, tuple(one.base for one in tasks[number]))


def of_journals(paths: Sequence[str | Files], **options: Any) -> Merged:
    """The merged states of all journals below ``paths``; ``options``: those of ``reduced``."""
    found: list[State] = []
    unread: list[str] = []
    shared: dict[str, Any] = {}
    for part in reduced(paths, **options):
        if part.states is not None:
            found += unpack(part.states, shared)
        unread += part.lost
    return merge([Merged({}, tuple(unread)), *found])


def write(path: str, parts: Parts) -> tuple[int, int]:
    """Write states to a file or a folder; how many, and how many unread. Raises ViewerError."""
    count = unread = 0
    try:
        if not path.endswith(SUFFIX):
            os.makedirs(path, exist_ok=True)
            path = os.path.join(path, f"{os.uname().nodename}-{os.getpid()}{SUFFIX}")
        beside = f"{path}.part"
        try:
            with gzip.open(beside, "wb", compresslevel=4) as file:
                for part in parts:
                    if part.states is not None:
                        file.write(inflated(part.states) + b"\n")
                    file.writelines(orjson.dumps({"unread": base}) + b"\n" for base in part.lost)
                    count, unread = count + part.count, unread + len(part.lost)
            os.replace(beside, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as error:
        raise ViewerError(f"cannot write {path}: {error.strerror}.") from error
    return count, unread


def holds_states(path: str) -> bool:
    """Whether a path is a file of states, or a folder of such."""
    return bool(_files(path))


def _files(path: str) -> list[str]:
    names = [path]
    if is_remote(path):
        names = [*below(path)]
    elif os.path.isdir(path):
        with suppress(OSError):  # who reads journals there reports why
            names = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    return [name for name in names if name.endswith(SUFFIX)]


def read(paths: Sequence[str]) -> Merged:
    """The merged states in files. Raises ViewerError where one holds no states."""
    found: list[State] = []
    unread: list[str] = []
    shared: dict[str, Any] = {}
    for path in (name for folder in paths for name in _files(folder)):
        try:
            with opened(path) as raw, gzip.open(raw, "rb") as file:
                for line in _lines(file):
                    if line.startswith(b'{"unread":'):
                        unread.append(orjson.loads(line)["unread"])
                    else:
                        found += parsed(line, shared)
        except StateError as error:
            raise ViewerError(f"{path} {error}.") from error
        except (OSError, EOFError, orjson.JSONDecodeError) as error:
            raise ViewerError(f"{path} cannot be read as states ({error}).") from error
    return merge([Merged({}, tuple(unread)), *found])


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline(MOST_BYTES + 1):
        if len(line) > MOST_BYTES:
            raise StateError(f"has a line of more than {MOST_BYTES >> 20} MB")
        yield line
