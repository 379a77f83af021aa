"""Stacks of a process that cannot take them itself, written without the GIL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from disttrace_viewer.api import load
from support.processes import clean_environ, wait_until

HEAD = """
import torch, torch.distributed as dist
import faulthandler, os, signal, sys, time
store = dist.TCPStore("127.0.0.1", 0, 1, True)
"""
HOLDS = """
def held():
    import ctypes
    ctypes.PyDLL(None).sleep(60)  # held
from disttrace import session
while not session._session._without_gil._set_at:
    time.sleep(0.05)
held()
"""
SLEEPS = """
print("ready", flush=True) or time.sleep(60)  # slept
"""
HANDLED = """
def handler(number, frame):
    os.write(1, b"handled\\n")  # print is not reentrant, and the last one may be under way
    os._exit(7)
signal.signal(signal.SIGTERM, handler)
"""
THEIRS = """
faulthandler.dump_traceback_later(2, file=open(sys.argv[1], "w"))
print("theirs", flush=True)
"""
FORKS = """
for _ in range(3):
    if os.fork() == 0:
        sys.exit(0)  # finalizes: a watchdog that stayed behind would be waited for
    os.wait()
pid = os.fork()
if pid == 0:
    time.sleep(60)
os.kill(pid, signal.SIGTERM)
print("child", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@contextmanager
def run(tmp_path: Path, program: str) -> Iterator[subprocess.Popen[bytes]]:
    path = tmp_path / "program.py"
    path.write_text(HEAD + program)
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="3")
    command = [sys.executable, str(path), str(tmp_path / "theirs")]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def definitions(tmp_path: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in tmp_path.glob("out/*.defs.jsonl"))


def where(tmp_path: Path) -> list[str]:
    """The lines of the program in the last sample of its main thread, innermost first."""
    program = (tmp_path / "program.py").read_text().splitlines()
    (process,) = (p for p in load(tmp_path / "out").model.processes if p.rank is None)
    assert not process.damage
    stack = process.latest_samples[0].stack
    return [program[frame.line - 1] for frame in stack if frame.file.endswith("program.py")]


def test_a_process_that_holds_the_gil_is_found_at_its_line(tmp_path: Path) -> None:
    """In a library call that never lets go; SIGKILL later takes nothing of that away."""
    with run(tmp_path, HOLDS) as process:
        wait_until(lambda: "Timeout (" in definitions(tmp_path), timeout=90)
        wait_until(lambda: "in <module>" in definitions(tmp_path), timeout=10)
        process.kill()
        process.wait()
    assert "# held" in where(tmp_path)[0]


def test_a_process_that_is_told_to_end_says_where_it_was(tmp_path: Path) -> None:
    """It ends by the signal, as without us."""
    with run(tmp_path, SLEEPS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        process.communicate()
        assert process.returncode == -signal.SIGTERM
    assert "# slept" in where(tmp_path)[0]


@pytest.mark.parametrize("again", [False, True])
def test_a_handler_of_the_program_is_called(tmp_path: Path, *, again: bool) -> None:
    """Ours is out of its way, also after a while."""
    with run(tmp_path, HANDLED + ("time.sleep(2)" if again else "") + SLEEPS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.communicate()[0] == b"handled\n"
        assert process.returncode == 7


def test_the_program_has_the_watchdog_if_it_wants_it(tmp_path: Path) -> None:
    """Ours does not put its off."""
    with run(tmp_path, THEIRS + SLEEPS) as process:
        wait_until(lambda: (tmp_path / "theirs").exists(), timeout=90)
        wait_until(lambda: "Timeout (0:00:02)!" in (tmp_path / "theirs").read_text(), timeout=30)
        process.kill()
        process.wait()
    assert "Timeout (" not in definitions(tmp_path)


def test_forked_children_have_neither(tmp_path: Path) -> None:
    """One that ends in the ordinary way ends; one that is terminated leaves no word here."""
    with run(tmp_path, "time.sleep(1.5)" + FORKS) as process:
        assert process.communicate(timeout=90)[0] == b"child -15\n"
        assert process.returncode == 0
    assert "most recent call first" not in definitions(tmp_path)
