"""Collectives and messages between two real processes over gloo, and what DETAIL costs there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import Case, Variant, interleaved
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE
from benchmarks.recorder.tracers import DETAIL, OURS, PROFILER, SPAN, STACKS, VIZTRACER, available
from benchmarks.report import Report
from benchmarks.viewer import latency


def measure(scale: Scale) -> Report:
    """Rank 0's figures; rank 1 does and traces the same at the same time."""
    arguments = {"rounds": scale.rounds, "calls": scale.gloo_calls}
    found = child.measure(__name__, "in_child", arguments, ranks=2, timeout=400)
    return Report(
        tables=(
            latency.table(
                "Two processes (gloo)",
                found[0],
                note="Microseconds per operation, CPU time of rank 0's calling thread (wall time, "
                "which holds the hand-over between threads and processes and jumps). "
                "`DETAIL` is a group made under `TORCH_DISTRIBUTED_DEBUG=DETAIL`, untraced.",
            ),
        )
    )


def in_child(rounds: int, calls: int) -> dict[str, Any]:
    """One rank: the tracers on one group, and no tracer on another that checks every call."""
    import torch.distributed as dist

    from benchmarks.recorder import cases

    dist.init_process_group(
        "gloo",
        init_method=os.environ["BENCH_INIT"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    pace = dist.new_group()  # brings the ranks together, and is not measured
    plain = dist.new_group()
    checked = checking_group()

    def on(group: Any) -> list[Case]:
        return [
            *cases.python_issued(group),
            *cases.ping_pong(group),
            *cases.functional(group),
        ]

    tracers = available(BARE, OURS, PROFILER, STACKS, VIZTRACER, SPAN)
    variants = {name: Variant(enter, on(plain)) for name, enter in tracers.items()}
    variants[DETAIL] = Variant(detail, on(checked))
    found = interleaved(
        variants, rounds=rounds, calls=calls, together=lambda: dist.barrier(group=pace)
    )
    dist.barrier(group=pace)
    dist.destroy_process_group()
    return found


def checking_group() -> Any:
    """A group of all as torch makes it under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    import torch.distributed as dist

    with detail(Path()):
        return dist.new_group()


@contextlib.contextmanager
def detail(folder: Path) -> Iterator[None]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL for a while."""
    import torch.distributed as dist

    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        yield
    finally:
        dist.set_debug_level(before)
