"""``disttrace attach``: stacks as py-spy prints them, and a real job that hangs untraced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrace.cli import main
from disttrace.journal import proc
from disttrace.testing.ranks import environment, free_port
from disttrace_viewer.api.attached import from_files, reported
from disttrace_viewer.attach import processes, samples
from disttrace_viewer.attach.processes import Found
from disttrace_viewer.attach.samples import Look, refusal
from disttrace_viewer.load.foreign.py_spy import ProcessSample
from disttrace_viewer.load.foreign.py_spy import samples as samples_of
from disttrace_viewer.load.foreign.records import Frames
from disttrace_viewer.load.problems import Problems
from support.processes import ending, python, run_program, wait_until

TORCH = "/venv/site-packages/torch/distributed/distributed_c10d.py"


def frame(name: str, line: int, file: str = "/home/me/train.py", **values: Any) -> dict[str, Any]:
    shown = [{"name": key, "repr": str(value), "arg": True} for key, value in values.items()]
    return {"name": name, "filename": file, "line": line, "locals": shown}


def stacks(folder: Path, of: dict[int, list[dict[str, Any]]]) -> list[str]:
    """A file per rank; the program has its rank in a variable."""
    paths = []
    for rank, frames in of.items():
        outer = frame("<module>", 90, rank=rank)
        of_main = {"pid": 100 + rank, "os_thread_id": 100 + rank, "thread_id": 1}
        thread = {**of_main, "frames": [*frames, outer]}
        side = {**thread, "os_thread_id": 7, "frames": [frame("run", 3)]}
        path = folder / f"{9 - rank}.json"
        path.write_text(json.dumps([side, thread]))
        paths.append(str(path))
    return paths


def read(frames: list[dict[str, Any]]) -> Frames:
    """As ``main_thread`` reads them."""
    return [(f["filename"], f["line"], f["name"]) for f in frames]


def collective(name: str = "all_reduce", line: int = 19) -> list[dict[str, Any]]:
    inner = frame(name, 3252, TORCH)
    wrapper = frame("_exception_logger.<locals>.wrapper", 83, TORCH.replace("distributed_c", "c"))
    return [inner, wrapper, frame("step", line)]


WAITS, LOADS, MAKES = collective(), [frame("load", 9)], collective("new_group", 30)
RECEIVES = [frame("recv", 2000, TORCH, src=0, group_src=None), frame("step", 14)]
MISSING, APART = "missing_participant", "wait at different places"


@pytest.mark.parametrize(
    ("of", "kind", "culprits", "told"),
    [
        ([WAITS, WAITS, LOADS, WAITS], MISSING, (2,), "train.py:9 in load"),
        ([MAKES, LOADS, MAKES], MISSING, (1,), "train.py:9 in load"),
        ([LOADS, RECEIVES], "unmatched_recv", (0,), "rank 0"),
        ([WAITS, collective("broadcast", 30), WAITS], None, (), APART),
        ([WAITS, collective(line=44), WAITS], None, (), APART),
    ],
    ids=["in no call", "in no creation of a group", "receives", "another call", "another line"],
)
def test_who_is_at_which_place(
    tmp_path: Path, of: list[Any], kind: str | None, culprits: tuple[int, ...], told: str
) -> None:
    """By rank; where all wait, nobody is to blame. No call has a number."""
    report = from_files(stacks(tmp_path, dict(enumerate(of)))).report
    assert report is not None
    (found,) = report.findings
    assert (found.culprit_ranks, found.kind == kind) == (culprits, kind is not None)
    assert told in found.summary
    assert "#" not in found.summary
    assert found.certainty == "likely"


def test_who_may_wait_for_work_is_not_blamed(tmp_path: Path) -> None:
    backward = [frame("_engine_run_backward", 800, "/venv/site-packages/torch/autograd/graph.py")]
    told = from_files(stacks(tmp_path, {0: collective(), 1: [*backward, frame("step", 20)]}))
    assert told.report is not None
    assert not any(found.culprit_ranks for found in told.report.findings)


BACKWARD = frame("_engine_run_backward", 800, "/venv/site-packages/torch/autograd/graph.py")


@pytest.mark.parametrize("idle", [True, False])
def test_who_does_nothing_in_what_may_be_a_collective_waits(idle: bool) -> None:
    """DDP reduces in its backward: who stands there waits, unless it computes."""
    frames = {0: [BACKWARD, frame("step", 20)], 1: [BACKWARD, frame("step", 20)]}
    frames[2] = [frame("load", 9)]
    taken = [
        ProcessSample(f"process {rank}", 100 + rank, read(of), rank, idle=idle, waited_ns=10**9)
        for rank, of in frames.items()
    ]
    found = reported(taken).findings
    assert [(f.kind, f.culprit_ranks) for f in found] == [("missing_participant", (2,))] * idle
    assert all("never joined a collective of" in f.summary for f in found)


@pytest.mark.parametrize("idle", [False, None])
def test_who_stays_at_a_line_that_waits_for_a_device(tmp_path: Path, idle: bool | None) -> None:
    """A wait for a device takes a processor. Of one moment nobody knows whether they stay."""
    (tmp_path / "train.py").write_text("loss = step()\nprint(loss.item())\n")
    at = frame("main", 2, str(tmp_path / "train.py"))
    frames = {0: [at], 1: [at], 2: [frame("load", 9)]}
    rows = ((rank, read(of)) for rank, of in frames.items())
    taken = [ProcessSample(str(r), 100 + r, of, r, idle=idle) for r, of in rows]
    (found,) = reported(taken).findings
    if idle is None:
        assert found.culprit_ranks == ()
        told = "Ranks 0, 1 in a collective at train.py:2 may wait there for others."
        assert found.summary.startswith(told)
    else:
        assert (found.kind, found.culprit_ranks) == ("missing_participant", (2,))


def sampled(
    monkeypatch: pytest.MonkeyPatch, looks: list[dict[int, Look]]
) -> Sequence[ProcessSample]:
    """What comes of these looks at two processes."""
    monkeypatch.setattr(samples, "_looks", lambda _: looks.pop(0))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    taken, troubles = samples.sample([Found(pid, pid - 1, 0, frozenset(), 0) for pid in (1, 2)])
    assert troubles == {}
    return taken


@pytest.mark.parametrize(
    ("third", "moved"), [([frame("other", 12)], False), (collective(line=12), True)]
)
def test_who_computes_all_the_time_is_in_no_call(
    monkeypatch: pytest.MonkeyPatch, third: list[dict[str, Any]], moved: bool
) -> None:
    """Of one that waits and one that moves there is a third look: who was in a call gets on."""
    looks = [
        {1: Look(0.0, read(collective())), 2: Look(0.0, read([frame("first", 11)]))},
        {1: Look(1.0, read(collective())), 2: Look(1.0, read([frame("step", 14)]), busy_s=1.0)},
        {1: Look(3.0, read(collective())), 2: Look(3.0, read(third), busy_s=3.0)},
    ]
    taken = sampled(monkeypatch, looks)
    assert looks == []
    assert [(one.moved, one.idle) for one in taken] == [(False, True), (moved, False)]
    assert {one.waited_ns for one in taken} == {2_000_000_000}


def test_who_came_while_it_was_looked_at_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has just come to its call at the second look, and stays there."""
    places = ([frame("make", 4)], collective(), collective())
    looks = [
        {1: Look(at_s, read(here), woken), 2: Look(at_s, read([frame("load", 9)]))}
        for at_s, woken, here in zip((0.0, 1.0, 3.0), (1, 9, 9), places, strict=True)
    ]
    taken = sampled(monkeypatch, looks)
    (found,) = reported(taken).findings
    assert (found.kind, found.culprit_ranks) == ("missing_participant", (1,))


