"""``disttrace check``: real programs rehearsed in real ranks, also such as are written for CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes import Outcome, clean_environ, run_program, wait_until

CUDA = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
assert torch.cuda.is_available() and local < torch.cuda.device_count()
torch.cuda.set_device(local)
device = torch.device("cuda", local)
dist.init_process_group("nccl", device_id=device)
model = DistributedDataParallel(torch.nn.Linear(8, 8).to(device), device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(100):
    x = torch.randn(4, 8, device="cuda").pin_memory().cuda(non_blocking=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        model(x).sum().backward()
    optimizer.step()
    mean = torch.full((2,), float(rank), device=device)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert mean[0] == (dist.get_world_size() - 1) / 2
    torch.cuda.synchronize()
dist.destroy_process_group()
"""
STREAMS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
r = dist.get_rank()
t = torch.ones(4, device="cuda")
works = [dist.isend(t, r ^ 1), dist.irecv(torch.empty(4, device="cuda"), r ^ 1)]
for work in works:
    work.wait()
dist.destroy_process_group()
"""
HANGS = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(1000)
dist.barrier()
"""
FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("bad batch")
dist.barrier()
"""
NEEDS_A_DEVICE = """
import torch
torch.cuda.get_device_properties(0)
"""
LONG = """
import time, torch.distributed as dist
dist.init_process_group("gloo")
end = time.time() + 60
while time.time() < end:
    dist.barrier()
"""
FSDP2 = """
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)]).to("cuda")
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(3):
    model(torch.randn(4, 16, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
"""
PIPELINE = """
import os, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
n = dist.get_world_size()
stage = PipelineStage(torch.nn.Linear(16, 16).to(device), rank, n, device)
x = torch.randn(8, 16, device=device)
for kind in (ScheduleGPipe, Schedule1F1B):
    schedule = kind(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).sum())
    for _ in range(2):
        if rank == 0:
            schedule.step(x)
        elif rank == n - 1:
            schedule.step(target=x, losses=[])
        else:
            schedule.step()
dist.destroy_process_group()
"""


def check(folder: Path, text: str, *options: str, ranks: int = 2, **variables: str) -> Outcome:
    """Rehearse a program of this text."""
    script = folder / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "disttrace", "check", "-n", str(ranks), *options]
    env = clean_environ(TMPDIR=str(folder), **variables)
    return run_program([*command, "--", str(script)], env, timeout=120, cwd=folder)


def test_a_program_for_cuda_is_rehearsed_on_the_cpu(tmp_path: Path) -> None:
    """DDP on NCCL with streams, pinned memory and AVG; nothing is left behind."""
    found = check(tmp_path, CUDA, "--steps-limit", "3").check()
    assert found.stdout.startswith("No fault in 2 ranks: ran ")
    assert ", 3 steps." in found.stdout
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("disttrace")]


def test_what_only_a_device_would_order_is_told(tmp_path: Path) -> None:
    """It ends well on gloo; on NCCL both would be in the send."""
    found = check(tmp_path, STREAMS, "--format", "json")
    assert found.code == 1, found
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["kind"], finding["waiting_ranks"]) == ("would_hang", [0, 1])
    assert "the journals and outputs of the ranks: " in found.stderr


@pytest.mark.long
def test_a_hang_ends_the_run(tmp_path: Path) -> None:
    """After the stall limit, and with the rank that is to blame."""
    started = time.monotonic()
    found = check(tmp_path, HANGS, "--stall", "3")
    assert found.code == 1, found
    assert "Rank 1 never joined barrier #1 of the default group" in found.stdout
    assert "train.py:5, not in any collective" in found.stdout
    assert time.monotonic() - started < 60


@pytest.mark.long
def test_ranks_do_not_outlive_it(tmp_path: Path) -> None:
    """Killed, it can end nobody; the ranks of a hang would stay for ever."""
    program = tmp_path / "train.py"
    program.write_text(HANGS)
    command = [sys.executable, "-m", "disttrace", "check", "-n", "2", "--stall", "60", str(program)]
    running = subprocess.Popen(command, env=clean_environ(), stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    try:
        wait_until(lambda: len(children.read_text().split()) == 2, 60)
        pids = children.read_text().split()
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)


@pytest.mark.long
def test_an_exception_is_the_finding(tmp_path: Path) -> None:
    """And what its rank said is shown, without a frame of ours."""
    found = check(tmp_path, FAILS)
    assert found.code == 1, found
    assert "Rank 1 failed first: ValueError: bad batch (train.py:5)" in found.stdout
    assert "rank 1 ended with 1; it said:" in found.stderr
    assert "rehearsal.py" not in found.stderr


@pytest.mark.long
def test_what_needs_a_device_cannot_be_rehearsed(tmp_path: Path) -> None:
    found = check(tmp_path, NEEDS_A_DEVICE)
    assert found.code == 2, found
    assert "cannot be rehearsed: train.py:3: AssertionError: Torch not compiled" in found.stderr
    found = check(tmp_path, "print('alone')")
    assert found.code == 2, found
    assert "no rank used torch.distributed" in found.stderr


@pytest.mark.long
def test_the_time_limit_is_no_fault(tmp_path: Path) -> None:
    """Nor is a machine on which every rank waits for the CPU."""
    found = check(tmp_path, LONG, "--timeout", "8")
    assert found.code == 3, found
    assert "0 steps, no fault so far" in found.stderr


@pytest.mark.long
@pytest.mark.parametrize("text", [FSDP2, PIPELINE], ids=["fsdp2", "pipe"])
def test_parallelisms_run_unchanged(tmp_path: Path, text: str) -> None:
    """Written for CUDA; no fault is found."""
    found = check(tmp_path, text, ranks=4).check()
    assert found.stdout.startswith("No fault in 4 ranks: ran ")


def test_what_starts_ranks_itself_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "disttrace", "check", "--", "torchrun", "train.py"]
    found = run_program(command, clean_environ(), cwd=tmp_path)
    assert found.code == 2, found
    assert "it starts the ranks itself: give the script" in found.stderr
