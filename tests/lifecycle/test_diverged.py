"""Ranks that call different things are told of at once: nobody waits, and results are mixed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import clean_environ, free_port, run_program

START = """
import sys, time, torch, torch.distributed as dist, disttrace
dist.init_process_group("gloo")
rank = dist.get_rank()
heard = []
disttrace.on_verdict(heard.append)
def one(group, op=dist.ReduceOp.SUM): dist.all_reduce(torch.ones(4), op=op, group=group)
def two(group): dist.all_reduce(torch.ones(4), group=group)
def three(group): dist.all_reduce(torch.ones(4), group=group)
def logs(group): dist.all_reduce(torch.ones(4), group=group)
"""
GROUPS = f"""{START}
swaps, maxes, healthy = (dist.new_group([0, 1, 2]) for _ in range(3))
until = time.monotonic() + 20
for step in range(1000):
    odd = rank == 2 and step == 20
    one(healthy); (logs if rank == 0 else two)(healthy)
    for call in (two, one) if odd else (one, two): call(swaps)
    one(maxes, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM); two(maxes)
    done = torch.tensor([float((len(heard) > 1 and step > 60) or time.monotonic() > until)])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done.item(): break
    time.sleep(0.01)
"""
SKIPS = f"""{START}
for step in range(300):
    if (rank, step) != (2, 20): one(None)
    two(None); three(None)
    time.sleep(0.01)
if rank == 2: one(None)
"""
BIT = f"""{START}
weights = torch.ones(1000, dtype=torch.bfloat16)
for step in range(400):
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.full((2,), float(rank)), 0)
    if (rank, step) == (1, 33): weights.view(torch.int16)[7] ^= 1
    disttrace.expect_equal("weights", [weights])
    done = torch.tensor([float(len(heard) > 0 and step > 60)])
    dist.all_reduce(done, op=dist.ReduceOp.MIN)
    if done.item(): break
    time.sleep(0.02)
"""


def told(tmp_path: Path, text: str, **settings: str) -> tuple[list[dict[str, Any]], str]:
    """What a program of three ranks says of divergences, and its stderr."""
    program = tmp_path / "program.py"
    program.write_text(text)
    environ = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), OMP_NUM_THREADS="1", **settings
    )
    command = [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
    command += ["--nproc-per-node=3", str(program)]
    ended = run_program(command, environ, timeout=90).check()
    lines = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.verdicts.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [one for one in lines if one["kind"] == "diverged"], ended.stderr


def test_each_group_that_diverges_is_told_once_before_anybody_hangs(tmp_path: Path) -> None:
    """Of two calls in another order and another reduce op; callbacks hear it in all ranks (else the
    program would not end). A rank that logs by another line is no divergence.
    """
    said, stderr = told(tmp_path, GROUPS)
    found = {one["finding"]["kind"]: one for one in said}
    assert len(said) == len(found) == 2, stderr
    assert found["reduce_op_mismatch"]["certainty"] == "certain"
    assert found["divergence"]["summary"].startswith(
        "Rank 2 called in another order than ranks 0, 1 in group "
    )
    assert [one["culprit_ranks"] for one in said] == [[2], [2]]
    assert stderr.count("disttrace: diverged") >= 1


@pytest.mark.long
def test_a_call_that_was_left_out_is_told_while_results_are_mixed(tmp_path: Path) -> None:
    """Nobody ever waits for it."""
    said, stderr = told(tmp_path, SKIPS)
    [one] = said
    assert one["summary"].startswith(
        "Rank 2 is out of step with ranks 0, 1 in the default group since #61: rank 2 skipped"
        " all_reduce at program.py:7;"
    )
    assert "disttrace: diverged (likely): Rank 2 is out of step" in stderr


def test_one_flipped_bit_is_told_at_the_next_call_that_is_sampled(tmp_path: Path) -> None:
    """Of every tenth, by the rank whose bit it is; and nothing else is told."""
    said, stderr = told(tmp_path, BIT, DISTTRACE_DIGEST="10")
    [one] = said
    assert one["summary"].startswith(
        "Rank 1 has other values than ranks 0, 2, where they have to be equal: 'weights' in its"
        " call 40 of the default group at program.py:"
    ), stderr
    assert one["culprit_ranks"] == [1]
