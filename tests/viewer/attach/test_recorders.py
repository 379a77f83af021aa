"""``disttrace attach --ask``, for what Flight Recorder holds: jobs of torchrun whose ranks have the
worker server of torch; servers that answer nothing, too much, or evil.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.api.attached import reported
from disttrace_viewer.api.report import Report
from disttrace_viewer.attach import recorders
from disttrace_viewer.attach.processes import Found
from disttrace_viewer.attach.samples import refusal
from disttrace_viewer.load.foreign.py_spy import ProcessSample
from disttrace_viewer.load.problems import Problems
from support.processes import clean_environ, ending, launcher, run_program, wait_until

may_look = pytest.mark.skipif(refusal() is not None, reason="nobody may look here")

PROGRAM = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main
here, scenes, rank = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), int(os.environ["RANK"])
if sys.argv[3] == "path":
    os.environ["TORCH_WORKER_SERVER_SOCKET"] = str(here / f"{rank}.sock")

def load():
    while not (here / "go load").exists():
        time.sleep(0.1)

@worker_main()
def main():
    dist.init_process_group("gloo")
    if sys.argv[3] == "port":  # as torch.distributed.debug.start_debug_server does
        from torch._C._distributed_c10d import _WorkerServer
        server = _WorkerServer("::", 0)
    one = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(one)
    for scene in scenes:
        (here / f"{scene} {rank}").touch()
        if rank == 2 and scene == "load":
            load()
        elif rank == 2 and scene == "mismatch":
            dist.broadcast(one, 0)
        one.zero_()
        while scene == "healthy" and not one.any():
            one += (here / "go healthy").exists()
            dist.all_reduce(one)
            time.sleep(0.02)
        dist.all_reduce(one)
    dist.destroy_process_group()  # without it torch 2.13 may abort at the end if it was asked
    if sys.argv[3] == "port":
        server.shutdown()
main()
"""


@dataclass
class Job:
    """Three ranks under torchrun, which play one scene after the other."""

    folder: Path
    launcher: subprocess.Popen[Any]

    def attached(
        self, scene: str, until: Callable[[int, str], bool]
    ) -> tuple[int, dict[str, Any], str]:
        """Exit code, report and stderr, once all ranks have come to a scene and stay there."""
        wait_until(lambda: len([*self.folder.glob(f"{scene} *")]) == 3, 150)
        look = [sys.executable, "-m", "disttrace", "attach", "--ask", "--json"]
        deadline = time.monotonic() + 100
        while True:
            done = run_program([*look, str(self.launcher.pid)])
            if until(done.code, done.stderr) or time.monotonic() > deadline:
                return done.code, json.loads(done.stdout), done.stderr

    def goes_on(self, scene: str) -> None:
        """Nothing holds the ranks in a scene any more."""
        (self.folder / f"go {scene}").touch()


@contextlib.contextmanager
def job(folder: Path, *scenes: str, server: str) -> Iterator[Job]:
    """A job that is over when the block is."""
    (folder / "train.py").write_text(PROGRAM)
    program = launcher(folder / "train.py", 3, str(folder), ",".join(scenes), server)
    launched = subprocess.Popen(
        [sys.executable, *program], env=clean_environ(OMP_NUM_THREADS="1"), start_new_session=True
    )
    with ending(launched):
        yield Job(folder, launched)


def found_one(code: int, _: str) -> bool:
    return code == 1


def expect_who_does_not_come(one: Job) -> None:
    """Rank 2 is told with its number and line; then it comes."""
    _, report, _ = one.attached("load", found_one)
    (found,) = report["findings"]
    assert (found["kind"], found["culprit_ranks"]) == ("missing_participant", [2])
    assert found["summary"].startswith("Rank 2 never joined all_reduce #4 of the default group")
    assert "in load" in found["summary"]
    assert report["evidence"] == ["flight recorder and py-spy"]
    one.goes_on("load")


@may_look
def test_a_job_that_is_asked_at_a_path_again_and_again_goes_on(tmp_path: Path) -> None:
    """Who does not come is told."""
    with job(tmp_path, "load", "healthy", server="path") as one:
        expect_who_does_not_come(one)

        code, report, said = one.attached("healthy", lambda *_: True)
        assert (code, report["findings"], said) == (0, [], "")
        assert one.launcher.poll() is None
        one.goes_on("healthy")
        assert one.launcher.wait(120) == 0


@may_look
def test_a_job_that_is_asked_at_a_port_goes_on_to_its_mismatch(tmp_path: Path) -> None:
    """Who does not come is told, and then who calls something else, by its number."""
    with job(tmp_path, "load", "mismatch", server="port") as one:
        expect_who_does_not_come(one)

        _, report, _ = one.attached("mismatch", found_one)
        (found,) = report["findings"]
        assert (found["kind"], found["certainty"]) == ("op_mismatch", "certain")
        assert (found["culprit_ranks"], found["seq"]) == ([2], 5)
        assert one.launcher.poll() is None


