"""The tools of the tests: what would hide a fault if it did not work."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from disttrace.recording import background
from reliability.outcomes import normal
from support.patches import leftovers
from support.processes import clean_environ, is_running, python, run_program, wait_until


def test_a_hung_worker_in_a_session_of_its_own_dies_too(tmp_path: Path) -> None:
    """What a hung program started, torchrun's workers for one, says where it was and is gone."""
    said = tmp_path / "stderr"  # of its own: two processes that write at once mix their lines
    child = "import time\\ndef stuck():\\n time.sleep(60)\\nprint(flush=True)\\nstuck()"
    code = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', '{child}'], start_new_session=True,"
        f" stderr=open({str(said)!r}, 'w'))\n"
    )
    outcome = python("-c", code, timeout=2.0)
    assert outcome.hung
    assert "in stuck" in said.read_text()


def test_what_a_program_leaves_running_is_killed(tmp_path: Path) -> None:
    """A child that outlives its parent is gone when the outcome is there."""
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
    )
    run_program([sys.executable, "-c", code], clean_environ(), 30).check()
    wait_until(lambda: not is_running(int(note.read_text())))


def test_variables_threads_and_import_hooks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the other things that could stay is named."""
    environ = dict(os.environ)
    finder = type("Finder", (), {"__module__": "disttrace.capture.late"})()
    release, runs = threading.Event(), threading.Event()

    def beat() -> None:
        runs.set()
        release.wait()

    thread = background.Thread(beat, "disttrace-beat")
    thread.start()
    assert runs.wait(10)
    monkeypatch.setenv("DISTTRACE_STALL", "1")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    found = leftovers(environ)
    release.set()
    thread.join(10)
    monkeypatch.undo()
    assert found == [
        "os.environ['DISTTRACE_STALL']", "thread disttrace-beat", f"sys.meta_path entry {finder!r}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("connect to [127.0.0.1]:40121", "connect to [::1]:51234", True),
        ("at 0x7f00ab", "at 0x55", True),
        ("process 4711 of /tmp/x/out", "process 12 of /tmp/y", True),
        ("Timed out after 9 seconds", "Timed out after 12.5 seconds", True),
        (
            "[/w/gloo/pair.cc:537] Read error [::1]:5: Connection reset by peer",
            "[/w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:45965. This is",
            True,
        ),
        ("1/2 clients joined", "2/2 clients joined", False),
        ("ValueError: x", "TypeError: x", False),
        ("2732 vs 684", "2732 vs 685", False),
        ("rank 1 failed", "rank 2 failed", False),
    ],
)
def test_what_counts_of_a_run(one: str, other: str, *, same: bool) -> None:
    """Not ports, addresses, pids, places and times; numbers that mean something stay."""
    assert (normal(one) == normal(other)) is same
