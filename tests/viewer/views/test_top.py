"""`disttrace top`: where the ranks are now, and who waits for whom."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import tty
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from disttrace.cli import main
from disttrace.journal import proc
from disttrace_viewer.analysis.exchanges import Exchanges, align
from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.api import live
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal.diagnosis import details
from disttrace_viewer.views.terminal.top import (
    Snapshot,
    activity_of,
    lines,
    snapshot_of,
)
from support.journals import MS, T0, Journal, workers
from support.processes import python
from support.scenes import alive, stuck


def verdict_of(folder: Path) -> Verdict:
    return verdict_on(align(load([str(folder)])))


def snapshot(folder: Path) -> Snapshot:
    """What ``top`` would show of a folder."""
    exchanges = Exchanges(align(load([str(folder)])))
    found = verdict_on(exchanges.trace, exchanges)
    return snapshot_of(found.case, found.findings, activity_of(exchanges))


def many(folder: Path, ranks: int, culprit: int) -> None:
    """All but one rank wait for the one."""
    acts = ["all_reduce"] * ranks
    acts[culprit] = "at train.py:3 load"
    stuck(folder, *acts, until_s=60)


def test_a_row_per_position_the_culprit_first(tmp_path: Path) -> None:
    """Who waits is one row; the verdict is the first finding's; shares are of the time."""
    many(tmp_path, 3, culprit=2)
    found = snapshot(tmp_path)
    assert (found.verdict.level, found.verdict.kind) == ("fault", "missing_participant")
    told = "Rank 2 never joined all_reduce #3 of the default group"
    assert found.verdict.summary.startswith(told)
    culprit, rest = found.rows
    assert (culprit.who, culprit.place.doing) == ("rank 2", "not in any collective")
    assert (culprit.place.at, culprit.place.culprit) == ("train.py:3 in load", True)
    assert (rest.who, rest.place.doing) == ("ranks 0, 1", "in all_reduce #3 of the default group")
    assert (rest.place.at, rest.place.waits) == ("train.py:10 in main", True)
    assert (culprit.late or 0) > 0.9
    assert (rest.waiting or 0) > 0.9
    assert (culprit.waiting, rest.late) == (0, 0)


