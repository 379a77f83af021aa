"""A recorded job becomes a program of plain torch, and the shrunk one stands in the same way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from disttrace_viewer.api.replayed import replayed
from disttrace_viewer.trace.errors import ViewerError
from support.journals import MS, Journal, training, workers
from support.processes import clean_environ, run_program
from support.scenes import S


def missing(folder: Path, world: int = 4) -> None:
    """Five all_reduces, and rank 2 does not come to the sixth."""
    for journal in workers(folder, world):
        call = journal.collective(journal.world())
        for step in range(1, 6):
            journal.run(call, t=step * MS, d=MS // 10, q=step)
        if journal.rank == 2:
            stack = journal.stack(("loader.py", 34, "load"))
            journal.record(at=3 * S, h=0, k=stack)
        else:
            journal.begin(call, t=10 * MS, q=6)
        journal.record(hb=30 * S)


def cycle(folder: Path) -> None:
    """After a step rank 0 and rank 1 send to one another; rank 2 waits in a collective."""
    for journal in workers(folder, 3):
        group = journal.world()
        journal.run(journal.collective(group), t=MS, d=MS // 10, q=1)
        if journal.rank == 2:
            journal.begin(journal.collective(group), t=2 * MS, q=2)
        else:
            _sends(journal, group)
        journal.record(hb=30 * S)


def _sends(journal: Journal, group: int) -> None:
    call = journal.message(group, "send", 1 - (journal.rank or 0), **{"async": False})
    journal.begin(call, t=2 * MS, q=1)


def test_what_is_over_and_who_does_the_same_is_left_out(tmp_path: Path) -> None:
    """Two of those that wait stay, and who does not come; its line is a comment."""
    missing(tmp_path)
    found = replayed(tmp_path, shrink=True)
    assert (found.kind, found.ranks, found.calls) == ("missing_participant", 3, 2)
    assert found.text.count("dist.all_reduce(tensor(4), op=dist.ReduceOp.SUM)  # train.py:10") == 2
    assert "time.sleep(86400)  # stays at loader.py:34" in found.text
    compile(found.text, "repro.py", "exec")
    whole = replayed(tmp_path)
    assert (whole.ranks, whole.calls) == (4, 23)
    paced = replayed(tmp_path, speed=2.0)
    assert "time.sleep(0.0025)" in paced.text, "from the begin at 5 ms to that at 10 ms"


def test_a_healthy_job_is_not_shrunk(tmp_path: Path) -> None:
    """There is nothing to keep."""
    training(tmp_path)
    with pytest.raises(ViewerError, match="nothing to shrink to"):
        replayed(tmp_path, shrink=True)
    assert replayed(tmp_path).calls == 6


@pytest.mark.long
def test_it_hangs_in_the_same_way(tmp_path: Path) -> None:
    """The command runs it on gloo; the file by itself hangs under torchrun."""
    cycle(tmp_path / "journals")
    command = [sys.executable, "-m", "disttrace", "replay", str(tmp_path / "journals")]
    done = run_program([*command, "--shrink"], clean_environ(), timeout=120)
    assert done.code == 0, done
    assert "as recorded (deadlock)." in done.stdout
    file = tmp_path / "repro.py"
    subprocess.run([*command, "--shrink", "-o", str(file)], env=clean_environ(), check=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = [*launcher, "--nproc-per-node", "3", str(file)]
    assert run_program(ranks, clean_environ(), timeout=25).hung  # and its ranks are ended with it
