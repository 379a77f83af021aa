"""What a job and its companion leave behind when both are killed means nothing to the next job.

Of the same name, in the same folder, on the same host: a requeue, a pod that is started again, a
job that runs every night.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    return [
        subprocess.Popen(
            [sys.executable, str(path), how],
            env=clean_environ(
                RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                OMP_NUM_THREADS="1", **variables,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip


def outcome(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code and output of each."""
    said = [process.communicate(timeout=120) for process in ranks]
    return [(process.returncode, *both) for process, both in zip(ranks, said, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("on_stall", [None, "abort"])
def test_an_order_to_end_that_was_left_over_ends_nobody(
    tmp_path: Path, on_stall: str | None
) -> None:
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