def test_json_is_one_object_with_the_same_values(tmp_path: Path) -> None:
    """As documented: verdict, positions, job and time."""
    many(tmp_path, 3, culprit=2)
    done = python("-m", "disttrace", "top", "--json", tmp_path)
    assert (done.code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    values = live.snapshot(str(tmp_path)).to_dict()
    assert found == json.loads(json.dumps(values)) | {"time_ns": found["time_ns"]}
    assert found["verdict"]["kind"] == "missing_participant"
    rows = [(p["ranks"], p["culprit"]) for p in found["positions"]]
    assert rows == [([2], True), ([0, 1], False)]


def test_every_picture_fits_and_never_without_the_culprit(tmp_path: Path) -> None:
    """At any size: rows that are cut off are counted in a line that is there."""
    many(tmp_path, 60, culprit=41)
    found = snapshot(tmp_path)
    for width, rows in ((80, 24), (80, 12), (40, 10), (36, 10), (200, 50)):
        shown = [line.plain for line in lines(found, width, rows)]
        assert len(shown) <= rows
        assert max(map(cell_len, shown)) <= width
        (culprit,) = [line for line in shown if line.startswith(" ▶ 41 ")]
        assert "train.py:3" in culprit or width < 80
    more = [line.plain for line in lines(replace(found, rows=found.rows * 20), 80, 12)]
    assert len(more) == 12
    assert more[-1].startswith("   and 34 more positions (1,020 processes)")
    # What to do, and the culprit's stack, where 24 lines leave room; never beyond it.
    verdict = verdict_of(tmp_path)
    beside = tuple(details(verdict.case, verdict.findings))
    shown = [line.plain for line in lines(found, 80, 24, details=beside)]
    assert len(shown) <= 24
    assert next(line for line in shown if "What to do: " in line)
    assert "    /src/train.py:3 in load" in shown
    few = [line.plain for line in lines(found, 80, 9, details=beside)]
    assert len(few) <= 9
    assert not any("What to do" in line for line in few)


def test_places_in_many_groups_of_one_kind_are_one(tmp_path: Path) -> None:
    """A mesh has as many groups as would fill the screen."""
    for journal in workers(tmp_path, 24):
        rank = journal.rank or 0
        journal.run(journal.collective(journal.world()), t=20 * MS, d=4 * MS, q=1)
        first = rank // 2 * 2
        groups = {"tp": [first, first + 1]} | ({} if rank % 2 else {"dp": list(range(0, 24, 2))})
        for desc, ranks in groups.items():
            group = journal.group(
                ranks=ranks, name=f"{desc}{ranks[0]}", desc=desc, size=len(ranks),
                rank=ranks.index(rank), default=False,
            )  # fmt: skip
            if rank and (desc == "dp" or rank % 2):
                journal.begin(journal.collective(group), t=31 * MS, q=1)
        journal.record(hb=60_030 * MS)
    found = verdict_of(tmp_path)
    spots = places(found.case, found.findings)
    processes = found.case.evidence.trace.processes
    found_ranks = [sorted(processes[p].rank or 0 for p in spot.processes) for spot in spots]
    # Nobody is to blame for certain: they may have taken the wrong group.
    assert found_ranks == [list(range(2, 24, 2)), [0], list(range(1, 24, 2))]
    assert spots[2].doing == "in all_reduce #1 of 12 groups (tp)"


def test_a_running_process_has_rates_and_a_place(tmp_path: Path) -> None:
    """This very process stands for one that runs: in no collective, at the user's line."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    t0 = time.time_ns()
    journal = Journal(
        tmp_path, pid=os.getpid(), rank=0, world_size=1, boot_id=boot, offset_ns=t0 - T0,
        keys=proc.own(),
    )  # fmt: skip
    call = journal.collective(journal.world())
    for step in range(1, 11):
        journal.run(call, t=step * MS // 10, d=MS // 20, q=step)
    loader = "/venv/site-packages/torch/utils/data/dataloader.py"
    stack = journal.stack((loader, 5, "next"), ("train.py", 3, "load"))
    journal.record(at=2 * MS, h=0, k=stack)
    assert look(load([str(tmp_path)]).processes[0]).alive
    found = snapshot(tmp_path)
    (row,) = found.rows
    assert (row.place.state, row.place.doing, row.ops_per_s) == (
        "running",
        "not in any collective",
        2.0,
    )
    assert row.place.at.startswith("train.py:3 in load")
    assert (found.live, found.verdict.level) == (True, "well")


def test_an_agent_that_polls_a_store_has_no_rate(tmp_path: Path) -> None:
    """Else a job that stands still would do two operations a second."""
    (journal,) = workers(tmp_path, 1)
    journal.run(journal.collective(journal.world()), t=MS, d=MS, q=1)
    agent = Journal(tmp_path, pid=900, role="agent")
    for step in range(10):
        agent.run(agent.store_call("get", 9), t=step * MS, d=MS // 2, k="done")
    found = activity_of(Exchanges(align(load([str(tmp_path)]))))
    assert found.ops_per_s == {journal.process: 0.2}


@pytest.mark.parametrize("columns", ["80", "0"])
def test_the_command_prints_one_snapshot_without_a_terminal(tmp_path: Path, columns: str) -> None:
    """As for a log: one picture in 80 columns, no escape codes, exit code 0."""
    many(tmp_path, 3, culprit=2)
    done = python("-m", "disttrace", "top", tmp_path, COLUMNS=columns)
    assert (done.code, done.stderr) == (0, "")
    shown = done.stdout.splitlines()
    assert shown[1].startswith("Rank 2 never joined all_reduce #3")
    assert max(len(line) for line in shown) <= 80
    assert "all_reduce #3 of default  train.py:10" in done.stdout  # not cut for empty columns
    assert "ops/s" not in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("way", ["q", "raw", "interrupt", "term"])
def test_on_a_terminal_it_follows_until_somebody_leaves(tmp_path: Path, way: str) -> None:
    """It waits for journals to appear; however it ends, the terminal is as it was before."""
    lead, follow = pty.openpty()
    before = termios.tcgetattr(follow)
    process = subprocess.Popen(
        [sys.executable, "-m", "disttrace", "top", str(tmp_path)],
        stdin=follow, stdout=follow, stderr=follow, start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
    )  # fmt: skip
    try:
        read_until(lead, b"waiting for journals")
        many(tmp_path, 3, culprit=2)
        read_until(lead, b"all_reduce #3")
        if way == "raw":
            tty.setraw(follow)
        if way in ("q", "raw"):
            os.write(lead, {"q": b"q", "raw": b"\x03"}[way])
        else:
            process.send_signal(signal.SIGTERM if way == "term" else signal.SIGINT)
        read_until(lead, b"\x1b[?1049l")  # the screen from before is back
        assert process.wait(30) == (128 + signal.SIGTERM if way == "term" else 0)
        assert termios.tcgetattr(follow) == before
    finally:
        process.kill()
        process.wait()
        os.close(follow)
        os.close(lead)


def read_until(terminal: int, wanted: bytes) -> None:
    """Read what a program writes until it has written ``wanted``."""
    found = b""
    while wanted not in found:
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"no {wanted!r} in {found!r}"
        found += os.read(terminal, 65536)


def test_eighty_columns_show_lines_and_operations_of_long_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 64 ranks: no name of a file, nor how long all were silent, takes their room."""
    file = "train_entry_point_with_a_long_name_for_the_experiment_of_november.py"
    for journal in alive(workers(tmp_path, 64), 30):
        call = journal.collective(journal.world(), stack=(f"/w/{file}", 44, "main"))
        if journal.rank == 22:
            journal.stand(MS, f"/w/{file}", 57, "wait_for_the_loader_of_the_validation_set")
        else:
            journal.begin(call, t=MS, q=1)
    assert main(["top", "--once", str(tmp_path), "--width", "80"]) == 0
    *_, culprit, others = capsys.readouterr().out.splitlines()
    assert ".py:57" in culprit
    assert "all_reduce #1" in others
    assert ".py:44" in others
    assert main(["diagnose", str(tmp_path), "--width", "80"]) == 1
    places = capsys.readouterr().out.partition("Where the ranks are:")[2]
    assert f"{file}:44" in places
    assert f"{file}:57" in places
