"""Who a process is: ids are drawn, labels are read, and nothing inherited passes for a claim."""

from __future__ import annotations

import sys

import pytest

from disttrace import identity
from disttrace.identity import Identity

LAUNCHED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}


@pytest.fixture(autouse=True)
def plain_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])


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


def test_run_id_none_is_no_id() -> None:
    """It is torchrun's default, and would join all jobs of a company."""
    first, second = Identity(LAUNCHED), Identity(LAUNCHED)
    assert first.job != second.job
    assert first.job_source == "drawn"


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
