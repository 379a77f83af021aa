"""The command that gets what is told of a stall: how it starts, and that it ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrace_viewer.companion import command
from support.processes import is_running, python, wait_until

RUNS = """
import os, signal, subprocess, sys, time
from disttrace_viewer.companion import command
command.GRACE_S, command._TERMINATED_S = 0.5, 0.5
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


def run(shell: str, folder: Path, seconds: float) -> tuple[int, float]:
    """Children that are left after so many seconds, and how long the end took."""
    outcome = python("-c", RUNS, shell, str(folder), str(seconds)).check()
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
    assert (left, took < 0.5) == (1, True)  # the other child, which nobody else may reap
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
    _, took = run(shell, tmp_path, 0.5)
    assert least <= took < 10
    pids = [int(pid) for pid in (tmp_path / "pid").read_text().split()]
    assert pids
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]


def test_nothing_of_it_stays_as_a_zombie(tmp_path: Path) -> None:
    """What ends is reaped, also what left its group; what lives there goes on."""
    shell = "setsid sh -c 'echo $$ > pid; sleep 3' & setsid true & true &"
    left, took = run(shell, tmp_path, 1.0)
    assert (left, took < 0.5) == (2, True)  # the other child, and who left
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_report_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    """Not even one that is longer than a pipe."""
    commands = command.Commands("exit", str(tmp_path))
    commands.run("x" * 200_000)
    wait_until(lambda: not commands._run_on())
