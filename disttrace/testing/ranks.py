"""Starts the ranks of a test on this machine and waits for them: forked, or as programs of their
own.

Forking saves the import of torch in every rank. It is done before any process group, thread or
device exists in the parent, for none of these survives a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from disttrace.journal import proc
from disttrace.journal.format import VERDICTS_SUFFIX

_PAUSE_S = 0.005
ENDED, STALLED, LATE = "ended", "stalled", "late"
"""All have ended, or one badly and the others had their time to notice; they have announced a
stall; the time is over."""


def free_port() -> int:
    """A port that is free now, and that no kernel gives to a connection meanwhile."""
    while True:
        port = secrets.choice(range(15_000, 32_000))
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def settings(journals: Path, stall_s: float) -> dict[str, str]:
    """Variables of ranks whose journals lie there, and which are quiet but for a stall."""
    return {
        "DISTTRACE_DIR": str(journals),
        "DISTTRACE_QUIET": "1",
        "DISTTRACE_STALL": str(stall_s),
    }


def import_once() -> None:
    """Import here what every rank would import."""
    for name in ("torch", "torch.distributed", "disttrace.session", "disttrace.capture.parts"):
        importlib.import_module(name)


def why_not_fork() -> str | None:
    """Why this process cannot be forked safely; None: it can."""
    if not hasattr(os, "fork"):
        return "this system has no fork"
    if threading.active_count() > 1:
        return "other threads run in the test process, and locks that they hold stay held"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return "CUDA was initialised in the test process"
    return None


def fork(rank: int, body: Callable[[], int], env: Mapping[str, str], out: Path) -> int:
    """Run ``body`` in a forked rank whose output goes to ``out``; its pid. Ends with its code."""
    sys.stdout.flush()
    sys.stderr.flush()
    starter = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        proc.end_with(starter)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setpgid(0, 0)
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.update(env)
        code = body()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@dataclass
class RunningRanks:
    """Running ranks by their pids."""

    pids: dict[int, int]
    """Rank by pid."""
    codes: dict[int, int] = field(default_factory=dict)
    """Exit code, -N for signal N, by rank."""
    ended_s: dict[int, float] = field(default_factory=dict)

    @property
    def running(self) -> list[int]:
        return [pid for pid, rank in self.pids.items() if rank not in self.codes]

    def poll(self) -> None:
        """Note who has ended."""
        for pid in self.running:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                rank = self.pids[pid]
                code = os.waitstatus_to_exitcode(status)
                self.codes[rank], self.ended_s[rank] = code, time.monotonic()

    def wait(self, journals: Path, stall_s: float, deadline: float) -> str:
        """Until then (``time.monotonic``) at most; how it came out: ``ENDED``, ``STALLED``, ..."""
        pause = _PAUSE_S
        while True:
            self.poll()
            now = time.monotonic()
            bad = [self.ended_s[rank] for rank, code in self.codes.items() if code]
            if not self.running or (bad and now - min(bad) > stall_s):
                return ENDED
            if now > deadline:
                return LATE
            if not bad and _announced(journals):
                return STALLED
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + (2 if number == signal.SIGTERM else 10)
            while self.running and time.monotonic() < deadline:
                self.poll()
                time.sleep(_PAUSE_S)
        for pid in self.pids:  # what a rank left running
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def _announced(journals: Path) -> bool:
    """Whether the ranks report a stall: they know who is at work, and who only wants the CPU."""
    kept = journals.rglob(f"*{VERDICTS_SUFFIX}")
    return any(b'"kind":"stalled"' in path.read_bytes() for path in kept)


_SLOW = ("straggler", "late_sender")
"""How long ranks take on this machine, which they share, is no fault of theirs."""


def diagnosed(journals: Path, form: str, *options: str) -> bytes:
    """The report in one of its formats; nothing where there is none."""
    command = [sys.executable, "-m", "disttrace", "diagnose", str(journals)]
    try:
        return subprocess.run(
            [*command, "--format", form, *options],
            env={**os.environ, "DISTTRACE": "0", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            timeout=120,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return b""


def has_fault(report: bytes) -> bool:
    """Whether a JSON report has more than notes and slowness. Raises ValueError for other data."""
    try:
        found = json.loads(report)["findings"]
        return any(one["severity"] != "note" and one["kind"] not in _SLOW for one in found)
    except (KeyError, TypeError) as error:
        raise ValueError("no report") from error
