"""What NCCL's Inspector wrote gives statistics, with and without times of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.api.statistics import stats
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.errors import ViewerError

AT_US = 1_752_867_229_000_000
WORLD, PAIR = "0xe62dedaa97644a", "0x7f8c496ae9f661"


def line(rank: int, coll: str, sn: int, end_us: int, took_us: int, **how: Any) -> str:
    """One collective, as version 4.0 of the format has it."""
    did: dict[str, Any] = {
        "coll": coll,
        "coll_sn": sn,
        "coll_msg_size_bytes": 4096,
        "coll_exec_time_us": took_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 1.0,
        "coll_busbw_gbs": 1.0,
    }
    if how.get("verbose"):
        times = {"channel_id": 0, "kernel_start_ts": end_us - took_us, "kernel_stop_ts": end_us}
        did["event_trace_ts"] = {"coll_start_ts": end_us - took_us - 90, "kernel_events": [times]}
    value = {
        "header": {"id": how.get("comm", WORLD), "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": end_us + 300 + how.get("pid", rank) * 100,
            "hostname": "node1",
            "pid": 400 + how.get("pid", rank),
        },
        "coll_perf": did,
    }
    return json.dumps(value)


def late_rank_1(folder: Path, *, verbose: bool) -> None:
    """Ten times rank 1 comes 20 ms after rank 0; each kind of collective is counted by itself."""
    for rank in (0, 1):
        lines = []
        for n in range(10):
            coll, took_us = ("AllReduce", "AllGather")[n % 2], 1_000 if rank else 21_000
            at_us = AT_US + n * 50_000
            lines.append(line(rank, coll, n // 2 + 1, at_us, took_us, verbose=verbose))
        (folder / f"node1-pid{400 + rank}.log").write_text("\n".join([*lines, '{"header": {"id"']))


@pytest.mark.parametrize("verbose", [False, True])
def test_who_had_the_shortest_time_came_last(tmp_path: Path, *, verbose: bool) -> None:
    late_rank_1(tmp_path, verbose=verbose)
    found = stats(tmp_path)
    rows = {row["op"]: row for row in found.operations.to_dicts()}
    assert {op: row["calls"] for op, row in rows.items()} == {
        "all_reduce": 10,
        "all_gather_into_tensor": 10,
    }
    assert all(row["last_to_arrive"] == [{"rank": 1, "count": 5}] for row in rows.values())
    waited = {one["rank"]: one["waiting_ns"] for one in found.ranks.to_dicts()}
    assert waited == {0: pytest.approx(200e6, rel=0.01), 1: 0}
    problems = Problems()
    assert len(evidence([str(tmp_path)], problems)) == 2
    assert [problem.kind for problem in problems.found()] == ["damaged", "damaged"]


def test_nothing_is_said_of_a_hang(tmp_path: Path) -> None:
    late_rank_1(tmp_path, verbose=False)
    with pytest.raises(ViewerError, match="only what ended"):
        diagnose(tmp_path)


def test_ranks_of_parts_of_a_job_are_not_guessed(tmp_path: Path) -> None:
    """Each pair calls its first rank 0, and no communicator has all four."""
    for pid in range(4):
        text = line(pid % 2, "AllReduce", 1, AT_US, 900, comm=(WORLD, PAIR)[pid // 2], pid=pid)
        (tmp_path / f"node1-pid{pid}.log").write_text(text)
    with pytest.raises(ViewerError, match="whose they are is unknown"):
        stats(tmp_path)