def test_steps_of_two_seconds_are_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is looked at again while another one is elsewhere."""
    looks = [
        {1: Look(at_s, read(collective()), woken), 2: Look(at_s, read([frame("load", 9)]))}
        for at_s, woken in ((0.0, 7), (1.0, 7), (3.0, 8))
    ]
    taken = sampled(monkeypatch, looks)
    assert [one.moved for one in taken] == [True, False]
    told = reported(taken)
    assert told.healthy
    assert "last a collective of the default group at train.py:19" in str(told)


PY_SPY = """Process {pid}: python -c
import train
train.main()
Python v3.11.7 (/usr/bin/python3.11)

Thread {side} (idle): "pt_autograd_0"
    futex_wait (libc.so.6)
Thread {pid} (idle): "MainThread"
"""
WAITING = """    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:19)
        Locals:
            rank: {rank}
    <module> (train.py:90)
"""
LOADING = """    load (train.py:9)
        Arguments:
            rank: {rank}
    <module> (train.py:90)
"""
FAULTHANDLER = """Thread 0x00007fa2d1 [pt_autograd_0] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007fa2d587eb80 [python] (most recent call first):
"""
ITS_WAITING = """  File "{torch}/distributed_c10d.py", line 3252 in all_reduce
  File "{torch}/c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 19 in step
  File "/app/train.py", line 90 in <module>
