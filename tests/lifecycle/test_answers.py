"""Signals that we handle, or send within a process, mean to its program what they mean untraced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttrace.journal import compiled
from disttrace.journal import format as fmt
from disttrace_viewer.companion.gil_holders import _sender
from support.processes import Outcome, clean_environ, run_program

NUMBER = signal.SIGRTMAX - 7
"""What is taken where it is free."""
HEAD = f"""
import ctypes, faulthandler, os, signal, sys, threading, time
NUMBER, folder, traced = {NUMBER}, sys.argv[1], sys.argv[2] == "traced"
libc, python = ctypes.CDLL(None), ctypes.PyDLL(None)
libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
def trace():
    if traced:
        import disttrace
        from disttrace import session
        disttrace.install(quiet=True, dir=folder + "/out")
        session._session.recorder.open()
        while not session._session._without_gil._told:
            time.sleep(0.02)
        number, asked = session._session._without_gil._told
        assert number == NUMBER and asked
        return asked
    return os.getpid()
@Handler
def handler(number):
    os.write(1, b"theirs\\n")
    os._exit(3)
def caught():
    lines = open("/proc/self/status").read().splitlines()
    return [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")]
"""
PROGRAMS = {
    "no handler to be seen": "trace(); print(caught()[0] >> NUMBER - 1 & 1)",
    "what Python knows": """
trace()
for number in (signal.SIGTERM, NUMBER):
    print(signal.getsignal(number), faulthandler.unregister(number))
print(faulthandler.is_enabled(), caught()[0] >> NUMBER - 1 & 1)""",
    "sent to the process": "trace(); os.kill(os.getpid(), NUMBER); time.sleep(5)",
    "sent to a thread": "trace(); signal.raise_signal(NUMBER); time.sleep(5)",
    "waited for": """
signal.pthread_sigmask(signal.SIG_BLOCK, [NUMBER])
trace()
for n in range(5):
    os.kill(os.getpid(), NUMBER)
    time.sleep(0.1)
    print(signal.sigtimedwait([NUMBER], 5) is not None, signal.sigpending())""",
    "faulthandler's own": """
trace()
with open(folder + "/theirs", "w") as file:
    faulthandler.register(NUMBER, file=file, all_threads=False)
    os.kill(os.getpid(), NUMBER)
    print(open(folder + "/theirs").read(), faulthandler.unregister(NUMBER))""",
    "faulthandler's SIGTERM": """
trace()
faulthandler.register(signal.SIGTERM, file=sys.stdout, all_threads=False)
os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.1)
print(faulthandler.unregister(signal.SIGTERM), flush=True)
os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)""",
    "ended in a file of the program's": """
trace()
os.closerange(3, 600)
files = [os.open(folder + f"/data{n}", os.O_CREAT | os.O_RDWR) for n in range(60)]
for number in range(len(files) + 3, 600):  # where ours were, too
    os.dup2(files[0], number)
os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)""",
    "forked by a library": """
trace()
pid = python.fork()
if pid == 0:
    libc.sleep(60)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = python.fork()
if pid == 0:
    sys.exit(4)
began = time.monotonic()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic() - began < 0.9)""",
    "forked": """
trace()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        print(caught()[0] >> 14 & 1, flush=True)
        signal.pause()
    time.sleep(0.1)
    os.kill(pid, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
}
HELD = """
asked = trace()
if sys.argv[3] == "handled":
    libc.signal(NUMBER, ctypes.cast(handler, ctypes.c_void_p))
print(asked, flush=True)
import re
re.match("(a+)+$", "a" * 64 + "b")  # held
"""


def run(folder: Path, program: str, *, traced: bool, before: tuple[str, ...] = ()) -> Outcome:
    (folder / str(traced)).mkdir()
    file = folder / "program.py"
    file.write_text(HEAD + program)
    command = [*before, sys.executable, str(file), str(folder / str(traced))]
    return run_program([*command, "traced" if traced else "untraced"], clean_environ(), 60)


def said(outcome: Outcome) -> tuple[int, str]:
    return outcome.code, outcome.stdout.replace("/True/", "/False/")


@pytest.mark.parametrize("name", PROGRAMS)
def test_signals_are_the_programs_own(tmp_path: Path, name: str) -> None:
    """Beside the same program untraced: what it sees, how it ends, and what its files hold."""
    traced, untraced = (run(tmp_path, PROGRAMS[name], traced=t) for t in (True, False))
    assert said(traced) == said(untraced), str(traced)
    assert not [file for file in tmp_path.glob("True/data*") if file.read_bytes()]
    journals = [file.read_text() for file in tmp_path.glob("True/out/*.defs.jsonl")]
    assert "most recent call first" not in "".join(journals) or "SIGTERM" in name
    assert all(journal.count('"def":"exit"') <= 1 for journal in journals)


def test_the_first_process_of_a_container_gets_no_sigterm(tmp_path: Path) -> None:
    """The kernel keeps it away where nothing handles it; so no call of its is interrupted."""
    inside = (shutil.which("unshare") or "", "--pid", "--fork", "--mount-proc", "--kill-child")
    if os.geteuid() or not inside[0]:
        pytest.skip("makes a namespace")
    program = "trace(); print(os.getpid(), caught()[0] >> 14 & 1)"
    traced, untraced = (run(tmp_path, program, traced=t, before=inside) for t in (True, False))
    assert traced.check().stdout == untraced.check().stdout == "1 0\n"


@pytest.mark.parametrize("handled", ["handled", "free"])
def test_a_handler_of_a_library_is_never_called_by_us(tmp_path: Path, handled: str) -> None:
    """It is set after us, and the process is asked as if the companion had not seen it."""
    file = tmp_path / "program.py"
    file.write_text(HEAD + HELD)
    command = [sys.executable, str(file), str(tmp_path), "traced", handled]
    with subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            asked = int(process.stdout.readline())
            send = _sender()
            assert send is not None
            for _ in range(3):
                assert send(process.pid, asked, NUMBER, process.pid)
                time.sleep(0.3)
            assert process.poll() is None
            status = Path(f"/proc/{process.pid}/status").read_text()
            caught = int(status.partition("SigCgt:")[2].split()[0], 16) >> NUMBER - 1 & 1
            assert caught == (handled == "handled")
        finally:
            process.kill()
    (journal,) = tmp_path.glob("out/*.defs.jsonl")
    assert (b"# held" in journal.read_bytes() or b"most recent" in journal.read_bytes()) == (
        handled == "free"
    )


def test_both_sides_mean_the_same_value() -> None:
    """One is C."""
    assert compiled.load("lifecycle._answers").ASK == fmt.ASK
