"""Stacks of a process that cannot take them itself, written without the GIL; and signals that we
handle, or send within a process, which mean to its program what they mean untraced.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from disttrace.journal import compiled
from disttrace.journal import format as fmt
from disttrace.journal.proc import Who, here, stat
from disttrace_viewer.api import load
from disttrace_viewer.companion.gil_holders import GilHolders, Silent, _sender, _Thread, holder
from support.processes import Outcome, clean_environ, ending, run_program, wait_until

HEAD = """
import faulthandler, os, signal, sys, time
import disttrace
from disttrace import session
disttrace.install()
session._session.recorder.open()  # as the first call of torch's does
"""
LOOKS = """
while not session._session._without_gil._told:
    time.sleep(0.05)
"""
HOLDS = """
def held():
    import re
    re.match("(a+)+$", "a" * 64 + "b")  # held
def slept():
    import ctypes
    began = time.monotonic()
    ctypes.PyDLL(None).sleep(2)  # held
    print("slept", time.monotonic() - began >= 2, flush=True)
"""
BESIDE = """
import threading
threading.Thread(target=held, daemon=True).start()
time.sleep(60)
"""
SLEEPS = """
print("ready", flush=True) or time.sleep(60)  # slept
"""
THEIRS = """
number = session._session._without_gil._signal
signal.signal(number, lambda *_: print("theirs", flush=True))
while session._session._without_gil._told[0]:
    time.sleep(0.05)
"""


@contextmanager
def run(tmp_path: Path, program: str, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    path = tmp_path / "program.py"
    path.write_text(before + HEAD + program)
    environ = clean_environ(DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="3")
    command = [sys.executable, str(path)]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    with ending(process):
        yield process


def definitions(tmp_path: Path) -> str:
    return "".join(p.read_text(errors="replace") for p in tmp_path.glob("out/*.defs.jsonl"))


def where(tmp_path: Path) -> list[str]:
    """The lines of the program in the last sample of its main thread, innermost first."""
    program = (tmp_path / "program.py").read_text().splitlines()
    (process,) = (p for p in load(tmp_path / "out").model.processes if p.rank is None)
    assert not process.damage
    stack = process.latest_samples[0].stack
    return [program[frame.line - 1] for frame in stack if frame.file.endswith("program.py")]


def silent(tmp_path: Path, process: subprocess.Popen[bytes]) -> Silent:
    """The process as its journal shows it once its background thread waits for the GIL."""
    (path,) = tmp_path.glob("out/*.defs.jsonl")
    who = Who(here(), process.pid, stat(process.pid).ticks)
    return Silent(who, str(path)[: -len(".defs.jsonl")], 0)


def told(tmp_path: Path) -> bool:
    return '"def":"answers"' in definitions(tmp_path)


@pytest.mark.parametrize("thread", ["held()", BESIDE])
def test_a_thread_that_holds_the_gil_is_found_at_its_line(tmp_path: Path, thread: str) -> None:
    """In a library call that never lets go; SIGKILL later takes nothing of that away."""
    with run(tmp_path, LOOKS + HOLDS + thread) as process:
        wait_until(lambda: told(tmp_path), timeout=90)
        holders = GilHolders()
        wait_until(lambda: holders.ask([silent(tmp_path, process)]), timeout=60)
        assert not holders.ask([silent(tmp_path, process)])  # once is enough
        process.kill()
        process.wait()
    assert "# held" in where(tmp_path)[0]


def test_who_sleeps_in_a_system_call_is_not_woken(tmp_path: Path) -> None:
    """Not every call goes on after a handler, and C code need not expect its early return."""
    with run(tmp_path, LOOKS + HOLDS + "slept()") as process:
        wait_until(lambda: told(tmp_path), timeout=90)
        holders = GilHolders()
        while process.poll() is None:
            assert not holders.ask([silent(tmp_path, process)])
        assert process.communicate()[0] == b"slept True\n"
        assert process.returncode == 0


def test_who_is_stopped_is_not_asked(tmp_path: Path) -> None:
    """It would answer when it goes on, and do so wherever it is then."""
    with run(tmp_path, LOOKS + "os.kill(os.getpid(), signal.SIGSTOP)" + SLEEPS) as process:
        wait_until(lambda: told(tmp_path), timeout=90)
        wait_until(lambda: stat(process.pid).state == "T", timeout=10)
        assert not GilHolders().ask([silent(tmp_path, process)])
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    assert "most recent call first" not in definitions(tmp_path)


THREAD = _Thread("R", 7, 0, 0)


@pytest.mark.parametrize(
    ("after", "waker", "found"),
    [
        (THREAD, 60, 5),
        (replace(THREAD, sleeps=8), 60, None),  # Python ran in it
        (replace(THREAD, masked=1 << 56), 60, None),  # it blocks the signal, or there is a handler
        (THREAD, 3, None),  # the background thread does not wait for the GIL
    ],
)
def test_who_may_be_asked(after: _Thread, waker: int, found: int | None) -> None:
    """One that has been in C all the time, while nobody else could run."""
    before = {5: THREAD, 6: _Thread("S", 0, 0, 0)}
    now = {5: after, 6: _Thread("S", waker, 0, 0)}
    assert holder(5, before, now, 6, 57) == found


def test_a_process_that_is_told_to_end_says_where_it_was(tmp_path: Path) -> None:
    """It ends by the signal, as without us."""
    with run(tmp_path, SLEEPS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        process.communicate()
        assert process.returncode == -signal.SIGTERM
    assert "# slept" in where(tmp_path)[0]


def test_the_program_has_the_signal_if_it_wants_it(tmp_path: Path) -> None:
    """Nobody sends it any more, and its handler stays, also when tracing ends."""
    ends = "import disttrace; disttrace.uninstall(); os.kill(os.getpid(), number); time.sleep(1)"
    with run(tmp_path, LOOKS + THEIRS + ends) as process:
        assert process.communicate(timeout=90)[0] == b"theirs\n"
        assert process.returncode == 0
    assert '"signal":0' in definitions(tmp_path)


def test_a_signal_with_a_handler_of_c_is_not_taken(tmp_path: Path) -> None:
    """Python knows nothing of those; the kernel does."""
    handler = "import ctypes, signal; ctypes.CDLL(None).signal(signal.SIGRTMAX - 7, 1)"
    shown = "print(signal.SIGRTMAX - session._session._without_gil._signal)"
    with run(tmp_path, LOOKS + shown, before=handler) as process:
        assert process.communicate(timeout=90)[0] == b"8\n"


NUMBER = signal.SIGRTMAX - 7
"""What is taken where it is free."""
UNTRACED = f"""
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
    "a handler of Python's, set later": """
trace()
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
for pause in (0, 1):
    time.sleep(pause)
    os.kill(os.getpid(), signal.SIGTERM)""",
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
reads, writes = os.pipe()
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        print(caught()[0] >> 14 & 1, flush=True)
        os.write(writes, b"printed")
        signal.pause()
    os.read(reads, 7)
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


