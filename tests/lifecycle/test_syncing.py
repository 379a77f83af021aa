"""A journal is on the disk soon after its process stands still, and nobody has waited for it."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttrace.journal.segment import filesystem
from disttrace.lifecycle.heartbeat import IN_MEMORY, RARELY_NS, Syncing
from support.processes import clean_environ, wait_until

_CACHESTAT = 451
PROGRAM = """
import sys, time
import disttrace
import torch.distributed as dist
from disttrace import session
disttrace.install(quiet=True, dir=sys.argv[1])
store = dist.HashStore()
store.set("key", "value")
while session._session._without_gil._told is None:
    time.sleep(0.02)
print(session._session.live._syncing is not None, flush=True)
while True:  # what the background writes after a sync, as a heartbeat, waits for the next
    time.sleep(2.5)
    store.set("key", "value")
"""


def dirty(path: Path) -> int:
    """Pages of a file that are not on the disk. Raises OSError where the kernel cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    told = ctypes.create_string_buffer(40)
    with path.open("rb") as file:
        if libc.syscall(_CACHESTAT, file.fileno(), struct.pack("=QQ", 0, 0), told, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _, unwritten, under_way, *_ = struct.unpack("=5Q", told.raw)
    return int(unwritten + under_way)


def is_on_disk(path: Path) -> bool:
    return not dirty(path)


def test_who_stands_still_is_on_the_disk(tmp_path: Path) -> None:
    """The kernel would wait for half a minute; in memory there is no disk."""
    (tmp_path / "new").write_bytes(b"x")
    if filesystem(str(tmp_path)) in IN_MEMORY:
        pytest.skip("needs a folder on a disk")
    try:
        assert dirty(tmp_path / "new")
    except OSError:
        pytest.skip("needs Linux 6.5")
    out = tmp_path / "out"
    command = [sys.executable, "-c", PROGRAM, str(out)]
    with subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"True\n"
            files = [*out.glob("*.jsonl")]
            assert len(files) == 2
            for file in files:
                wait_until(partial(is_on_disk, file), timeout=15)
        finally:
            process.kill()


def test_when_files_are_synced() -> None:
    """Once after a second without progress, else each half minute; again where it was refused."""
    journal = SimpleNamespace(at=(1, 0), answers=True, synced=0)

    def sync(segment: int) -> bool:
        journal.synced += 1
        return bool(journal.answers)

    recorder = SimpleNamespace(progress=lambda: journal.at, descriptor=lambda: 5)
    capture: Any = SimpleNamespace(recorder=recorder)
    native: Any = SimpleNamespace(sync=sync)
    syncing = Syncing(capture, native)
    synced = []
    second = 10**9
    moves = {0: True, 1: True, 2: True, 3: False, 4: False, 5: True, 6: False, 7: False}
    for now, moved in moves.items():
        journal.answers = now != 6
        journal.at = (1, journal.at[1] + moved)
        syncing.look(now * second + RARELY_NS)
        synced.append(journal.synced)
    assert synced == [1, 1, 1, 2, 2, 2, 3, 4]
    journal.at = (2, 0)
    syncing.look(RARELY_NS * 3)
    assert journal.synced == 5
