"""Profiles as torch.profiler's Kineto writes them, as far as they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
WORLD = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]


def profile(folder: Path, rank: int, events: Sequence[dict[str, Any]]) -> None:
    value = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2, "pg_config": WORLD},
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


def late_rank_1(folder: Path) -> None:
    """Ten times rank 1 comes 20 ms after rank 0, and both end 1 ms later."""
    for rank in (0, 1):
        events = [
            event
            for n in range(10)
            for event in nccl(n + 1, n * 50_000 + rank * 20_000, n * 50_000 + 21_000)
        ]
        profile(folder, rank, events)