def run_both(folder: Path, program: str, *, traced: bool, before: tuple[str, ...] = ()) -> Outcome:
    (folder / str(traced)).mkdir()
    file = folder / "program.py"
    file.write_text(UNTRACED + program)
    command = [*before, sys.executable, str(file), str(folder / str(traced))]
    return run_program([*command, "traced" if traced else "untraced"], clean_environ(), 60)


def said(outcome: Outcome) -> tuple[int, str]:
    return outcome.code, outcome.stdout.replace("/True/", "/False/")


@pytest.mark.parametrize("name", PROGRAMS)
def test_signals_are_the_programs_own(tmp_path: Path, name: str) -> None:
    """Beside the same program untraced: what it sees, how it ends, and what its files hold."""
    traced, untraced = (run_both(tmp_path, PROGRAMS[name], traced=t) for t in (True, False))
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
    traced, untraced = (run_both(tmp_path, program, traced=t, before=inside) for t in (True, False))
    assert traced.check().stdout == untraced.check().stdout == "1 0\n"


AT_EACH_LINE = """
stacks, now = session._session._without_gil, time.monotonic_ns
definitions = session._session._journal.definitions
def interrupted(of, by, *args):
    lines = set()
    def trace(frame, event, arg):
        if event == "line" and frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            sys.settrace(by())
        return trace if frame.f_code is of.__code__ else None
    seen = -1
    while len(lines) > seen:
        seen = len(lines)
        stacks.start(definitions)
        sys.settrace(trace)
        of(*args)
        sys.settrace(None)
    assert seen > 5
interrupted(stacks.look, stacks.stop, 0)
interrupted(stacks.start, lambda: stacks.look(now()), definitions)
stacks._told = None
"""


def test_looks_and_ends_come_at_any_time(tmp_path: Path) -> None:
    """The background thread looks while the program's starts it, or takes the signal for itself."""
    with run(tmp_path, LOOKS + AT_EACH_LINE + LOOKS + "print(stacks._told[1] > 0)") as process:
        assert process.communicate(timeout=90)[0] == b"True\n"


@pytest.mark.parametrize("handled", ["handled", "free"])
def test_a_handler_of_a_library_is_never_called_by_us(tmp_path: Path, handled: str) -> None:
    """It is set after us, and the process is asked as if the companion had not seen it."""
    file = tmp_path / "program.py"
    file.write_text(UNTRACED + HELD)
    command = [sys.executable, str(file), str(tmp_path), "traced", handled]
    process = subprocess.Popen(command, env=clean_environ(), stdout=subprocess.PIPE)
    with ending(process):
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
    (journal,) = tmp_path.glob("out/*.defs.jsonl")
    assert (b"# held" in journal.read_bytes() or b"most recent" in journal.read_bytes()) == (
        handled == "free"
    )


def test_both_sides_mean_the_same_value() -> None:
    assert compiled.load("lifecycle._answers").ASK == fmt.ASK
