"""A program that adopts orphans never gets the companion, and its stalls are told all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disttrace.config import resolve
from disttrace.identity import Identity
from disttrace.journal import proc
from disttrace.journal.format import definitions_name
from disttrace.lifecycle import companion, detached
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.detached import Adopter
from disttrace_viewer.companion.service import CompanionLog, JournalRegistry, serve
from support.processes import ROOT, clean_environ, companions, free_port, python, wait_until

ADOPTS = Path(__file__).with_name("adopts.py")
HANG = ROOT / "examples" / "faults" / "slow_loader.py"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
US = os.geteuid()


def may_unshare() -> bool:
    """Whether this user may make a pid namespace."""
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


FIRST = pytest.mark.skipif(not may_unshare(), reason="no pid namespace can be made here")


@pytest.mark.parametrize("how", ["here", pytest.param("first", marks=[pytest.mark.long, FIRST])])
def test_a_program_that_waits_for_all_its_children_ends_as_ever(tmp_path: Path, how: str) -> None:
    """The same children, in the same order, as its untraced twin; and its stall is told."""
    before = NAMESPACE if how == "first" else []
    runs = []
    for traced in "01":
        out = str(tmp_path / "out")
        environ = clean_environ(DISTTRACE=traced, DISTTRACE_DIR=out, DISTTRACE_STALL="2")
        runs.append(
            subprocess.Popen(
                [*before, sys.executable, str(ADOPTS), how],
                env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        (twin, _), (stdout, stderr) = (run.communicate(timeout=90) for run in runs)
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    assert sorted(twin.splitlines()) == [
        "never came", "orphan ended with 0", "rank ended with 0", "shell ended with 0",
    ]  # fmt: skip
    assert stdout == twin
    assert "disttrace: stalled: Child" in stderr
    assert not list((tmp_path / "out").glob("*.adopts"))


def children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


TORCHRUN = ["--nproc-per-node=2", str(HANG), "--culprit=1"]
SPAWNS = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for step in range(3):
        time.sleep(60 * rank * (step == 2))
        dist.all_reduce(torch.ones(2))
if __name__ == "__main__":
    mp.spawn(main, [sys.argv[1]], 2)
"""


@FIRST
@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_containers_stall_is_told_by_any_first_process(tmp_path: Path, launcher: str) -> None:
    """Whoever notices it first: a rank asks the launcher, also one that does nothing else."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    ways = {
        "torchrun": ["-m", "torch.distributed.run", f"--master-port={free_port()}", *TORCHRUN],
        "spawn": [str(tmp_path / "spawns.py"), str(free_port())],
    }
    command = [*NAMESPACE, sys.executable, *ways[launcher]]
    environ = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2", OMP_NUM_THREADS="1"
    )
    told = tmp_path / "stderr"
    with told.open("wb") as stderr:
        process = subprocess.Popen(command, env=environ, stderr=stderr)
    try:
        wait_until(lambda: "disttrace: stalled: Rank 1 never joined" in told.read_text(), 90)
        (first,) = children(process.pid)
        found = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children(int(first))}
        assert [*found.values()].count("disttrace\n") == 1
        assert not {*found} & {*map(str, companions(tmp_path / "out"))}
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_the_companion_does_not_stay_as_a_child_of_whom_it_watches(tmp_path: Path) -> None:
    """However it came about."""
    base = "j-host-1-0123"
    Path(definitions_name(str(tmp_path / base))).touch()
    path = tmp_path / "j.otlp"
    path.write_text(f"{os.getppid()} {proc.mark(proc.stat(os.getppid()))} {base}\n")
    followed: list[str] = []
    duty = SimpleNamespace(
        follow=followed.append, turn=lambda: None, ended=followed.append,
        inherit=followed.append, finish=lambda: followed.append("finished"),
    )  # fmt: skip
    with path.open("r+b") as registry, (tmp_path / "log").open("w+b") as log:
        own = JournalRegistry(str(path), registry.fileno())
        serve([cast(Any, duty)], own, CompanionLog(log.fileno()))
    assert followed == [base, "finished"]
    assert (tmp_path / "log").read_text().startswith("no companion: ")


# -- who is asked ------------------------------------------------------------------------------


@pytest.fixture
def adopter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adopter]:
    """This process, as if it adopted."""
    monkeypatch.setattr(detached, "adopts", lambda: True)
    adopter = Adopter(str(tmp_path))
    yield adopter
    adopter.stop()


def test_it_is_found_by_its_descendants(adopter: Adopter, tmp_path: Path) -> None:
    """Orders arrive once each, whole lines only."""
    code = (
        "from disttrace.lifecycle.detached import first_adopter as first; "
        f"print(first({str(tmp_path)!r}, {US}))"
    )
    assert python("-c", code).check().stdout == "None\n"
    assert adopter.look(lambda: US) == []
    assert python("-c", code).check().stdout == f"{os.getpid()}\n"
    detached.ask_adopter(str(tmp_path), os.getpid(), {"registry": "a"}, US)
    (file,) = tmp_path.iterdir()
    with file.open("a") as torn:
        torn.write('nothing\n[1]\n{"registry": "torn"')
    assert adopter.look(lambda: US) == [{"registry": "a"}]
    assert adopter.look(lambda: US) == []
    adopter.stop()
    assert not list(tmp_path.iterdir())
    assert adopter.look(lambda: US) == []
    assert not list(tmp_path.iterdir())


def test_an_earlier_process_of_its_pid_is_not_asked(adopter: Adopter, tmp_path: Path) -> None:
    """What was left behind says another start, and is made anew by whoever has the pid now."""
    adopter.look(lambda: US)
    (file,) = tmp_path.iterdir()
    file.write_text('1\n{"registry": "of another"}\n')
    code = (
        "from disttrace.lifecycle.detached import first_adopter as first; "
        f"print(first({str(tmp_path)!r}, {US}))"
    )
    assert python("-c", code).check().stdout == "None\n"
    again = Adopter(str(tmp_path))
    again.look(lambda: US)
    assert again.look(lambda: US) == []
    assert python("-c", code).check().stdout == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    "registry",
    [
        "/elsewhere/x.otlp",
        "{folder}/../x.otlp",
        "{folder}/job/../x.otlp",
        "{folder}/job/host/x.txt",
    ],
)
def test_it_starts_only_what_belongs_into_the_folder(
    adopter: Adopter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    """And that below a keeper."""
    started: list[bool] = []

    def start(*_: object, kept: bool, **__: object) -> int:
        started.append(kept)
        return 0

    monkeypatch.setattr(detached, "start", start)
    config, _ = resolve({"dir": tmp_path, "job": "j"}, {})
    identity = Identity({}, job="j")
    Path(definitions_name(str(tmp_path / identity.base_name()))).touch()
    ours = Companion(config, lambda part, sentence: True)
    ours.look(identity)
    (tmp_path / "j" / "host").mkdir(parents=True)
    own = [f"{tmp_path}/j.otlp", f"{tmp_path}/j/host/j.otlp"]  # of whoever lies by host
    for path in (registry.format(folder=tmp_path), *own):
        detached.ask_adopter(str(tmp_path), os.getpid(), {"registry": path}, US)
    ours.look(identity)
    ours.stop()
    assert started == [True, True]
    assert companion._log_of(f"{tmp_path}/j.otlp") == f"{tmp_path}/j.log"
