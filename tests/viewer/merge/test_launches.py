"""A job that is tried again bears its name again: which processes are of which try."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.merge.surveying import Survey, survey
from disttrace_viewer.states import folder
from disttrace_viewer.states.state import newest_try
from support.journals import MS, T0, UNIX_NS, Journal

S = 1000 * MS


def rank(
    folder: Path, host: str, number: int, start: float, end: float | None, *,
    skew: float = 0.0, world: int = 4, **keys: Any,
) -> Journal:  # fmt: skip
    """A rank on a host whose clock is ahead, between two true times (s); no end: it was killed."""
    offset = round(skew * S)
    pid = 1000 + len(list(folder.glob("*.defs.jsonl")))
    journal = Journal(
        folder, pid=pid, rank=number, world_size=world, job="nightly", job_source="DISTTRACE_JOB",
        host=host, boot_id=host, t0=T0 + round(start * S), offset_ns=UNIX_NS - T0 + offset, **keys,
    )  # fmt: skip
    base = journal.tcp_store(29500, host="a", server=number == 0)
    journal.group(journal.prefix_store(base, "default_pg", "0/"), t=10 * MS)
    if end is not None:
        journal.define("exit", t=round((end - start) * S), how="normal", code=0)
    else:
        journal.define("note", t=round(0.5 * S), text="its last sign")
    return journal


def tries(found: Survey) -> list[list[tuple[str, int | None, int]]]:
    """Host, rank and true second of the start of the processes of each job, oldest first."""
    of = [[found.processes[i] for i in job.processes] for job in found.jobs]
    return [sorted((p.host, p.rank, (p.t0 - T0) // S) for p in ones) for ones in of]


def seen(folder_: Path) -> list[list[tuple[str, int | None, int]]]:
    """The tries, and that groups and the reader of states agree with them."""
    found = survey([str(folder_)])
    of = {i: job.id for job in found.jobs for i in job.processes}
    for group in found.groups:
        assert len({of[m.process] for m in group.members}) == 1
    wanted = sorted(len(job.processes) for job in found.jobs)
    assert sorted(len(group.members) for group in found.groups) == wanted
    states = folder.of_journals([str(folder_)]).survey.jobs
    assert sorted(len(job.processes) for job in states) == wanted
    return tries(found)


@pytest.mark.parametrize("again", [9.001, 10.0, 40.0])
@pytest.mark.parametrize("skew", [0.0, 0.2, 3.0, -3.0, 20.0, -20.0])
def test_a_retry_is_a_launch_of_its_own(tmp_path: Path, skew: float, again: float) -> None:
    """On two hosts whose wall clocks are apart: 9 s of a job, and then anew."""
    for start in (0.0, again):
        for number in range(4):
            host = "ab"[number // 2]
            rank(tmp_path, host, number, start, start + 9, skew=skew if host == "b" else 0.0)
    second = int(again)
    assert seen(tmp_path) == [
        [("a", 0, at), ("a", 1, at), ("b", 2, at), ("b", 3, at)] for at in (0, second)
    ]


@pytest.mark.parametrize("skew", [0.0, 0.2, 3.0, 20.0, -20.0])
def test_one_launch_on_hosts_whose_clocks_are_apart(tmp_path: Path, skew: float) -> None:
    """A job of 9 s is not two of half a world each."""
    for number in range(4):
        host = "ab"[number // 2]
        rank(tmp_path, host, number, 0, 9, skew=skew if host == "b" else 0.0)
    assert seen(tmp_path) == [[("a", 0, 0), ("a", 1, 0), ("b", 2, 0), ("b", 3, 0)]]


def test_another_pair_of_hosts_is_another_try(tmp_path: Path) -> None:
    """It was moved: each host has run it once."""
    for hosts, start in (("ad", 0), ("bc", 12)):
        for number in range(4):
            rank(tmp_path, hosts[number // 2], number, start, start + 9)
    assert seen(tmp_path) == [
        [("a", 0, 0), ("a", 1, 0), ("d", 2, 0), ("d", 3, 0)],
        [("b", 0, 12), ("b", 1, 12), ("c", 2, 12), ("c", 3, 12)],
    ]


def test_a_rank_that_is_late_to_end_overlaps_with_the_next_try(tmp_path: Path) -> None:
    """Rank 0 crashed after a second and is started again by itself; rank 1 follows much later."""
    rank(tmp_path, "a", 0, 0, 1, world=2)
    rank(tmp_path, "a", 1, 0, 6, world=2)
    rank(tmp_path, "a", 0, 2, 20, world=2)
    rank(tmp_path, "a", 1, 7, 20, world=2)
    told = [[("a", 0, 0), ("a", 1, 0)], [("a", 0, 2), ("a", 1, 7)]]
    assert tries(survey([str(tmp_path)])) == told


def test_one_that_crashed_is_of_the_launch_of_those_that_live_on(tmp_path: Path) -> None:
    """The others are long in ending, or have not."""
    rank(tmp_path, "a", 0, 0, 0.3)
    for number, end in ((1, 9), (2, 30), (3, None)):
        rank(tmp_path, "a", number, 0.2, end)
    assert seen(tmp_path) == [[("a", number, 0) for number in range(4)]]


def test_who_was_killed_left_no_end_and_begins_again(tmp_path: Path) -> None:
    """SIGKILL for all of them, and a retry within a second or two of their last sign."""
    for start in (0, 2):
        for number in range(2):
            rank(tmp_path, "a", number, start, None, world=2)
    # Files of this test are all written now: by their times all lived till now.
    old = (UNIX_NS + S) / 1e9
    for path in tmp_path.iterdir():
        if "-1000-" in path.name or "-1001-" in path.name:
            os.utime(path, (old, old))
    assert seen(tmp_path) == [[("a", 0, 0), ("a", 1, 0)], [("a", 0, 2), ("a", 1, 2)]]


@pytest.mark.parametrize("skew", [0.0, 3.0, 20.0])
def test_attempts_of_one_launcher_are_one_launch(tmp_path: Path, skew: float) -> None:
    """The agents live through; of each attempt the ranks of all hosts made one group."""
    for host, ahead in (("a", 0.0), ("b", skew)):
        agent = Journal(
            tmp_path, pid=1, role="agent", job="nightly", host=host, boot_id=host,
            offset_ns=UNIX_NS - T0 + round(ahead * S), process=host * 32,
        )  # fmt: skip
        for attempt in (0, 1):
            for local in (0, 1):
                number = local + (2 if host == "b" else 0)
                rank(
                    tmp_path, host, number, 1 + 5 * attempt, 5 + 5 * attempt, skew=ahead,
                    parent=agent.process, keys={"attempt": attempt},
                )  # fmt: skip
        agent.define("exit", t=12 * S, how="normal", code=0)
    found = survey([str(tmp_path)])
    assert [len(job.processes) for job in found.jobs] == [10]
    assert [len(group.members) for group in found.groups] == [4, 4]
    for group in found.groups:
        assert len({found.processes[m.process].attempt for m in group.members}) == 1


def test_bare_ranks_that_draw_their_names_are_told_apart_as_well(tmp_path: Path) -> None:
    """Nobody names the job; one program is started twice within a minute."""
    for start in (0, 10):
        for number in range(2):
            pid = start + number
            journal = Journal(
                tmp_path, pid=pid, rank=number, world_size=2, job=f"job_{pid}",
                job_source="drawn", t0=T0 + start * S,
            )  # fmt: skip
            journal.world()
            journal.define("exit", t=9 * S, how="normal", code=0)
    assert seen(tmp_path) == [[("host", 0, 0), ("host", 1, 0)], [("host", 0, 10), ("host", 1, 10)]]


def test_a_companion_judges_the_newest_try_only(tmp_path: Path) -> None:
    """The others have another name only since it was tried again."""
    for start in (0, 9.5):
        for number in range(2):
            rank(tmp_path, "a", number, start, start + 9, world=2)
    merged = folder.of_journals([str(tmp_path)])
    (job,) = newest_try(merged, "nightly").survey.jobs
    assert (job.id, job.start_ns, len(job.processes)) == ("nightly", UNIX_NS + 9500 * MS, 2)
    assert newest_try(merged, "another") is merged


@pytest.mark.parametrize("kind", ["tcp", "file"])
@pytest.mark.parametrize("known_gone", [True, False])
def test_a_rerun_right_after_all_were_killed(tmp_path: Path, kind: str, known_gone: bool) -> None:
    """Another job: each has its server, or the first were seen gone. Else they may live on."""
    for run in (0, 1):
        for number in (1, 0):  # the client may come before its server
            journal = Journal(
                tmp_path, pid=100 * (run + 1) + number, rank=number, world_size=2,
                job=f"job_{run}{number}", job_source="pid",
                t0=T0 + run * 10 * S + (1 - number) * 20 * MS,
            )  # fmt: skip
            if kind == "tcp":
                store = journal.tcp_store(29500, server=number == 0)
            else:
                path = "/shared/meet"
                keys = {"type": "FileStore", "name": f"file://{path}", "path": path}
                store = journal.numbered("store", **keys)
            journal.group(store, t=10 * MS)
            if known_gone and run == 0:
                journal.define("seen", t=11 * S, state="gone", others=0)
            for written_to in tmp_path.glob(f"job_{run}{number}-*"):
                written = UNIX_NS + (9 + 10 * run) * S
                os.utime(written_to, ns=(written, written))
    expected = [[("host", 0, 0), ("host", 1, 0)], [("host", 0, 10), ("host", 1, 10)]]
    apart = known_gone or kind == "tcp"
    assert seen(tmp_path) == (expected if apart else [sorted([*expected[0], *expected[1]])])


@pytest.mark.parametrize("first", [0, 1])
def test_who_was_killed_is_no_client_of_the_next_run(tmp_path: Path, first: int) -> None:
    """Its rank begins again after its last sign, whichever is ``first``; its server is unknown."""
    for run, number in ((0, 1), (1, 0), (1, 1)):
        later = 20 * MS if run and number != first else 0
        journal = Journal(
            tmp_path, pid=100 * (run + 1) + number, rank=number, world_size=2,
            job=f"job_{run}{number}", job_source="pid", t0=T0 + run * 10 * S + later,
        )  # fmt: skip
        journal.group(journal.tcp_store(29500, server=number == 0), t=10 * MS)
        for written_to in tmp_path.glob(f"job_{run}{number}-*"):
            written = UNIX_NS + (9 + 10 * run) * S
            os.utime(written_to, ns=(written, written))
    assert seen(tmp_path) == [[("host", 1, 0)], [("host", 0, 10), ("host", 1, 10)]]