def asked(ops: Sequence[str], size: int, *, guessed: bool = False) -> Report:
    """What is said of ranks of a group of ``size`` here, each in its operation."""
    now = time.time_ns()
    group = {"name": "0", "desc": "default_pg", "ranks": str([*range(size)])}
    problems = Problems()
    dumps, stacks = {}, []
    for pid, op in enumerate(ops, 100):
        call = {
            "record_id": 0, "collective_seq_id": 7, "process_group": ["0", "default_pg"],
            "profiling_name": f"gloo:{op}", "time_created_ns": now - 60_000_000_000,
            "state": "scheduled",
        }  # fmt: skip
        whole = {"entries": [call], "pg_config": {"0": group}, "version": "2.10"}
        dumps[pid] = recorders._dump(pid, json.dumps(whole).encode(), now, problems)
        inner = ("/venv/torch/distributed/distributed_c10d.py", 9, op)
        frames = (inner, ("/t.py", 5, "step"))
        rank = None if guessed else pid - 100
        stacks.append(ProcessSample("", pid, frames, rank=rank, at_ns=now))
    return reported(stacks, recorders.Dumped(dumps, now))


def test_ranks_of_other_hosts_left_no_dump_since_they_do_not_run_here() -> None:
    """Four ranks in the group, two of them on this host, both in the call."""
    report = asked(["all_reduce"] * 2, 4)
    assert "ranks 2, 3 do not run here, so it is not known whether they came" in str(report)
    assert not any(found.culprits for found in report.findings)


@pytest.mark.parametrize(("guessed", "certainty"), [(False, "certain"), (True, "likely")])
def test_nobody_is_named_for_certain_by_a_guessed_rank(*, guessed: bool, certainty: str) -> None:
    """Though it is certain that somebody calls something else."""
    (found,) = asked(["all_reduce", "broadcast", "all_reduce"], 3, guessed=guessed).findings
    assert (found.kind, found.culprit_ranks) == ("op_mismatch", (1,))
    assert found.certainty == certainty


# -- what cannot be trusted -------------------------------------------------------------------


@contextlib.contextmanager
def answering(folder: Path, piece: bytes, *, again: float | None = None) -> Iterator[str]:
    """A socket at which whoever asks gets some bytes; then the same ones once more, and so on."""
    path = str(folder / "socket")
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(piece)
                    while again is not None and not over.wait(again):
                        connection.sendall(b"x" * 1000)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            thread.join()


class Evil:
    """Asks whoever unpickles it for a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


OK = b"HTTP/1.1 200 OK\r\n\r\n"


CALL = {"record_id": 0, "profiling_name": "gloo:all_reduce", "time_created_ns": 9}
CUT_OFF = json.dumps({"entries": [CALL, CALL], "version": "2.10"}).encode()[:-40]


@pytest.mark.parametrize(("cut", "why"), [(False, "asks for"), (True, "damaged JSON")])
def test_an_answer_that_is_not_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cut: bool, why: str
) -> None:
    """One with a call, and one that may lack the very operation by which a rank has come."""
    evil = pickle.dumps({"entries": [Evil(tmp_path / "run")], "version": "2.10"}, protocol=2)
    with answering(tmp_path, OK + (CUT_OFF if cut else evil)) as path:
        monkeypatch.setattr(recorders, "address", lambda _: path)
        asked = recorders.ask([Found(os.getpid(), 0, 0, frozenset(), 0)])
    assert not asked.dumps
    assert asked.trouble is not None
    assert why in asked.trouble
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("piece", "again", "why"),
    [
        (b"", None, "something else"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", None, "something else"),
        (OK, 0.05, "within"),
        (OK, 0.0, "something else"),
    ],
)
def test_what_never_ends_or_says_something_else_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes, again: float | None, why: str
) -> None:
    monkeypatch.setattr(recorders, "SERVER_LIMIT_S", 1.0)
    monkeypatch.setattr(recorders, "MOST_BYTES", 100_000)
    refused = pytest.raises(recorders.NoAnswer, match=why)
    with answering(tmp_path, piece, again=again) as path, refused:
        recorders.dumps(path, os.getpid())


def test_a_path_at_which_another_process_listens_is_not_asked(tmp_path: Path) -> None:
    """Ranks that were all told one path: the last one has it, and would answer for all."""
    with answering(tmp_path, OK) as path, pytest.raises(recorders.NoAnswer, match="another"):
        recorders.dumps(path, os.getppid())
