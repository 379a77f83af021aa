"""Runs programs in forks of an interpreter that has imported torch: seconds less for each.

A fork is a process of its own in all that counts here: it begins untraced, with the environment
that is asked for, starts tracing as an interpreter does under ``DISTTRACE=1``, and ends as an
interpreter ends; where it ends well, and nobody asks for more, without the teardown of torch. What
differs: torch is there before disttrace, as where a program calls ``disttrace.install()`` late, and
the outermost frame is ours. The order in which the two come, and what a start costs, are the
business of other tests.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.processes import (
    GRACE,
    Outcome,
    clean_environ,
    descendant_groups,
    free_port,
    launcher,
    signal_group,
)
from support.raw import RawJournal, read_journals

_INTERPRETER = Path(__file__).with_name("preloaded_interpreter.py")
TRACED = """
import sys
import disttrace
disttrace.install(dir=sys.argv[1], core=(sys.argv[2:] or [None])[0])
import torch
import torch.distributed as dist
"""
"""How a program begins that is traced: FOLDER, and a core."""
GLOO = (
    TRACED
    + """\
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
)
FAKE = (
    TRACED
    + """\
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
"""
)


def preloaded(*args: str | os.PathLike[str], timeout: float = 60.0, **variables: str) -> Outcome:
    """As ``support.processes.python``; ``-W ignore`` may stand first."""
    return _ordered(args, timeout, variables, whole=False)


def recorded(program: str, folder: Path, *args: str) -> tuple[Outcome, RawJournal]:
    """How a program ended well that was given ``folder`` and ``args``, and its journal there."""
    outcome = preloaded("-W", "ignore", "-c", program, folder, *args).check()
    (journal,) = read_journals(folder)
    return outcome, journal


def to_its_end(*args: str | os.PathLike[str], timeout: float = 60.0, **variables: str) -> Outcome:
    """The same, also where the program ends well with the teardown of all modules."""
    return _ordered(args, timeout, variables, whole=True)


def _ordered(
    args: Sequence[str | os.PathLike[str]], timeout: float, variables: dict[str, str], *,
    whole: bool,
) -> Outcome:  # fmt: skip
    order = {"args": [os.fspath(arg) for arg in args], "env": clean_environ(**variables)}
    return _interpreter().run({**order, "cwd": os.getcwd(), "whole": whole}, timeout)


def side_by_side(program: Path, world: int, folder: Path, traced: str) -> list[str]:
    """What each rank of a program prints, all at once: PROGRAM RANK WORLD STORE."""
    variables = {"DISTTRACE": traced, "DISTTRACE_DIR": str(folder / "out"), "OMP_NUM_THREADS": "1"}

    def printed(rank: int) -> str:
        words = (str(rank), str(world), folder / f"store-{traced}")
        return preloaded(program, *words, timeout=120, **variables).check().stdout

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(printed, range(world)))


def launched(program: Path, world: int, **variables: str) -> list[Outcome]:
    """Run ranks that meet by ``env://`` to their end, with nobody above them; all end well."""
    return [outcome.check() for outcome in ranks(program, world, **variables)]


def ranks(program: Path, world: int, **variables: str) -> list[Outcome]:
    """The same, however they end."""
    job = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def run(rank: int) -> Outcome:
        own = {**variables, **job, "RANK": str(rank), "OMP_NUM_THREADS": "1"}
        return preloaded(program, timeout=120, **own)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def torchrun(
    script: str | os.PathLike[str], nproc: int, *args: str, timeout: float = 120.0,
    options: Sequence[str] = (), **variables: str,
) -> Outcome:  # fmt: skip
    """As ``support.processes.torchrun``, for what is not about the agent: it alone is a fork."""
    variables = {"OMP_NUM_THREADS": "1", **variables}
    return preloaded(*launcher(script, nproc, *args, options=options), timeout=timeout, **variables)


class _Interpreter:
    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, _INTERPRETER, str(theirs.fileno())], env=clean_environ(),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def run(self, order: dict[str, object], timeout: float) -> Outcome:
        """What ``support.processes.run_program`` does, with its hard limit."""
        pipes = [os.pipe(), os.pipe()]
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "rb") as nothing:
            sent = [theirs.fileno(), nothing.fileno(), *(write for _, write in pipes)]
            socket.send_fds(self._control, [json.dumps(order).encode()], sent)
        said = [_Reader(read) for read, _ in pipes]
        for _, write in pipes:
            os.close(write)
        with answers:
            return _outcome(answers, said, timeout)

    def end(self) -> None:
        """It ends when nobody can order any more."""
        self._control.close()
        self._process.wait(GRACE)


def _outcome(answers: socket.socket, said: list[_Reader], timeout: float) -> Outcome:
    pid = int(answers.recv(64))  # the first waits for the imports
    deadline = time.monotonic() + timeout
    try:
        hung = not _over(answers, said, deadline)
        if hung:
            groups = {pid, *descendant_groups(pid)}
            for number in (signal.SIGABRT, signal.SIGKILL):
                for group in groups:
                    signal_group(group, number)
                _over(answers, said, time.monotonic() + GRACE)
    finally:
        signal_group(pid, signal.SIGKILL)
    stdout, stderr = (reader.text() for reader in said)
    answers.settimeout(GRACE)
    status = int(answers.recv(64))
    return Outcome(os.waitstatus_to_exitcode(status), stdout, stderr, hung)


def _over(answers: socket.socket, said: list[_Reader], deadline: float) -> bool:
    for reader in said:
        reader.join(max(0.0, deadline - time.monotonic()))
    if any(reader.is_alive() for reader in said):
        return False
    # Its streams are closed, which is almost always its end.
    left = max(0.0, deadline - time.monotonic())
    return bool(select.select([answers], [], [], left)[0])


class _Reader(threading.Thread):
    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self._data = b""
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._descriptor, 1 << 16):
            self._data += chunk
        os.close(self._descriptor)

    def text(self) -> str:
        return self._data.decode(errors="replace")


_kept: list[_Interpreter] = []
_lock = threading.Lock()


def _interpreter() -> _Interpreter:
    with _lock:
        if not _kept:
            _kept.append(_Interpreter())
            atexit.register(_kept[0].end)
        return _kept[0]
