"""A real stall in a program that looks for children: it finds none, and can leave its folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace_viewer.merge.surveying import survey
from support.preloaded import to_its_end
from support.processes import Outcome, clean_environ, companions, ending, run_program, wait_until
from support.raw import read_journals

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
        out = str(tmp_path / "out")
        environ = clean_environ(DISTTRACE=traced, DISTTRACE_DIR=out, DISTTRACE_STALL="2")
        folder = tmp_path / f"cwd{traced}"
        folder.mkdir()
        command = [sys.executable, "-c", PROGRAM]
        runs.append(
            subprocess.Popen(command, cwd=folder, env=environ, stdout=-1, stderr=-1, text=True)
        )
    with ending(*runs):
        wait_until(lambda: len(companions(tmp_path / "out")) == 2, timeout=60)
        theirs = pipes(runs[1].pid)
        assert len(theirs) >= 4
        for pid in companions(tmp_path / "out"):
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert not pipes(pid) & theirs
        (twin, _), (stdout, stderr) = (run.communicate(timeout=60) for run in runs)
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
    command = [sys.executable, "-c", leaves]
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=-1, stderr=-1)
    try:
        wait_until(lambda: bool(companions(tmp_path / "out")), timeout=60)
        assert subprocess.run(["umount", str(folder)]).returncode == 0
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "-l", str(folder)], stderr=-3)


PROGRAM_CLOSED_STREAMS = """
import os, sys, time, torch, torch.distributed as dist

def ours():
    return [
        fd for fd in range(3)
        if os.path.islink(f"/proc/self/fd/{fd}")
        and any(word in os.readlink(f"/proc/self/fd/{fd}") for word in ("job_", "disttrace"))
    ]

seen = []
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(4):
    dist.all_reduce(torch.ones(4))
    seen += ours()
    time.sleep(0.4)  # what asks for stacks and for the companion has files, too
sys.stdout.write(f"{seen}\\n")
"""


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_none_of_our_files_is_a_standard_stream(tmp_path: Path, closed: str) -> None:
    """All of ours get numbers beyond them, copies of descriptors included."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM_CLOSED_STREAMS)
    folder = tmp_path / "out"
    traced = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_STALL="0.5")
    done = run_program(["/bin/sh", "-c", f"exec {sys.executable} {path} {closed}"], traced, 60)
    assert (done.code, done.stdout) == (0, "[]\n")
    assert len(read_journals(folder)) == 1


PROGRAM_EXEC = """
import os, sys, torch.distributed as dist
dist.HashStore().set("key", "value")
print(sys.argv[1], os.getpid() == int(os.environ.setdefault("FIRST", str(os.getpid()))), flush=True)
command = [sys.executable, __file__, "second"]
if sys.argv[1] == "second":
    sys.exit(4)
try:
    os.execvp("there is no such program", ["x"])
except FileNotFoundError as error:
    frames = 0
    while error.__traceback__ is not None:
        frames, error.__traceback__ = frames + 1, error.__traceback__.tb_next
    print(error.errno, error.filename, frames if sys.version_info >= (3, 11) else "", flush=True)
print(os.execve in os.supports_fd, os.execve.__name__, flush=True)
if sys.argv[1] == "execv":
    os.execv(sys.executable, command)
if sys.argv[1] == "execlpe":
    os.execlpe(sys.executable, *command, os.environ)
if sys.argv[1] == "c":
    import ctypes
    words = [word.encode() for word in command]
    ctypes.CDLL(None).execv(words[0], (ctypes.c_char_p * 4)(*words, None))
print("in vain")
"""


def outcome(tmp_path: Path, how: str, **variables: str) -> Outcome:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM_EXEC)
    return to_its_end(path, how, timeout=120, **variables)


@pytest.mark.parametrize("how", ["execv", pytest.param("execlpe", marks=pytest.mark.long), "c"])
def test_what_a_program_becomes_is_told(tmp_path: Path, how: str) -> None:
    """As its twin; two journals of one process, of which the last alone ended by itself."""
    folder = tmp_path / "out"
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    traced = outcome(tmp_path, how, DISTTRACE="1", DISTTRACE_DIR=str(folder), **rank)
    plain = outcome(tmp_path, how, **rank)
    assert traced == plain, f"{traced.stdout}\n{traced.stderr}\nuntraced:\n{plain.stderr}"
    assert traced.code == 4
    assert "second True" in traced.stdout
    first, second = sorted(read_journals(folder), key=lambda j: j.only("process")["t0"])
    said = [record["how"] for record in first.of("exit")]
    tried = said[: len(said) - (how != "c")]
    assert tried == ["exec", "resumed"] * (len(tried) // 2)
    assert tried
    assert said[len(tried) :] == (["exec"] if how != "c" else [])
    assert [record["how"] for record in second.of("exit")] == ["exit"]
    found = survey([str(folder)])
    assert len(found.jobs) == 1
    ends = [(p.rank, p.exit.how if p.exit else None) for p in found.processes]
    assert ends == [(1, "exec"), (1, "exit")]
