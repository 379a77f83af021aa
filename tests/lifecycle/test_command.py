"""The command that gets what is told of a stall: how it starts, and that it ends."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disttrace_viewer.companion import command
from support.preloaded import preloaded
from support.processes import is_running, python, wait_until

RUNS = """
import os, signal, subprocess, sys, time
from disttrace_viewer.companion import command
command.GRACE_S, command._TERMINATED_S = float(sys.argv[4]), 0.5
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
verdicts = subprocess.Popen(["/bin/sh", "-c", "sleep 1.5; exit 7"])
commands = command.Commands(sys.argv[1], sys.argv[2])
commands.run("the report")
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    commands.look(verdicts.pid)
    time.sleep(0.02)
with open(f"/proc/self/task/{os.getpid()}/children") as children:
    print(len(children.read().split()), flush=True)
begun = time.monotonic()
commands.finish()
print(f"{time.monotonic() - begun:.1f}", verdicts.wait())
"""


def run(shell: str, folder: Path, seconds: float, grace: float = 20) -> tuple[int, float]:
    """Children that are left after so many seconds, and how long the end took."""
    outcome = python("-c", RUNS, shell, str(folder), str(seconds), str(grace)).check()
    left, took, code = outcome.stdout.split()
    assert code == "7"  # of a child that is not the command's
    return int(left), float(took)


@pytest.mark.parametrize("there", [True, False])
def test_it_starts_as_from_a_shell(tmp_path: Path, there: bool) -> None:
    """In the program's directory, with the report, and nothing ignored or blocked."""
    found = tmp_path / "found"
    shell = "{ cat; echo; pwd; grep -E 'SigIgn|SigBlk' /proc/self/status; ls /proc/self/fd; } > "
    shell += str(found)
    left, took = run(shell, tmp_path if there else tmp_path / "gone", 0.5)
    assert (left, took < 10) == (1, True)  # the other child, which nobody else may reap
    report, folder, blocked, ignored, *open_ones = found.read_text().splitlines()
    assert report == "the report"
    assert there == (folder == str(tmp_path))
    libc_s_own = 3 << 31  # which no program can set
    assert int(blocked.split()[1], 16) == int(ignored.split()[1], 16) & ~libc_s_own == 0
    assert open_ones == ["0", "1", "2", "3"]  # the last one is that of `ls`


@pytest.mark.parametrize(
    ("shell", "least"),
    [
        ("echo $$ > pid; exec sleep 60", 0.5),
        ("(echo $BASHPID; exec sleep 60) > pid & sleep 0.1; pgrep -g $$ sleep > pid; :", 0.5),
        ("echo $$ > pid; trap : TERM; while :; do sleep 1; done", 1.0),
    ],
    ids=["long", "left behind", "deaf"],
)
def test_it_ends_after_the_job(tmp_path: Path, shell: str, least: float) -> None:
    """After some seconds it is told to end, and killed where it does not; so is what it started."""
    _, took = run(shell, tmp_path, 0.5, grace=0.5)
    assert least <= took < 30
    pids = [int(pid) for pid in (tmp_path / "pid").read_text().split()]
    assert pids
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]


def test_nothing_of_it_stays_as_a_zombie(tmp_path: Path) -> None:
    """What ends is reaped, also what left its group; what lives there goes on."""
    shell = "setsid sh -c 'echo $$ > pid; sleep 3' & setsid true & true &"
    left, took = run(shell, tmp_path, 1.0)
    assert (left, took < 10) == (2, True)  # the other child, and who left
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_report_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    """Not even one that is longer than a pipe."""
    commands = command.Commands("exit", str(tmp_path))
    commands.run("x" * 200_000)
    wait_until(lambda: not commands._run_on())


FIRST = {"disttrace": 1, "kind": "stalled", "summary": "Rank 1 never joined."}
LONG = "x" * command.MOST_BYTES


@pytest.mark.parametrize(
    ("long", "left"),
    [
        ([], ["report", "also", "finding", "processes"]),
        (["report"], ["also", "finding", "processes"]),
        (["also"], ["finding", "processes"]),
        (["report", "also", "finding"], ["processes"]),
        (["processes"], []),
    ],
)
def test_what_is_long_goes_first(long: list[str], left: list[str]) -> None:
    """The sentence stays, and what is left can be read."""
    said = [{**FIRST, "finding": {"op": LONG if "finding" in long else ""}}]
    said.append({**FIRST, "finding": LONG if "also" in long else ""})
    one = {"host": LONG if "processes" in long else ""}
    more = {"processes": [one], "report": LONG if "report" in long else "it hangs"}
    text = command.line(said, more)
    assert text.endswith("\n")
    assert len(text.encode()) <= command.MOST_BYTES
    found = json.loads(text)
    assert found["summary"] == FIRST["summary"]
    assert [key for key in ("report", "also", "finding", "processes") if found[key]] == left


PRINTS = """
import ctypes, sys, threading, time
from disttrace.lifecycle.exit_hooks import end_process
print("python", end=" ")
ctypes.CDLL(None).printf(b"c ")
{more}
threading.Thread(target=end_process, args=(75,)).start()
time.sleep(60)
"""
STUCK = """
class Stuck:
    def write(self, text): pass
    def flush(self): time.sleep(60)
sys.stdout = Stuck()
"""
RAISES = """
class Raises:
    def flush(self): raise SystemExit(3)
sys.stdout = Raises()
"""
FULL = """
import os
reads, writes = os.pipe()
sys.stderr = open(writes, "w", buffering=1 << 20)
sys.stderr.write("x" * (1 << 19))
"""
READS = """
import os
reads, writes = os.pipe()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(reads, b"r"))
threading.Thread(target=libc.fgetc, args=(stream,), daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "more",
    ["", STUCK, RAISES, "sys.stdout = None", "sys.stdout = object()", FULL, READS],
    ids=["plain", "stuck", "raises", "none", "other", "full", "reads"],
)
def test_what_was_printed_is_not_lost(more: str) -> None:
    """By Python and by C; what cannot be said does not hold up the end, nor change its code."""
    begun = time.monotonic()
    outcome = python("-c", PRINTS.format(more=more), timeout=30, PYTHONUNBUFFERED="")
    assert (outcome.code, outcome.hung) == (75, False)
    assert {*outcome.stdout.split()} == {"python", "c"}
    assert time.monotonic() - begun < 15


RANK = """
import sys, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]),
                        world_size=2)
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_that_no_variable_numbers_say_it_once(tmp_path: Path) -> None:
    """As mpirun starts them: nobody traced is their parent, and only torch knows who is rank 0."""
    journals = tmp_path / "journals"
    traced = {"DISTTRACE": "1", "DISTTRACE_DIR": str(journals), "DISTTRACE_QUIET": "0"}

    def said(rank: str) -> str:
        words = ("-c", RANK, tmp_path / "rendezvous", rank)
        return preloaded(*words, timeout=60.0, DISTTRACE_JOB="alone", **traced).check().stderr

    with ThreadPoolExecutor(2) as pool:
        lines = [line for text in pool.map(said, "01") for line in text.splitlines()]
    (line,) = (line for line in lines if "what happened: disttrace view" in line)
    assert line.startswith("disttrace: ")
    assert line.endswith(f"disttrace diagnose {journals}")
    assert len(list(journals.glob("alone-*.defs.jsonl"))) == 2
