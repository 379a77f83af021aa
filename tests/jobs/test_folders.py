"""Journals of a job over hosts lie in a folder of each host; all others in the folder of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from disttrace.cli import main
from disttrace.identity import PARENT_VARIABLE, Identity
from lifecycle.test_left_over import file, link, somebody_elses
from support.preloaded import preloaded
from support.processes import ROOT, clean_environ, companions, free_port, wait_until

HOST = os.uname().nodename
TWO_HOSTS = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "r7"}
TORCHRUN = "python -m torch.distributed.run --rdzv-id=r7"
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_MCA_ess_base_jobid": "r7",
}  # fmt: skip
STEP = {"SLURM_JOB_ID": "r7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


def folder(monkeypatch: pytest.MonkeyPatch, command: str, environ: dict[str, str]) -> str:
    monkeypatch.setattr(sys, "orig_argv", command.split())
    return Identity(environ).folder("/all")


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("python train.py", TWO_HOSTS),
        (f"{TORCHRUN} --nnodes 2 train.py", {}),
        (f"{TORCHRUN} --nnodes=1:4 --standalone train.py", {}),
        ("python /bin/torchrun --nnodes 2 --rdzv_id r7 -m train --nnodes 1", {}),
        (f"{TORCHRUN} train.py", {"PET_NNODES": "2"}),
        ("python train.py", OPEN_MPI),
        ("python train.py", {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}),
        ("python train.py", {**STEP, "SLURM_NNODES": "2"}),
        ("python train.py", {**STEP, "SLURM_JOB_NUM_NODES": "2"}),
    ],
)
def test_what_is_known_to_span_hosts_lies_by_host(
    monkeypatch: pytest.MonkeyPatch, command: str, environ: dict[str, str]
) -> None:
    """By what the launcher says, of itself or of its ranks."""
    assert folder(monkeypatch, command, environ) == f"/all/r7/{HOST}"


@pytest.mark.parametrize(
    ("command", "environ"),
    [
        ("python train.py", {"TORCHELASTIC_RUN_ID": "r7"}),
        ("python train.py", {**TWO_HOSTS, "WORLD_SIZE": "4"}),
        ("python train.py", {"RANK": "0", "WORLD_SIZE": "4", "DISTTRACE_JOB": "r7"}),
        ("python train.py", {**TWO_HOSTS, "TORCHELASTIC_RUN_ID": "none"}),  # who knows its name
        ("python train.py", {**TWO_HOSTS, "LOCAL_WORLD_SIZE": "0"}),
        ("python train.py", {**TWO_HOSTS, "TORCHELASTIC_RUN_ID": ".."}),
        (f"{TORCHRUN} train.py --nnodes 2", {}),
        (f"{TORCHRUN} --nnodes 1 train.py", {"PET_NNODES": "2"}),
        (f"{TORCHRUN} --nnodes all train.py", {}),
        ("python -m torch.distributed.run --nnodes 2 --node-rank 0 train.py", {}),
        ("python /bin/torchrun --nnodes=1 --rdzv-id r7 train.py", {"SLURM_NNODES": "2"}),
        ("python train.py", {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}),
        # A batch script, and a step on one host of several.
        ("python train.py", {"SLURM_JOB_ID": "r7", "SLURM_PROCID": "0", "SLURM_NNODES": "2"}),
        ("python train.py", {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NNODES": "2"}),
    ],
)
def test_all_others_lie_where_they_did(
    monkeypatch: pytest.MonkeyPatch, command: str, environ: dict[str, str]
) -> None:
    """On one host, and where nobody says."""
    assert folder(monkeypatch, command, environ) == "/all"


def test_whoever_is_started_lies_where_the_starter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an elastic job one host may have come, and a rank's loader sees its variables."""
    names = {}
    for nodes, alone in (("1:2", "4"), ("1", "8")):
        monkeypatch.setattr(sys, "orig_argv", f"{TORCHRUN} --nnodes {nodes} x.py".split())
        agent = Identity({})
        monkeypatch.setattr(sys, "orig_argv", ["python", "x.py"])
        environ = {**TWO_HOSTS, "WORLD_SIZE": alone}
        worker = Identity({**environ, PARENT_VARIABLE: agent.handed_down()})
        handed = {**environ, PARENT_VARIABLE: worker.handed_down()}
        child, forked = Identity(handed), Identity(handed, forked_from=worker)
        assert (worker.role, worker.launcher) == ("worker", agent.process)
        assert (child.role, child.launcher, child.job) == ("child", agent.process, "r7")
        names[nodes] = {one.folder("/all") for one in (agent, worker, child, forked)}
        monkeypatch.setattr(sys, "orig_argv", ["python", "/bin/torchrun", "x.py"])
        assert Identity(handed).folder("/all") == "/all"  # a launch of its own
    assert names == {"1:2": {f"/all/r7/{HOST}"}, "1": {"/all"}}


RANK = """
import os, sys
os.umask(int(sys.argv[1]))
listed = []
sys.addaudithook(lambda event, args: event in ("os.listdir", "os.scandir") and listed.append(args))
import torch.distributed as dist
dist.HashStore().set("key", "value")
print(*(path for path, in listed if str(path).startswith(os.environ["DISTTRACE_DIR"])))
"""


