"""`disttrace top`: what every process does now, and who waits for whom."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal import in_flight
from disttrace_viewer.views.terminal.top import snapshot_of
from support.journals import MS, UNIX_NS, Journal, workers


def hanging(folder: Path) -> None:
    """Ranks 0 and 1 wait for rank 2 in all_reduce 2, and rank 0 for a key as well."""
    for journal in workers(folder, 3):
        group = journal.world()
        call = journal.collective(group)
        journal.run(call, t=20 * MS, d=4 * MS, q=1)
        if journal.rank != 2:
            journal.begin(call, t=30 * MS, q=2)
        else:
            stack = journal.stack(
                ("/venv/torch/utils/data/dataloader.py", 5, "next"), ("train.py", 3, "load")
            )
            journal.record(at=4_000 * MS, h=0, k=stack)
            journal.record(hb=5_030 * MS)


def test_a_snapshot_says_what_each_does_and_who_waits(tmp_path: Path) -> None:
    """In rank order; after the end ages count to the newest record, and rates are nobody's."""
    hanging(tmp_path)
    found = snapshot_of(load([str(tmp_path)]))
    assert (found.live, found.at_ns) == (False, UNIX_NS + 5_030 * MS)
    assert [p.name for p in found.processes] == ["rank 0", "rank 1", "rank 2"]
    first = found.processes[0]
    assert (first.doing, first.place) == ("all_reduce #2 in default group", "train.py:10 main")
    assert (first.age_ns, first.ops_per_s, first.state) == (5_000 * MS, None, "silent")
    (wait,) = found.waits
    assert (wait.missing, wait.what) == (("rank 2",), "all_reduce #2 in default group")
    assert (len(wait.waiting), wait.age_ns) == (2, 5_000 * MS)


def test_a_message_and_a_key_are_waited_for(tmp_path: Path) -> None:
    """The other end of a message is named; who should set a key is not guessed."""
    first, second = workers(tmp_path, 2)
    first.begin(first.message(first.world(), "recv", 1), t=10 * MS, q=1)
    second.world()
    store = second.tcp_store()
    key = second.call("store.get", kind="store", store=store)
    second.begin(key, t=30 * MS, k="ready")
    found = snapshot_of(load([str(tmp_path)]))
    assert [(w.missing, w.what, w.age_ns) for w in found.waits] == [
        (("rank 1",), "recv #1", 20 * MS),
        ((), "store.get ready", 0),
    ]


def test_a_running_process_has_rates_and_a_place(tmp_path: Path) -> None:
    """This very process stands for one that runs: outside communication, at the user's line."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    t0 = time.time_ns()
    journal = Journal(
        tmp_path, pid=os.getpid(), rank=0, world_size=1, boot_id=boot, offset_ns=t0 - 10**12
    )
    call = journal.collective(journal.world())
    for step in range(1, 11):
        journal.run(call, t=step * MS // 10, d=MS // 20, q=step)
    stack = journal.stack(
        ("/venv/torch/utils/data/dataloader.py", 5, "next"), ("train.py", 3, "load")
    )
    journal.record(at=2 * MS, h=0, k=stack)
    trace = load([str(tmp_path)])
    assert in_flight.alive(trace.processes[0])
    (now,) = snapshot_of(trace).processes
    assert (now.state, now.doing, now.place) == ("running", "", "train.py:3 load")
    assert (now.ops_per_s, now.bytes_per_s) == (2.0, 32.0)


def test_a_pid_that_was_given_again_is_not_the_process(tmp_path: Path) -> None:
    """A process that began after the journal's one is another process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    Journal(tmp_path, pid=os.getpid(), boot_id=boot)
    assert not in_flight.alive(load([str(tmp_path)]).processes[0])


def test_the_command_prints_one_snapshot_without_a_terminal(tmp_path: Path) -> None:
    """As for a log: one picture in 80 columns, no escape codes, exit code 0."""
    hanging(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "disttrace", "top", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].startswith("  ranks 0, 1 wait for rank 2 in all_reduce #2 in default group")
    assert max(len(line) for line in lines) <= 80
    assert "\x1b" not in done.stdout


def test_on_a_terminal_it_refreshes_until_interrupted(tmp_path: Path) -> None:
    """It waits for journals to appear, shows them, and Ctrl-C leaves with code 0."""
    lead, follow = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "disttrace", "top", str(tmp_path), "--interval", "0.1"],
        stdout=follow,
        stderr=follow,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(follow)
    try:
        read_until(lead, b"waiting for journals")
        hanging(tmp_path)
        read_until(lead, b"all_reduce #2")
        process.send_signal(signal.SIGINT)
        read_until(lead, b"\x1b[?1049l")  # the screen from before is back
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(lead)


def read_until(terminal: int, wanted: bytes) -> None:
    """Read what a program writes until it has written ``wanted``."""
    found = b""
    while wanted not in found:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"no {wanted!r} in {found!r}"
        found += os.read(terminal, 65536)