"""
ITS_LOADING = """  File "/app/train.py", line 9 in load
  File "/app/train.py", line 90 in <module>
"""


def test_stacks_may_be_text(tmp_path: Path) -> None:
    """As ``py-spy dump --locals`` prints them: variables tell the ranks, whatever the pids are."""
    for rank in range(3):
        text = PY_SPY.format(pid=200 - rank, side=900) + (LOADING if rank == 2 else WAITING)
        (tmp_path / f"{rank}.txt").write_text(text.replace("{rank}", str(rank)))
    told = from_files(sorted(map(str, tmp_path.iterdir())))
    assert told.report is not None
    (found,) = told.report.findings
    assert (found.kind, found.culprit_ranks, told.troubles) == ("missing_participant", (2,), ())
    assert "rank 2 is at train.py:9 in load" in str(told.report)


def test_stacks_may_be_of_faulthandler(tmp_path: Path) -> None:
    """Of which ranks are guessed by the files' names, and that is said."""
    torch = "/usr/lib/python3/site-packages/torch/distributed"
    for rank in range(3):
        text = FAULTHANDLER + (ITS_LOADING if rank == 2 else ITS_WAITING).format(torch=torch)
        (tmp_path / f"stacks.{rank}").write_text(text)
    told = from_files(sorted(map(str, tmp_path.iterdir()), reverse=True))
    assert told.report is not None
    (found,) = told.report.findings
    assert (found.kind, found.culprit_ranks) == ("missing_participant", (2,))
    assert "rank 2 is at train.py:9 in load" in str(told.report)
    (guessed,) = told.troubles
    assert "else from the order" in guessed


def test_what_are_no_stacks_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("Thread 1: x")
    told = from_files([str(tmp_path / "a"), str(tmp_path / "b")])
    assert told.report is None
    assert len(told.troubles) == 2


PROGRAM = """
import pathlib, sys, time
import torch, torch.utils.data, torch.distributed as dist
dist.init_process_group("gloo")
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        time.sleep(600)
def load():
    next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
pathlib.Path(sys.argv[1], str(dist.get_rank())).touch()
if dist.get_rank() == 1:
    load()
dist.barrier()
"""


@pytest.mark.skipif(refusal() is not None, reason="nobody may look into others here")
@pytest.mark.parametrize("by_pid", [True, False])
def test_a_job_that_hangs_untraced_is_told_and_goes_on(tmp_path: Path, by_pid: bool) -> None:
    """The worker of a loader is no rank, though it has the variables of one."""
    (tmp_path / "train.py").write_text(PROGRAM)
    port = free_port()
    bare = {k: v for k, v in os.environ.items() if not k.startswith("DISTTRACE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", str(tmp_path)],
            cwd=tmp_path,
            env={**bare, **environment(rank, 2, port)},
            start_new_session=True,  # with the worker that it starts
        )
        for rank in range(2)
    ]
    with ending(*ranks):
        wait_until(lambda: all((tmp_path / str(rank)).exists() for rank in range(2)), 120)
        whom = [str(one.pid) for one in ranks] if by_pid else ["--job", str(port)]
        command = [sys.executable, "-m", "disttrace", "attach", *whom, "--json"]
        # Both have come, and may still be on their way.
        wait_until(lambda: run_program(command).code == 1, 120)
        (found,) = json.loads(run_program(command).stdout)["findings"]
        assert (found["kind"], found["culprit_ranks"]) == ("missing_participant", [1])
        assert [one.poll() for one in ranks] == [None, None]