def rank(out: Path, *, umask: int = 0o22, **variables: str) -> str:
    """What a rank on one of two hosts says on standard error; it lists no folder of journals."""
    switch = {"DISTTRACE": "1", "DISTTRACE_DIR": str(out)}
    environ: dict[str, Any] = {**TWO_HOSTS, **switch, **variables}
    ran = preloaded("-c", RANK, str(umask), **environ)
    assert ran.check().stdout == "\n"
    return ran.stderr


@pytest.mark.parametrize(("mode", "of_folder"), [("600", 0o700), ("640", 0o750)])
def test_folders_are_made_like_that_of_all(tmp_path: Path, mode: str, of_folder: int) -> None:
    """For those who may read the files, whatever the umask."""
    out = tmp_path / "out"
    assert rank(out, umask=0o77, DISTTRACE_FILE_MODE=mode) == ""
    own = out / "r7" / HOST
    assert [len([*own.glob(f"r7-*.{kind}.jsonl")]) for kind in ("defs", "ops")] == [1, 1]
    made = (out, out / "r7", own)
    assert [path.stat().st_mode & 0o777 for path in made] == [of_folder] * 3
    assert {path.name for path in out.iterdir()} == {"r7"}


@pytest.mark.parametrize("put", [file, link, somebody_elses])
def test_a_folder_that_cannot_be_used_is_done_without(tmp_path: Path, put: object) -> None:
    """One sentence, and the journal lies in the folder of all."""
    out = tmp_path / "out"
    out.mkdir()
    assert callable(put)
    put(out / "r7", tmp_path / "elsewhere")
    (said,) = rank(out).splitlines()
    assert said.startswith("disttrace: the journal of process ")
    assert f" lies in {out} itself, because {out}/r7" in said
    assert len([*out.glob("r7-*.defs.jsonl")]) == 1
    assert [path for path in tmp_path.rglob("*.jsonl") if path.parent != out] == []


# -- two torchruns ---------------------------------------------------------------------------------

HANG = ROOT / "examples" / "faults" / "slow_loader.py"
RENAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']


def renamed(node: int) -> list[str]:
    """What gives a command the name of another host; nothing where that is not allowed."""
    ours = [*RENAMED, f"node{node}"]
    allowed = subprocess.run([*ours, "true"], capture_output=True, check=False).returncode == 0
    return ours if allowed else []


@contextmanager
def nodes(out: Path, said: list[Path]) -> Iterator[None]:
    """Two agents of one job, with a rank each; ended, and killed where that is not enough."""
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=r7"]
    options.append(f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    agents = []
    for node in range(2):
        own = [f"--local-addr=127.0.0.{node + 1}", str(HANG), "--culprit=1"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, *own]
        environ = clean_environ(
            DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_STALL="3",
            DISTTRACE_QUIET="0", OMP_NUM_THREADS="1",
        )  # fmt: skip
        with said[node].open("wb") as stderr:
            agents.append(subprocess.Popen([*renamed(node), *command], env=environ, stderr=stderr))
    try:
        yield
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            try:
                agent.wait(40)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


VERDICT = "Rank 1 never joined all_reduce #3 of the default group"


def told(said: list[Path]) -> list[str]:
    """What those say who have told the verdict, to its last line."""
    texts = [path.read_text().partition(f"disttrace: stalled: {VERDICT}")[2] for path in said]
    return [text for text in texts if "disttrace: more:" in text]


@pytest.mark.parametrize(
    "layout", ["by host", pytest.param("one host's cannot be made", marks=pytest.mark.long)]
)
def test_single_verdict(tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Told live by one of them, and by ``diagnose``, with what the job itself said."""
    out, said = tmp_path / "out", [tmp_path / "said0", tmp_path / "said1"]
    own = [out / "r7" / (f"node{node}" if renamed(node) else HOST) for node in range(2)]
    if layout != "by host":
        own[1].parent.mkdir(parents=True, mode=0o700)
        own[1].touch()  # where nobody may rename itself, it is that of both
        own = [out if folder == own[1] else folder for folder in own]
    with nodes(out, said):
        wait_until(lambda: told(said), 90)
    (text,) = told(said)
    assert f"disttrace: more: disttrace diagnose {out}" in text.splitlines()
    wait_until(lambda: not companions(out), 60)
    journals = [*out.rglob("*.defs.jsonl")]
    assert {path.parent for path in journals} == {*own}
    assert len(journals) == 4
    for asked in [out, out / "r7"] if layout == "by host" else [out]:
        assert main(["diagnose", str(asked)]) == 1
        report = capfd.readouterr().out
        assert f"1. ERROR missing_participant: {VERDICT}" in report
        assert "Said by the job itself" in report
        assert "Read: 4 journals" in report
    if layout == "by host":  # they share what was said, too: the last word is one
        assert sum(path.read_text().count("disttrace: failed:") for path in said) == 1
        assert [path.name for path in (out / "r7").glob("*.jsonl")] == ["r7.verdicts.jsonl"]
        assert [path.name for path in out.iterdir()] == ["r7"]
