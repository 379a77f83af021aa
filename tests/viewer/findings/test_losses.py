"""Lost, cut and unreadable files: no verdict becomes another one, and nobody is blamed for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disttrace.cli import main
from disttrace.journal.format import FORMAT
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.report import coverage
from disttrace_viewer.merge.jobs import closure, newest
from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal.diagnosis import lines
from support.journals import MS, PEER_GONE, Journal, S, training, workers
from support.losses import FEW, LOSSES, each_loss, outcome, wrong_verdicts
from support.scenes import Act, alive, all_gone, nobody_knows, steps, stuck, verdict


def healthy(folder: Path) -> None:
    training(folder, 3, 4)


def failed(folder: Path) -> None:
    """Rank 1 raises, the others lose it."""
    for journal, group in steps(folder, 3, 4):
        if journal.rank == 1:
            journal.fail(200 * MS, "ValueError", "not a number")
            continue
        call = journal.collective(group)
        journal.break_off(call, 190 * MS, 20 * MS, 215 * MS, q=5, line=40)


def frozen(folder: Path) -> None:
    """Rank 2 of 3 froze inside of a collective; the launcher beats for longer than all."""
    agent = Journal(folder, pid=3999, role="agent")
    agent.beat(40)
    for journal, group in steps(folder, 3, 4, parent=agent.process):
        journal.begin(journal.collective(group), 300 * MS, q=5)
        journal.beat(0 if journal.rank == 2 else 30)


def claimed_twice(folder: Path) -> None:
    """Two processes of three join as rank 1, and nobody as rank 2."""
    for number, rank in enumerate((0, 1, 1)):
        journal = Journal(folder, pid=4000 + number, rank=rank, world_size=3)
        ends = journal.join((100 + 10 * number) * MS, 3)
        if rank:
            for one in ends[:0:-1]:
                journal.end(one, 5 * MS)
            journal.mesh(200 * MS, ends[0], 3, rank, "default_pg", "0/", "cpu")
        journal.beat(30)


def aborted(folder: Path) -> None:
    """All pass other sizes, and rank 2 dies of what another one sent."""
    for journal, group in steps(folder, 3, 4):
        size = 4096 if journal.rank == 0 else 8 if journal.rank == 1 else 4
        call = journal.collective(group, shapes=[[size]], bytes=4 * size)
        number = journal.begin(call, 300 * MS, q=5)
        if journal.rank == 2:
            continue  # SIGABRT
        journal.end(number, 20 * MS, x=journal.string(PEER_GONE))
        journal.fail(340 * MS, "RuntimeError", PEER_GONE.partition(": ")[2], line=40)


LOADS = "at loader.py:8 load"
SCENES: dict[str, tuple[Callable[[Path], None] | tuple[Act, ...], int, set[int]]] = {
    "healthy": (healthy, 0, set()),
    "missing": (("all_reduce", "all_reduce", LOADS, "all_reduce"), 1, {2}),
    "failed": (failed, 1, {1}),
    "mismatch": (("all_gather", "all_reduce", "all_reduce"), 1, {0}),
    "ring": (("recv 2", "recv 0", "recv 1"), 1, set()),
    "left_early": (("all_reduce", "left", "all_reduce"), 1, {1}),
    "frozen": (frozen, 1, {2}),
    "claimed_twice": (claimed_twice, 1, {1}),
    "addressed_wrongly": (("send 2", "recv 0", LOADS), 1, set()),
    "aborted": (aborted, 1, set()),
}
ALL_WAYS = ("healthy", "missing", "failed", "ring", "aborted")


@pytest.mark.parametrize("name", SCENES)
def test_losing_a_file_blames_nobody_else(name: str, tmp_path: Path) -> None:
    """Every file of every journal, removed, unreadable, empty or cut."""
    scene, code, blamed = SCENES[name]
    if isinstance(scene, tuple):
        stuck(tmp_path / "whole", *scene, until_s=30)
    else:
        scene(tmp_path / "whole")
    assert outcome(tmp_path / "whole", all_gone)[:2] == (code, blamed)
    ways = LOSSES if name in ALL_WAYS else FEW
    assert wrong_verdicts(tmp_path / "whole", tmp_path / "scratch", all_gone, ways) == []


def test_a_healthy_job_with_a_loss_is_incomplete(tmp_path: Path) -> None:
    """Exit code 2, a sentence that names the file, and the job is still one."""
    training(tmp_path / "whole", 2, 4)
    for name, folder in each_loss(tmp_path / "whole", tmp_path / "scratch"):
        code, blamed, found = outcome(folder)
        assert (code, blamed) == (2, set()), name
        file = name.partition(":")[0].partition(".")[0]
        told = found["coverage"]["incomplete"]  # type: ignore[index]
        assert any(file in sentence for sentence in told), (name, told)
        assert {p["job"] for p in found["processes"]} == {"job"}, name  # type: ignore[attr-defined]


def test_an_orphan_belongs_to_its_job_and_is_never_the_newest(tmp_path: Path) -> None:
    """Also where a job of another name is beside it, and its own files were written last."""
    training(tmp_path, 2, 2)
    old, orphan = (Journal(tmp_path, pid=p, host="other", job="old") for p in (7, 8))
    old.run(old.call("store.get"), MS, MS)
    orphan.definitions.unlink()
    lone = Journal(tmp_path, pid=9, host="other", job="lone-job", keys={"start_ns": 1 << 61})
    lone.definitions.write_bytes(b"")
    trace = load([str(tmp_path)])
    assert {job.id: len(job.processes) for job in trace.jobs} == {"job": 2, "old": 2, "lone-job": 1}
    assert newest(trace.jobs).id in ("job", "old")


def test_a_rank_without_a_journal_comes_first(tmp_path: Path) -> None:
    """A healthy job of which one rank's journal was not collected is no healthy job."""
    last = training(tmp_path, 3, 3)[2]
    for path in (last.definitions, *last.segments):
        path.unlink()
    case, found = verdict(tmp_path)
    assert found == ()
    told = "rank 2: no journal found (was it started? was its journal collected?)."
    assert case.incomplete == (told,)
    text = list(lines(case, found))
    assert text[0].startswith("Incomplete: ")
    assert "rank 2: no journal found" in text[1]
    assert not any("Nothing is wrong" in line for line in text)
    assert coverage(case)["missing_ranks"] == [2]


