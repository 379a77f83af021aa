"""What a job and its companion leave behind when both are killed means nothing to the next job.

Of the same name, in the same folder, on the same host: a requeue, a pod that is started again, a
job that runs every night.
"""

from __future__ import annotations

import ctypes
import os
import signal
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
from support.processes import announcements, clean_environ, companions, free_port, wait_until

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if sys.argv[1] == "hangs" and rank == 1:
    time.sleep(300)
for step in range(30):
    one = torch.ones(4)
    dist.all_reduce(one)
    time.sleep(0.1)
if sys.argv[1] == "slow" and rank == 1:  # so that there is a companion, and something to say
    time.sleep(12)
dist.all_reduce(one)
print(f"rank {rank}: {one.sum():.0f}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def launch(tmp_path: Path, how: str, **variables: str) -> list[subprocess.Popen[str]]:
    """Two ranks that no launcher would start again."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    port = str(free_port())
    command = [sys.executable, str(path), how]
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    given = {**meet, "OMP_NUM_THREADS": "1", **variables}
    environs = [clean_environ(RANK=str(rank), **given) for rank in range(2)]
    return [subprocess.Popen(command, env=e, stdout=-1, stderr=-1, text=True) for e in environs]


def outcome(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    said = [process.communicate(timeout=120) for process in ranks]
    return [(process.returncode, *both) for process, both in zip(ranks, said, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("on_stall", [None, "abort"])
def test_an_order_to_end_left_over_ends_nobody(tmp_path: Path, on_stall: str | None) -> None:
    """The next job says and does what it does without being traced."""
    out = tmp_path / "out"
    traced = {"DISTTRACE": "1", "DISTTRACE_DIR": str(out), "DISTTRACE_JOB": "nightly"}
    first = launch(tmp_path, "hangs", DISTTRACE_STALL="2", DISTTRACE_ON_STALL="abort", **traced)

    def ordered() -> bool:
        return any('"abort"' in path.read_text() for path in announcements(out))

    try:
        wait_until(lambda: any(announcements(out)), timeout=90)
        for process in first:  # they would obey before anybody can kill them
            process.send_signal(signal.SIGSTOP)
        wait_until(ordered, timeout=60)
        for pid in [*companions(out), *(process.pid for process in first)]:
            os.kill(pid, signal.SIGKILL)
    finally:
        for process in first:
            process.kill()
            process.communicate()
    wait_until(lambda: not companions(out), timeout=30)
    assert ordered()
    (registry,) = out.glob("*.otlp")
    assert "nightly-" in registry.read_text()
    again = {"DISTTRACE_ON_STALL": on_stall} if on_stall else {}
    found = outcome(launch(tmp_path, "well", DISTTRACE_STALL="20", **again, **traced))
    assert found == outcome(launch(tmp_path, "well"))
    assert [code for code, *_ in found] == [0, 0]


@pytest.mark.long
def test_a_companion_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    """Its lock and its numbers are free: what stalls in the next job is told, once."""
    out = tmp_path / "out"
    traced = {"DISTTRACE": "1", "DISTTRACE_DIR": str(out), "DISTTRACE_JOB": "nightly"}
    first = launch(tmp_path, "hangs", DISTTRACE_STALL="1", **traced)
    try:
        wait_until(lambda: any('"said"' in p.read_text() for p in announcements(out)), timeout=90)
        for pid in [*companions(out), *(process.pid for process in first)]:
            os.kill(pid, signal.SIGKILL)
    finally:
        for process in first:
            process.kill()
            process.communicate()
    wait_until(lambda: not companions(out), timeout=30)
    found = outcome(launch(tmp_path, "slow", DISTTRACE_STALL="1", **traced))
    told = "".join(stderr for *_, stderr in found)
    assert [code for code, *_ in found] == [0, 0]
    assert told.count("disttrace: stalled: Rank 1 never joined all_reduce #31") == 1, told
    wait_until(lambda: not companions(out), timeout=60)
    assert not [path.name for path in out.iterdir() if path.suffix != ".jsonl"]


_CACHESTAT = 451
PROGRAM_SYNCING = """
import sys, time
import disttrace
import torch.distributed as dist
from disttrace import session
disttrace.install(quiet=True, dir=sys.argv[1])
store = dist.HashStore()
store.set("key", "value")
while session._session._without_gil._told is None:
    time.sleep(0.02)
tasks = [one.part for one in session._session.live._tasks]
print("writing the journal to the disk" in tasks, flush=True)
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
    command = [sys.executable, "-c", PROGRAM_SYNCING, str(out)]
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
