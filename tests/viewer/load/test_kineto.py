"""Profiles of torch.profiler give statistics, and say nothing of hangs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.api.statistics import stats
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.load.problems import ViewerError
from support.processes import torchrun
from support.profiled import PROGRAM

BASE_NS = 1_790_857_026_000_000_000
WORLD = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
PAIR = {"pg_name": "1", "pg_desc": "tp", "pg_size": 2, "ranks": [0, 1]}


def profile(
    folder: Path, rank: int, events: Sequence[dict[str, Any]],
    groups: Sequence[dict[str, Any]] = WORLD,
) -> None:  # fmt: skip
    """A file as Kineto writes it, as far as it is read."""
    value = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2, "pg_config": [*groups]},
        "host_name": "node1",
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}, *events],
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(value))


def nccl(seq: int, at_us: float, ends_us: float, name: str = "allreduce") -> list[dict[str, Any]]:
    args = {
        "Collective name": name, "In msg nelems": 256, "dtype": "Float", "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]", "Seq": seq,
    }  # fmt: skip
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "args": args}
    return [
        {
            "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": at_us, "dur": 12,
            "args": args,
        },
        {**kernel, "ts": ends_us - 100, "dur": 100},
    ]  # fmt: skip


def gloo(name: str, op: str, at_us: float, ends_us: float, size: int = 8) -> list[dict[str, Any]]:
    """A call, and what a thread of gloo did for it."""
    one = {"Input Dims": [[[size]]], "Input type": ["TensorList"]}
    two = {"Input Dims": [[size]], "Input type": ["float"]}
    return [
        {"ph": "X", "cat": "cpu_op", "name": f"c10d::{name}", "ts": at_us, "dur": 9, "args": one},
        {
            "ph": "X", "cat": "user_annotation", "name": f"gloo:{op}", "ts": at_us + 5,
            "dur": ends_us - at_us - 5, "args": two,
        },
    ]  # fmt: skip


def late_rank_1(folder: Path, of: Any) -> None:
    """Ten times rank 1 comes 20 ms after rank 0, and both end 1 ms later."""
    for rank in (0, 1):
        events = [
            event
            for n in range(10)
            for event in of(n + 1, n * 50_000 + rank * 20_000, n * 50_000 + 21_000)
        ]
        profile(folder, rank, events)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_who_comes_late_is_in_the_statistics(tmp_path: Path, backend: str) -> None:
    """By numbers, and for gloo by the order of calls that are alike on all ranks."""
    by = nccl if backend == "nccl" else lambda _, at, end: gloo("allreduce_", "all_reduce", at, end)
    late_rank_1(tmp_path, by)
    found = stats(tmp_path)
    (row,) = found.operations.to_dicts()
    assert (row["op"], row["calls"]) == ("all_reduce", 20)
    assert row["last_to_arrive"] == [{"rank": 1, "count": 10}]
    waited = {one["rank"]: one["waiting_ns"] for one in found.ranks.to_dicts()}
    assert waited == {0: pytest.approx(200e6, rel=0.01), 1: 0}


def test_packed_ones_are_read_too(tmp_path: Path) -> None:
    """``export_chrome_trace("rank0.json.gz")``; one that is cut is a sentence."""
    (tmp_path / "plain").mkdir()
    late_rank_1(tmp_path / "plain", nccl)
    for path in (tmp_path / "plain").iterdir():
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (row,) = stats(tmp_path).operations.to_dicts()
    assert (row["calls"], row["last_to_arrive"]) == (20, [{"rank": 1, "count": 10}])
    for path in tmp_path.glob("*.gz"):
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ViewerError, match=r"rank0\.json\.gz: is no whole profile"):
        stats(tmp_path)


def test_nothing_is_said_of_a_hang(tmp_path: Path) -> None:
    late_rank_1(tmp_path, nccl)
    with pytest.raises(ViewerError, match="only what ended"):
        diagnose(tmp_path)


def test_calls_of_gloo_in_two_groups_are_not_guessed(tmp_path: Path) -> None:
    for rank in (0, 1):
        profile(tmp_path, rank, gloo("allreduce_", "all_reduce", 0, 90), groups=[*WORLD, PAIR])
    with pytest.raises(ViewerError, match="gloo in 2 groups: its calls name none"):
        stats(tmp_path)


def test_windows_that_differ_are_not_matched(tmp_path: Path) -> None:
    """Rank 1's profile began a call later: its first is not the first of rank 0."""
    for rank in (0, 1):
        events = [
            e
            for n in range(rank, 3)
            for e in gloo("allreduce_", "all_reduce", n * 100, n * 100 + 50, 8 + n)
        ]
        profile(tmp_path, rank, events)
    assert [one["waiting_ns"] for one in stats(tmp_path).ranks.to_dicts()] == [0, 0]


@pytest.mark.parametrize(
    "text",
    [
        '{"schemaVersion": 1, "traceEvents": [',
        '{"schemaVersion": 1}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": -1}, "traceEvents": []}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [1, {"args": 5}]}',
        '{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [STRANGE]}',
    ],
)
def test_what_is_no_profile_is_a_sentence(tmp_path: Path, text: str) -> None:
    strange = '{"name": "c10d::barrier", "cat": "cpu_op", "ts": "x", "dur": 1}'
    (tmp_path / "rank0.json").write_text(text.replace("STRANGE", strange))
    with pytest.raises(ViewerError, match=r"rank0\.json: (it )?(is an?|is no|has)"):
        stats(tmp_path)


@pytest.mark.long
def test_a_real_profile(tmp_path: Path) -> None:
    """torch.profiler's own, of two ranks on gloo."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "made").mkdir()
    torchrun(program, 2, str(tmp_path / "made"))
    rows = {one["op"]: one for one in stats(tmp_path / "made").operations.to_dicts()}
    assert (rows["all_reduce"]["calls"], rows["broadcast"]["calls"]) == (12, 12)
    assert rows["all_reduce"]["last_to_arrive"][0]["rank"] == 1
    assert rows["all_reduce"]["waiting_ns"] > 0.3e9
