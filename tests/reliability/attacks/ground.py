"""What the programs share: a group of one, a stall, and children that are programs of their own."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

STALL_S = float(os.environ.get("ATTACK_STALL", "2"))
LIBC = ctypes.CDLL(None, use_errno=True)
MUCH = 40_000
"""Operations that fill several windows."""
SCRIPT = """
import ctypes, faulthandler, os, signal, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
t = torch.ones(2)
dist.all_reduce(t)
group = dist.new_group([0])
"""
"""A program of its own begins so."""


def group(*, backend: str = "gloo") -> Any:
    """A default group of one, after a first collective: torch.distributed."""
    import torch.distributed as dist

    if backend == "fake":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    reduce(dist)
    return dist


def reduce(dist: Any, times: int = 1) -> float:
    """So many all_reduces; the last one's result."""
    import torch

    tensor = torch.ones(4)
    for _ in range(times):
        dist.all_reduce(tensor)
    return float(tensor.sum())


def stall(limits: float = 2.0) -> None:
    """Stand still for so many times the limit, without an interrupted sleep being shorter."""
    until = time.monotonic() + limits * STALL_S
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)


def say(*values: object, **facts: object) -> None:
    """Print what must be equal with and without tracing."""
    if values:
        print(*values)
    for name, value in facts.items():
        sys.stdout.write(f"{name} {value}\n")
    sys.stdout.flush()


def told(call: Callable[[], Any]) -> str:
    """What came of a call, in a line: the type of its result, or the error with its frames."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return type(call()).__name__
    except Exception as error:
        lines = str(error).splitlines() or [""]
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        notes, around = getattr(error, "__notes__", []), type(error.__context__).__name__
        text = f"{type(error).__name__}: {lines[0][:90]} {len(lines)} {frames} {notes} {around}"
        return re.sub(r"0x[0-9a-f]+|127\.0\.0\.1:\d+|:\d{4,5}\b", "_", text)


def command(attack: str) -> list[str]:
    """The command of another function of a theme."""
    return [sys.executable, "-m", "reliability.attacks", attack]


def child(attack: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run another function of a theme as a program of its own, to its end or for a minute."""
    options = {"timeout": 60, "text": True, **options}
    return subprocess.run(command(attack), check=False, **options)


def ran(line: list[str], *, last: int = 2, **options: Any) -> None:
    """Say how a program ended, what it printed, and the last of its errors that are not ours."""
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False, **options}
    done = subprocess.run(line, **options)
    errors = [x for x in done.stderr.splitlines() if not x.startswith("disttrace:")]
    errors = [x for x in errors if x.strip(">. ")]
    say(code=done.returncode, out=done.stdout, errors=errors[-last:])


def forked(code: int) -> int:
    """A child that ends at once."""
    pid = os.fork()
    if pid == 0:
        os._exit(code)
    return pid


def code_of(pid: int) -> int:
    """With which a child ends."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def descriptors() -> dict[int, str]:
    """What each open descriptor is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = str(Path("/proc/self/fd", name).readlink())
        except OSError:
            continue  # the one that lists
    return found
