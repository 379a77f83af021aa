"""Who a process is: ids are drawn, and rank and job are as each launcher tells them, by the
variables that it documents; nothing inherited passes for a claim.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttrace import identity
from disttrace.identity import Identity, launched_rank
from disttrace_viewer.merge.reader import load
from support.preloaded import preloaded
from support.processes import python

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_MCA_ess_base_jobid": "3146317825",
}  # fmt: skip
PMIX = {"PMIX_RANK": "5", "PMIX_NAMESPACE": "prterun-node0-4711@1"}
LAUNCHED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
STEP = {
    "SLURM_JOB_ID": "771", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "4(x4)",
    "SLURM_JOB_NODELIST": "node[0-3]", "SLURM_STEP_NODELIST": "node[0-3]",
}  # fmt: skip
BATCH = {"SLURM_JOB_ID": "771", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}
ARRAY = {"SLURM_ARRAY_JOB_ID": "770", "SLURM_ARRAY_TASK_ID": "3"}
HEAD = {"SLURM_STEP_NODELIST": "node0"}
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
PYTORCHJOB = {**IN_POD, "MASTER_ADDR": "llama-7b-master-0", "HOSTNAME": "llama-7b-worker-3"}
TRAINJOB = {**IN_POD, "PET_MASTER_ADDR": "llama-node-0-0.llama", "PET_NODE_RANK": "1"}


@pytest.fixture(autouse=True)
def plain_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        (OPEN_MPI, "3146317825"), ({**OPEN_MPI, **PMIX}, "prterun-node0-4711@1"),
        (STEP, "771.2"), ({**STEP, **ARRAY}, "770_3.2"), ({**BATCH, **ARRAY}, "770_3"),
        (BATCH, "771"), ({**STEP, **HEAD}, "771"), ({**STEP, "SLURM_STEP_ID": "4294967291"}, "771"),
        ({**STEP, **OPEN_MPI}, "771.2"),
        ({"PBS_JOBID": "12.server", "RAY_JOB_ID": "01000000"}, "12.server"),
        ({"LSB_JOBID": "12"}, "12"), ({"RAY_JOB_ID": "01000000"}, "ray-01000000"),
        (PYTORCHJOB, "llama-7b"),
        ({**IN_POD, "MASTER_ADDR": "localhost", "HOSTNAME": "llama-7b-master-0"}, "llama-7b"),
        ({**PYTORCHJOB, "PET_RDZV_ID": "llama-elastic"}, "llama-elastic"), (TRAINJOB, "llama"),
        ({**IN_POD, "HOSTNAME": "llama-node-0-1-x7k2p"}, "llama"),
        ({**TRAINJOB, "TORCHELASTIC_RUN_ID": "none"}, "llama"),
    ],
)  # fmt: skip
def test_the_job_has_the_launchers_name(environ: dict[str, str], job: str) -> None:
    """The same for all of its processes, whichever host they are on."""
    assert Identity(environ).job == job


@pytest.mark.parametrize(
    "environ",
    [
        HYDRA, LAUNCHED, {"MASTER_ADDR": "llama-7b-master-0"}, {"SLURM_JOB_ID": ""},
        {**IN_POD, "HOSTNAME": "api-6d4cf56db6-x7k2p", "MASTER_ADDR": "10.0.0.2"},
    ],
)  # fmt: skip
def test_what_names_no_job_is_no_name(environ: dict[str, str]) -> None:
    assert Identity(environ).job_source == "drawn"


@pytest.mark.parametrize(
    "environ",
    [OPEN_MPI, {**OPEN_MPI, **PMIX}, HYDRA, STEP, {**STEP, **PMIX}],
    ids=["Open MPI 4", "Open MPI 5", "MPICH", "srun", "srun --mpi=pmix"],
)
def test_the_rank_is_the_launchers(environ: dict[str, str]) -> None:
    """Of a process that is no worker before it uses torch.distributed."""
    known = Identity(environ)
    assert launched_rank(environ) == {"rank": 5, "world_size": 16, "local_rank": 1}
    assert (known.role, known.rank) == ("main", 5)


@pytest.mark.parametrize(
    "environ",
    [
        BATCH, {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {**HYDRA, "PMI_RANK": "16"},
        {**HYDRA, "PMI_SIZE": "\u00b2"}, {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x4)"},
        {"PMIX_RANK": "5"},
    ],
)  # fmt: skip
def test_one_process_per_host_may_be_a_launcher(environ: dict[str, str]) -> None:
    """What it starts are the ranks; nor is a batch script one."""
    assert launched_rank(environ) is None
    assert Identity(environ).rank is None


def test_children_are_not_that_rank_and_torchruns_own_variables_come_first() -> None:
    """They inherit its variables, and its job; a worker is below torchrun below srun."""
    rank = Identity(STEP)
    handed = {"DISTTRACE_PARENT": f"{rank.process},main,{rank.job}"}
    child = Identity({**STEP, **handed})
    assert (child.role, child.rank, child.job) == ("child", None, "771.2")
    worker = Identity({**STEP, "RANK": "11", "WORLD_SIZE": "32"})
    assert (worker.role, worker.rank) == ("worker", 11)


STORE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 1, True)
store.set("a", "b")
"""