def test_who_of_a_process_tree_is_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that Slurm started, ranks below, a loader's worker; launchers by spawn."""
    groups = ("python", "pt_gloo_runloop")

    def process(pid: int, parent: int, threads: Sequence[str] = ("python",), **env: str) -> None:
        folder = tmp_path / str(pid)
        (folder / "task").mkdir(parents=True)
        (folder / "maps").write_text("libtorch_cpu.so" if env else "bash")
        (folder / "environ").write_text("\0".join(f"{key}={value}" for key, value in env.items()))
        (folder / "stat").write_text(f"{pid} (python) S {parent} " + " ".join(["0"] * 17 + ["5"]))
        for number, name in enumerate(threads):
            (folder / "task" / str(number)).mkdir()
            (folder / "task" / str(number) / "comm").write_text(name)

    agents = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "7"}
    process(10, 1, **agents)
    process(11, 10)  # a shell between them
    process(12, 11, groups, RANK="8", **agents)
    process(13, 10, groups, RANK="9", **agents)
    process(14, 13, RANK="9", **agents)
    assert [(one.pid, one.rank) for one in _ranks(tmp_path, monkeypatch)] == [(12, 8), (13, 9)]
    spawning = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "8"}
    process(20, 1, **spawning)
    for pid in (21, 22):
        process(pid, 20, groups, **spawning)
    found = _ranks(tmp_path, monkeypatch, job="8")
    assert [(one.pid, one.rank) for one in found] == [(21, None), (22, None)]


def _ranks(root: Path, monkeypatch: pytest.MonkeyPatch, job: str = "7") -> list[Found]:
    for reader in (proc, processes):
        monkeypatch.setattr(reader, "ROOT", str(root))
    return processes.ranks(job=job)


def test_who_runs_and_cannot_be_looked_at_leaves_no_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is wrong with the others: 2, as where a journal is missing; 0 where it has ended."""
    (path,) = stacks(tmp_path, {0: [frame("load", 9)]})
    (one,) = samples_of([path], Problems())
    one = replace(one, waited_ns=1_000_000_000)
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr("disttrace_viewer.api.attached.refusal", lambda: None)
    monkeypatch.setattr(processes, "ranks", lambda *_: [Found(os.getpid(), 1, 2, frozenset(), 0)])
    for pid, code in ((os.getpid(), 2), (ended.pid, 0)):
        troubles = {pid: "Permission Denied"}
        monkeypatch.setattr(samples, "sample", lambda _, t=troubles: ([one], t))
        assert main(["attach"]) == code
        shown = capsys.readouterr().err
        assert "could not be looked at: Permission Denied" in shown
        assert f"looked at the newest job here, pids {os.getpid()}; PID or --job names" in shown


def test_nobody_there_is_a_sentence_and_two() -> None:
    done = python("-m", "disttrace", "attach", "--job", "no such job")
    assert done.code == 2
    assert done.stderr.count("\n") == 1


HAS_TORCH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print(flush=True)
input()
"""


def test_a_rank_that_is_no_number_is_none(tmp_path: Path) -> None:
    """Of programs beside a rank: a digit that is no decimal, and five thousand of them."""
    told = ("\u00b2", 5_000 * "9", "-1", "1")
    (library := tmp_path / "libtorch.so").write_bytes(b"of which processes have it mapped")
    running = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", HAS_TORCH, str(library)],
            env={**os.environ, **environment(0, 1, 1), "RANK": rank, "WORLD_SIZE": rank},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in told
    ]
    with ending(*running):
        for one in running:
            assert one.stdout is not None
            assert one.stdout.readline() == b"\n"
        (found,) = processes.ranks([one.pid for one in running])
        assert (found.pid, found.rank, found.world) == (running[-1].pid, 1, 1)
