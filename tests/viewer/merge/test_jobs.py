"""Which processes are one launch, and which launches met."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.jobs import chooser, closure, newest
from disttrace_viewer.merge.reader import load
from disttrace_viewer.merge.surveying import survey
from support.journals import MS, Journal, training, workers
from support.processes import clean_environ

S = 1000 * MS


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
    old = Journal(tmp_path, pid=1, job="old", t0=10**11)
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


SWEEP = """
import datetime, os, sys, time
import torch, torch.distributed as dist
mine, others, fails = sys.argv[1:]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
open(mine, "w").close()
until = time.monotonic() + 60
while not os.path.exists(others) and time.monotonic() < until:
    time.sleep(0.05)
dist.all_reduce(torch.ones(1))
if fails:
    raise ValueError("of this one alone")
dist.destroy_process_group()
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="the reader's slice is run without it")
def test_programs_that_share_no_more_than_a_name_are_two_jobs(tmp_path: Path) -> None:
    """One fails, one is well; ranks without the others yet may belong to the name's, and stay."""
    folder = tmp_path / "out"
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_JOB="sweep")
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", SWEEP, str(tmp_path / mine), str(tmp_path / other), fails],
            env=environ,
            stderr=subprocess.DEVNULL,
        )
        for mine, other, fails in (("a", "b", ""), ("b", "a", "yes"))
    ]
    assert [one.wait(100) for one in programs] == [0, 1]
    assert {*map(frozenset, memberships(folder))} == {frozenset({one.pid}) for one in programs}
    assert [job.id for job in survey([str(folder)]).jobs] == ["sweep", "sweep.2"]
    for pid in (1, 2):
        source = "DISTTRACE_JOB"
        Journal(tmp_path / "late", pid=pid, rank=pid, world_size=4, job="x", job_source=source)
    assert memberships(tmp_path / "late") == [{1, 2}]