def test_the_error_of_a_clock_that_nobody_read_is_no_number(tmp_path: Path) -> None:
    """A journal without definitions has no clock."""
    training(tmp_path, 2, 2)[1].definitions.unlink()
    case, _ = verdict(tmp_path)
    assert coverage(case)["clock_error_ns"] == 100
    assert coverage(case)["missing_ranks"] == [1]


def test_peers_tell_that_a_journal_was_cut_between_lines(tmp_path: Path) -> None:
    """Others completed what it has no record of."""
    journal = training(tmp_path, 2, 6)[1]
    kept = journal.segments[0].read_bytes().splitlines(keepends=True)[:5]
    journal.segments[0].write_bytes(b"".join(kept))
    case, found = verdict(tmp_path)
    assert found == ()
    (sentence,) = case.incomplete
    assert sentence.startswith("rank 1: its journal ends at #2 of the default group, but others")
    assert "completed #6 with it" in sentence


def test_no_rank_is_blamed_for_being_absent_beside_an_orphan(tmp_path: Path) -> None:
    """Processes are jobs of their own until they meet: the orphan may be the missing rank."""
    for journal in alive(workers(tmp_path, 3)[1:], 70):
        journal.join(100 * MS, 3)
    for path in tmp_path.glob("*-4000-*"):
        path.unlink()
    (before,) = verdict(tmp_path)[1]
    assert (before.kind, before.absent_ranks) == ("rendezvous_unreachable", (0,))
    Journal(tmp_path, pid=4000, rank=0, world_size=3, job="alone").definitions.unlink()
    trace = load([str(tmp_path)], choose=lambda of: [j.id for j in closure(of, [newest(of).id])])
    found = verdict_on(trace, look=nobody_knows)
    told = [(f.kind, f.absent_ranks, f.certainty) for f in found.findings]
    assert told == [("rendezvous_unreachable", (), "likely")]
    assert found.case.evidence.trace.other_jobs


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_a_dry_run_lacks_no_journals(tmp_path: Path, backend: str) -> None:
    """One process that stands for rank 0 of eight, without any other."""
    journal = Journal(tmp_path, pid=4000, rank=0, world_size=8)
    group = journal.group(backends={"cpu": backend})
    journal.run(journal.collective(group, backend=backend), 100 * MS, MS, q=1)
    journal.leave(S)
    case, found = verdict(tmp_path)
    assert found == ()
    assert bool(case.incomplete) is (backend == "gloo")


@pytest.mark.parametrize("size", [3, 2])
def test_ranks_that_take_the_world_for_another_size_are_there(tmp_path: Path, size: int) -> None:
    """Rank 0 waits for one other, and the two others for three: no journal is missing then."""
    for rank in range(3):
        mine = size if rank == 0 else 3
        journal = Journal(tmp_path, pid=4000 + rank, rank=rank, world_size=mine)
        group = journal.world()
        journal.begin(journal.collective(group), 200 * MS, q=1)
        journal.beat(20)
    case, _found = verdict(tmp_path)
    assert coverage(case)["missing_ranks"] == []
    assert len(case.evidence.trace.groups) == (1 if size == 3 else 2)


def test_newer_formats_are_no_verdict(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line per folder, whatever their records seem to say."""
    for folder, healthy in ((tmp_path / "well", True), (tmp_path / "hung", False)):
        for journal, group in steps(folder, 3):
            journal.define("process", format=FORMAT + 1)
            if not healthy and journal.rank:
                journal.begin(journal.collective(group), 200 * MS, q=3)
            journal.leave(20 * S)
        assert main(["diagnose", str(folder)]) == 2
        text = capfd.readouterr().out
        assert "Nothing is wrong" not in text
        assert text.count(f"{folder}: journals of format {FORMAT + 1}") == 1
        assert "collect these files again" not in text  # they are whole


def test_a_job_that_did_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Killed while it imported torch: exit code 2, as of a log that does not say why it ended."""
    journal = Journal(tmp_path, 1)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "Undecided: no operation was recorded" in capfd.readouterr().out
    journal.leave(2 * S)
    assert main(["diagnose", str(tmp_path)]) == 0
