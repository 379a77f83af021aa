"""Each example runs as its docstring says, and its journals hold what the docstring promises."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.preloaded import torchrun
from support.processes import ROOT, Outcome, clean_environ, python, run_program

EXAMPLES = ROOT / "examples"

Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """How an example is started, what it says, and what must be in its journals."""

    program: str
    workers: int  # under torchrun; 0: started plainly
    says: str
    operations: dict[str, int]  # how many of each, over all processes


TABLE = (
    Example("pingpong.py", 0, "the ball came back with 10", {"send": 10, "recv": 10}),
    Example("pingpong.py", 2, "the ball came back with 10", {"send": 10, "recv": 10}),
    Example(
        "allreduce_subgroup.py",
        3,
        "rank 1: 3",
        {"new_group": 3, "all_reduce": 4, "barrier": 3, "destroy_process_group": 3},
    ),
    Example("four_ranks.py", 4, "world size 4, rank 3, local rank 3", {"all_gather": 4}),
    Example("init_env.py", 2, "rank 1 of 2: 2", {"init_process_group": 2, "all_reduce": 2}),
    Example("init_tcp.py", 0, "rank 1 of 2: 2", {"init_process_group": 2, "all_reduce": 2}),
    Example("init_file.py", 0, "rank 1 of 2: 2", {"init_process_group": 2, "all_reduce": 2}),
    Example("ddp.py", 2, "mean loss after 5 steps", {"init_process_group": 2}),
)


def exported(folder: Path) -> list[Operation]:
    done = python("-m", "disttrace", "export", str(folder), "--format", "jsonl", "-o", "-").check()
    return [json.loads(line) for line in done.stdout.splitlines()]


def traced(program: str, workers: int, folder: Path, *arguments: str) -> Outcome:
    path = EXAMPLES / program
    if workers:
        return torchrun(path, workers, *arguments, DISTTRACE="1", DISTTRACE_DIR=str(folder))
    variables = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(folder), OMP_NUM_THREADS="1")
    return run_program([sys.executable, path, *arguments], variables, 120)


@pytest.mark.parametrize(
    "example", TABLE, ids=lambda example: f"{example.program}-{example.workers or 'plain'}"
)
def test_an_example_leaves_what_it_promises(example: Example, tmp_path: Path) -> None:
    """It says its line and exits with 0, and exactly its operations are there, all of them over."""
    done = traced(example.program, example.workers, tmp_path).check()
    operations = exported(tmp_path)
    counts = Counter(operation["op"] for operation in operations)
    assert example.says in done.stdout
    assert {op: counts[op] for op in example.operations} == example.operations
    ranked = (one for one in operations if one["rank"] is not None)
    assert {operation["status"] for operation in ranked} == {"ok"}


def test_fsdp_gathers_and_scatters(tmp_path: Path) -> None:
    """FSDP2 on gloo trains under tracing, with its collectives recorded in equal number."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")  # here: its import takes a second
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("FSDP2 of this torch needs CUDA streams")
    done = traced("fsdp2.py", 2, tmp_path).check()
    counts = Counter(
        (operation["op"], operation["rank"])
        for operation in exported(tmp_path)
        if operation["op"] in ("all_gather_into_tensor", "reduce_scatter_tensor")
    )
    assert "loss after 3 steps" in done.stdout
    assert counts["all_gather_into_tensor", 0] == counts["all_gather_into_tensor", 1] > 0
    assert counts["reduce_scatter_tensor", 0] == counts["reduce_scatter_tensor", 1] == 6


def test_two_jobs_meet_in_one_all_reduce(tmp_path: Path) -> None:
    """Two agents, four workers, two children, and one all_reduce that spans both jobs."""
    done = traced("two_jobs_launcher.py", 0, tmp_path).check()
    operations = exported(tmp_path)
    roles = Counter(role for _, role in {(one["process"], one["role"]) for one in operations})
    spanning = [one for one in operations if one["op"] == "all_reduce" and one["role"] == "child"]
    assert done.stdout.count("the replicas' sum is 3") == 2
    assert roles == {"agent": 2, "worker": 4, "child": 2}
    assert len({one["job"] for one in operations}) == 2
    assert len({one["job"] for one in spanning}) == 2
    assert len({one["group"] for one in spanning}) == 1
    assert sorted(one["group_rank"] for one in spanning) == [0, 1]
    assert {one["rank"] for one in spanning} == {None}