@pytest.mark.parametrize("environ", [OPEN_MPI, HYDRA, STEP], ids=["Open MPI", "MPICH", "srun"])
def test_a_rank_is_known_before_it_joins(environ: dict[str, str], tmp_path: Path) -> None:
    """By the first use of a store; a program that uses none writes nothing."""
    variables = {**environ, "DISTTRACE": "1", "DISTTRACE_DIR": str(tmp_path / "out")}
    python("-c", "import json", timeout=60.0, **variables).check()
    assert not (tmp_path / "out").exists()
    preloaded("-c", STORE, timeout=60.0, **variables).check()
    (process,) = load([str(tmp_path / "out")]).processes
    assert (process.role, process.rank, process.world_size) == ("worker", 5, 16)


def agent(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str] | None = None) -> Identity:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "orig_argv", ["python", "/usr/bin/torchrun", "train.py"])
        return Identity(environ or {})


def test_ids_differ_and_name_files() -> None:
    """Two processes with the same labels have two journals."""
    first, second = Identity({}, job="a/b c"), Identity({}, job="a/b c")
    assert first.process != second.process
    assert len(first.process) == 32
    assert first.base_name().startswith("a_b_c-")
    assert first.base_name() != second.base_name()


@pytest.mark.parametrize(
    ("argv", "role"),
    [
        (["python", "/bin/torchrun", "--nproc-per-node", "2", "x.py"], "agent"),
        (["python", "-m", "torch.distributed.run", "x.py"], "agent"),
        (["python", "-X", "dev", "-m", "torch.distributed.launch", "x.py"], "agent"),
        (["python", "x.py", "torchrun"], "main"),
        (["python", "-c", "import torch.distributed.run"], "main"),
        (["python"], "main"),
    ],
)
def test_an_agents_command(monkeypatch: pytest.MonkeyPatch, argv: list[str], role: str) -> None:
    """Before torch is imported nothing else tells."""
    monkeypatch.setattr(sys, "orig_argv", argv)
    assert Identity({}).role == role


def test_a_launched_worker_has_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK counts under an agent, and without a traced parent."""
    handed = agent(monkeypatch).handed_down()
    worker = Identity({**LAUNCHED, identity.PARENT_VARIABLE: handed})
    assert (worker.role, worker.rank) == ("worker", 3)
    assert (Identity(LAUNCHED).role, Identity(LAUNCHED).rank) == ("worker", 3)


def test_a_child_of_a_worker_inherits_no_rank() -> None:
    """Data loaders see their parent's RANK, and are not that rank."""
    worker = Identity(LAUNCHED)
    environ = {**LAUNCHED, identity.PARENT_VARIABLE: worker.handed_down()}
    child = Identity(environ)
    assert (child.role, child.rank, child.parent) == ("child", None, worker.process)
    forked = Identity(environ, forked_from=child)
    assert (forked.role, forked.parent, forked.job) == ("child", child.process, worker.job)


@pytest.mark.parametrize(
    ("environ", "job", "source"),
    [
        ({"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "x"}, "77", "SLURM_JOB_ID"),
        ({"TORCHELASTIC_RUN_ID": "night-3"}, "night-3", "TORCHELASTIC_RUN_ID"),
        ({identity.PARENT_VARIABLE: "abc,main,j1", "SLURM_JOB_ID": "77"}, "j1", "parent"),
    ],
)
def test_the_job_comes_from_the_best_source(environ: dict[str, str], job: str, source: str) -> None:
    """An ancestor's word, then the scheduler's, then torchrun's."""
    found = Identity(environ)
    assert (found.job, found.job_source) == (job, source)


def test_an_agent_is_a_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two torchruns started by one traced program are two jobs."""
    environ = {identity.PARENT_VARIABLE: Identity({}).handed_down()}
    assert agent(monkeypatch, environ).job != agent(monkeypatch, environ).job


@pytest.mark.parametrize("given", [["--rdzv-id", "r7"], ["--rdzv_id=r7"]])
def test_a_run_id_names_the_agents_job(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    """The agents of all hosts are told it on their command lines, and only there."""
    command = ["python", "/usr/bin/torchrun", *given, "train.py"]
    monkeypatch.setattr(sys, "orig_argv", command)
    assert (Identity({}).job, Identity({}).job_source) == ("r7", "--rdzv-id")
    for own in (["--rdzv-id=none", "train.py"], ["--standalone", "train.py", *given]):
        monkeypatch.setattr(sys, "orig_argv", [*command[:2], *own])  # or it is the program's
        assert Identity({}).job_source == "drawn"
