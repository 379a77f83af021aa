"""A job that is tried again bears its name again: which processes are of which try."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import chooser, closure, newest
from disttrace_viewer.merge.reader import load
from disttrace_viewer.merge.surveying import Survey, survey
from disttrace_viewer.states import folder
from disttrace_viewer.states.state import newest_try
from support.journals import MS, T0, UNIX_NS, Journal, S, training, workers
from support.scenes import all_gone, findings


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


def drawn(folder: Path, pid: int, **keys: object) -> Journal:
    """A process whose job id was drawn, as without a scheduler; a lower pid started earlier."""
    keys = {"t0": 10**12 + pid * MS, **keys}
    return Journal(folder, pid=pid, job=f"job_{pid}", job_source="drawn", **keys)  # type: ignore[arg-type]


def memberships(folder: Path) -> list[set[int | None]]:
    """The pids of each job, oldest job first."""
    found = survey([str(folder)])
    return [{found.processes[i].pid for i in job.processes} for job in found.jobs]


def test_an_agent_and_all_that_descend_from_it_are_one_job(tmp_path: Path) -> None:
    """Whatever they call it, and whoever started it; children of a process that never used c10d,
    and so wrote nothing, are one job all the same.
    """
    agent = drawn(tmp_path / "one", 1, role="agent")
    worker = drawn(tmp_path / "one", 2, parent=agent.process, rank=0, world_size=1)
    drawn(tmp_path / "one", 3, parent=worker.process, role="child")
    assert memberships(tmp_path / "one") == [{1, 2, 3}]
    assert survey([str(tmp_path / "one")]).jobs[0].id == "job_1"
    for pid in (1, 2):
        agent = drawn(tmp_path / "two", pid, role="agent", parent="f" * 32)
        drawn(tmp_path / "two", pid + 10, parent=agent.process, rank=0, world_size=1)
        drawn(tmp_path / "siblings", pid, parent="f" * 32, role="child")
    assert memberships(tmp_path / "two") == [{1, 11}, {2, 12}]
    assert memberships(tmp_path / "siblings") == [{1, 2}]


def test_one_scheduler_id_is_one_job_while_its_processes_overlap(tmp_path: Path) -> None:
    """The same id an hour later is another launch, with a name of its own."""
    for pid, start in ((1, 0), (2, 0), (3, 3600 * S)):
        source, t0 = "SLURM_JOB_ID", 10**12 + start
        journal = Journal(tmp_path, pid=pid, job="77", job_source=source, t0=t0)
        journal.define("exit", t=S, how="normal", code=0)
    assert memberships(tmp_path) == [{1, 2}, {3}]
    assert [job.id for job in survey([str(tmp_path)]).jobs] == ["77", "77.2"]


def test_members_of_a_default_group_launched_with_ranks_are_one_job(tmp_path: Path) -> None:
    """Two nodes of one torchrun job, each with an agent that drew its own id."""
    for node in (0, 1):
        agent = drawn(tmp_path, 10 * node, host=f"n{node}", boot_id=f"b{node}", role="agent")
        worker = drawn(tmp_path, 10 * node + 1, host=f"n{node}", boot_id=f"b{node}",
                       parent=agent.process, rank=node, world_size=2)  # fmt: skip
        base = worker.tcp_store(29400, host="n0", server=node == 0)
        worker.group(worker.prefix_store(base, "default_pg", "0/"))
    assert memberships(tmp_path) == [{0, 1, 10, 11}]


def test_ranks_started_one_by_one_are_one_job_though_they_met_nobody(tmp_path: Path) -> None:
    """The same program and world size within a minute; another world size is another job."""
    for rank in (0, 1):
        drawn(tmp_path, rank, rank=rank, world_size=3, t0=10**12 + rank * 5 * S)
    drawn(tmp_path, 7, rank=0, world_size=5)
    found = memberships(tmp_path)
    assert len(found) == 2
    assert {0, 1} in found
    assert {7} in found


def two_replicas(folder: Path) -> None:
    """Two jobs whose rank 1 has a child each; the children meet in a store of the second."""
    for replica in (0, 1):
        agent = drawn(folder, 100 * replica, role="agent")
        ranks = [
            drawn(folder, 100 * replica + 1 + rank, parent=agent.process, rank=rank, world_size=2)
            for rank in (0, 1)
        ]
        for worker in ranks:
            worker.world(port=30000 + replica)
        if replica:
            ranks[1].tcp_store(29999, host="0.0.0.0", server=True)
        child = drawn(folder, 100 * replica + 9, parent=ranks[1].process, role="child")
        store = child.prefix_store(child.tcp_store(29999, host="localhost"), "replicas_1")
        group = child.group(store, name="", ranks=None, rank=replica, size=2, default=False)
        call = child.collective(group)
        child.run(call, t=S + replica * MS, d=MS, q=1)


def test_jobs_whose_processes_met_are_linked_and_stay_two(tmp_path: Path) -> None:
    """The collective of the two children spans both jobs; a third job met nobody."""
    two_replicas(tmp_path)
    drawn(tmp_path, 500, role="main")
    trace = load([str(tmp_path)])
    assert [len(job.processes) for job in trace.jobs] == [4, 4, 1]
    first, second, _ = trace.jobs
    assert first.linked == (second.id,)
    assert second.linked == (first.id,)
    shared = [g for g in trace.groups if not g.default]
    assert len(shared) == 1
    assert {trace.processes[m.process].job for m in shared[0].members} == {first.id, second.id}
    assert [job.id for job in closure(trace.jobs, [first.id])] == [first.id, second.id]


def test_the_newest_job_is_read_with_the_jobs_it_met(tmp_path: Path) -> None:
    """Yesterday's job in the same folder is only mentioned."""
    old = Journal(tmp_path, pid=1, job="old", t0=T0 // 2)
    old.define("exit", t=S, how="normal", code=0)
    training(tmp_path, 2, 3)
    trace = load([str(tmp_path)], choose=chooser("newest"))
    assert [job.id for job in trace.jobs] == ["job"]
    assert [job.id for job in trace.other_jobs] == ["old"]
    assert [p.index for p in trace.processes] == [0, 1]
    assert trace.operations["process"].unique().sort().to_list() == [0, 1]
    assert newest(survey([str(tmp_path)]).jobs).id == "job"


def test_a_job_is_chosen_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    """An id that fits no job, or two, is the user's mistake and names those that are there."""
    Journal(tmp_path, pid=1, job="alpha")
    Journal(tmp_path, pid=2, job="alphabet", t0=10**12 + S)
    jobs = survey([str(tmp_path)]).jobs
    assert chooser("alphab")(jobs) == ["alphabet"]
    assert chooser("alpha")(jobs) == ["alpha"]
    with pytest.raises(ViewerError, match="stands for 2 jobs; there are: alpha, alphabet"):
        chooser("al")(jobs)
    with pytest.raises(ViewerError, match="--job beta is no job here"):
        chooser("beta")(jobs)


def test_roles_and_ranks_are_those_of_the_journal(tmp_path: Path) -> None:
    """A child that inherited RANK has none; a worker that met nobody has the launcher's."""
    workers(tmp_path, 1)
    Journal(tmp_path, pid=9, role="child", keys={"env": {"RANK": "1", "WORLD_SIZE": "2"}})
    Journal(tmp_path, pid=8, keys={"env": {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}})
    by_pid = {p.pid: p for p in survey([str(tmp_path)]).processes}
    assert (by_pid[4000].rank, by_pid[4000].world_size) == (0, 1)
    assert (by_pid[9].rank, by_pid[9].local_rank) == (None, None)
    assert (by_pid[8].rank, by_pid[8].local_rank, by_pid[8].world_size) == (1, 1, 2)


def test_programs_that_share_no_more_than_a_name_are_two_jobs(tmp_path: Path) -> None:
    """One fails, one is well; ranks without the others yet may belong to the name's, and stay."""
    for pid, world in ((1, 1), (2, 1), (3, 4), (4, 4)):
        name, rank = ("sweep", 0) if world == 1 else ("late", pid)
        journal = Journal(
            tmp_path, pid=pid, rank=rank, world_size=world, job=name, job_source="DISTTRACE_JOB"
        )
        if world == 1:
            journal.group(journal.numbered("store", type="HashStore", name="hash://", prefix=[]))
            if pid == 1:
                journal.fail(S, "ValueError", "of this one alone")
    jobs = memberships(tmp_path)
    assert all(one in jobs for one in ({1}, {2}, {3, 4}))
    assert {job.id for job in survey([str(tmp_path)]).jobs} == {"sweep", "sweep.2", "late"}


SAME = {"pid_ns": 5, "time_ns": 6, "ticks": 700}


def program(
    folder: Path, number: int, *, role: str = "worker", keys: dict[str, int] | None = None,
    **more: Any,
) -> Journal:  # fmt: skip
    """The n-th program of the process that was launched as rank 1 of two."""
    return Journal(
        folder, pid=7, role=role, rank=1 if role == "worker" else None, world_size=2,
        t0=T0 + number * S, process=str(number) * 32, keys={**SAME, **(keys or {})}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("said", [True, False])
def test_the_earlier_one_has_become_the_later_one(tmp_path: Path, said: bool) -> None:
    """It has the rank of the first, and what its launcher says of the process is said of it."""
    agent = Journal(tmp_path, pid=1, role="agent", process="a" * 32)
    first = program(tmp_path, 1, parent=agent.process)
    if said:
        first.define("exit", t=S, how="exec")
    program(tmp_path, 2, role="child", parent=first.process)
    agent.define("worker", t=9 * S, pid=7, event="failed", code=3, rank=1)
    found = survey([str(tmp_path)])
    assert len(found.jobs) == 1
    one, two = (p for p in found.processes if p.pid == 7)
    assert one.exit is not None
    assert (one.exit.how, one.reported) == ("exec", None)
    assert (two.exit, two.rank, two.role, two.parent) == (None, 1, "worker", agent.process)
    assert two.reported is not None
    assert two.reported.code == 3


@pytest.mark.parametrize("changed", ["pid_ns", "ticks"])
def test_another_process_of_that_number_has_become_nothing(tmp_path: Path, changed: str) -> None:
    program(tmp_path, 1)
    program(tmp_path, 2, keys={changed: 8})
    assert [p.exit for p in survey([str(tmp_path)]).processes] == [None, None]


def test_tracing_that_was_switched_off_and_on_is_one_program(tmp_path: Path) -> None:
    program(tmp_path, 1).define("exit", t=S, how="uninstalled")
    program(tmp_path, 2)
    first, second = survey([str(tmp_path)]).processes
    assert first.exit is not None
    assert (first.exit.how, second.exit) == ("uninstalled", None)


def test_an_exec_that_failed_is_no_end(tmp_path: Path) -> None:
    journal = program(tmp_path, 1)
    journal.define("exit", t=S, how="exec")
    journal.define("exit", t=S + MS, how="resumed")
    (process,) = survey([str(tmp_path)]).processes
    assert process.exit is None


@pytest.mark.parametrize("said", [True, False])
def test_nobody_claims_a_rank_twice_by_becoming_another(tmp_path: Path, said: bool) -> None:
    """Rank 1 began to join, became another program and joins again; rank 0 does not come."""
    first = program(tmp_path, 1)
    first.join(100 * MS, 2)
    if said:
        first.define("exit", t=S // 2, how="exec")
    second = program(tmp_path, 2)
    second.join(100 * MS, 2)
    second.beat(3)
    found = findings(tmp_path, look=all_gone)
    assert found
    assert {f.kind for f in found}.isdisjoint({"duplicate_rank", "no_progress"})
    assert not [f for f in found if 0 in f.culprits]  # the earlier program
