"""Store operations, in one process."""

from __future__ import annotations

import datetime
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import CPU, STEADY, Variant, interleaved
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE
from benchmarks.recorder.tracers import OURS, PLAIN, PROFILER, SPAN, STACKS, VIZTRACER, available
from benchmarks.report import Report, Verdict
from benchmarks.viewer import latency

HERE = "HashStore"
LIMIT = 0.4
"""Microseconds that an operation of a store in this process may take longer."""


def measure(scale: Scale) -> Report:
    """The table, and the goal against the worst row."""
    arguments = {"rounds": scale.rounds, "calls": scale.calls}
    (found,) = child.measure(__name__, "in_child", arguments)
    figures = found["figures"]
    costs = {
        case: latency.microseconds(figures[case][CPU], OURS) for case in figures if HERE in case
    }
    worst = max(costs, key=lambda case: costs[case])
    complete = not latency.not_recorded(found)
    return Report(
        tables=(
            latency.table(
                "Store operations, one process",
                found,
                note="Microseconds per operation: CPU time of the calling thread (wall time).",
            ),
        ),
        verdicts=(
            Verdict(
                f"Operations of a {HERE}: at most {LIMIT:g} us",
                f"{costs[worst]:.2f} us (worst: {worst})",
                costs[worst] <= LIMIT if complete else None,
            ),
        ),
    )


def in_child(rounds: int, calls: int) -> dict[str, Any]:
    """Stores of which this process is server and only client."""
    import torch.distributed as dist

    from benchmarks.recorder import cases

    hash_store = dist.HashStore()
    tcp_store = dist.TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=30))
    measured = cases.store_operations(hash_store, tcp_store)
    tracers = available(BARE, OURS, PLAIN, PROFILER, STACKS, VIZTRACER, SPAN)
    variants = {name: Variant(enter, measured) for name, enter in tracers.items()}
    return interleaved(variants, rounds=rounds, calls=calls, warm=min(calls, STEADY))
