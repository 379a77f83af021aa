"""A real stall in a program that looks for children: it finds none, and can leave its folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import clean_environ, companions, wait_until

PROGRAM = """
import datetime, os, signal, socket, sys, time
heard = []
signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
signal.signal(signal.SIGINT, signal.SIG_IGN)
pair = socket.socketpair()
os.dup2(pair[0].fileno(), 700)
import torch.distributed as dist
heard.clear()  # torch itself may start something when it is imported
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=7))
print("begun", flush=True)
try:
    store.get("never")
except dist.DistStoreError:
    print("never came")
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
print(heard)
"""


def pipes(pid: int) -> set[str]:
    """The pipes and sockets that a process has open."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that was just closed
            found.add(os.readlink(each))
    return {name for name in found if name.startswith(("pipe:", "socket:"))}


def test_a_program_with_a_stall_sees_nothing_of_the_companion(tmp_path: Path) -> None:
    """Like its untraced twin, and the companion, and what it starts, holds nothing of it."""
    runs = []
    for traced in "01":
        environ = clean_environ(
            DISTTRACE=traced, DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2"
        )
        folder = tmp_path / f"cwd{traced}"
        folder.mkdir()
        command = [sys.executable, "-c", PROGRAM]
        runs.append(
            subprocess.Popen(command, cwd=folder, env=environ, stdout=-1, stderr=-1, text=True)
        )
    try:
        wait_until(lambda: len(companions(tmp_path / "out")) == 2, timeout=60)
        theirs = pipes(runs[1].pid)
        assert len(theirs) >= 4
        for pid in companions(tmp_path / "out"):
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert not pipes(pid) & theirs
        (twin, _), (stdout, stderr) = (run.communicate(timeout=60) for run in runs)
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    assert twin == "begun\nnever came\nno child\n[]\n"
    assert stdout == twin
    assert "disttrace: stalled:" in stderr
    assert [run.returncode for run in runs] == [0, 0]
    wait_until(lambda: not companions(tmp_path / "out"), timeout=30)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_the_working_directory_can_be_unmounted_during_a_stall(tmp_path: Path) -> None:
    """Once the program has left it."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    leaves = PROGRAM.replace('print("begun"', 'os.chdir("/"); print("begun"')
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2")
    process = subprocess.Popen(
        [sys.executable, "-c", leaves], cwd=folder, env=environ, stdout=-1, stderr=-1
    )
    try:
        wait_until(lambda: bool(companions(tmp_path / "out")), timeout=60)
        assert subprocess.run(["umount", str(folder)]).returncode == 0
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "-l", str(folder)], stderr=-3)
