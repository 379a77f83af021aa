"""A line into a mapped segment against a line into a written one, alone and in an operation."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import CPU, WALL, Variant, interleaved
from benchmarks.recorder.scale import Scale
from benchmarks.recorder.series import BARE, spread
from benchmarks.recorder.tracers import OURS, WRITTEN, available
from benchmarks.report import Report, Table
from benchmarks.viewer import latency

LINE = b'{"b":123456,"t":123456789012,"s":17,"q":123456}\n'
_ROOM = 1 << 30


def measure(scale: Scale) -> Report:
    """Per line, without torch; and per all_reduce, which puts two of them."""
    lines = per_line(scale.rounds, scale.lines)
    arguments = {"rounds": scale.rounds, "calls": scale.calls}
    (operations,) = child.measure(__name__, "in_child", arguments)
    rows = [
        (
            kind,
            *(f"{spread(clocks[clock]).median:,.0f} ns" for clock in (CPU, WALL)),
        )
        for kind, clocks in lines.items()
    ]
    return Report(
        tables=(
            Table(
                "A line into a segment",
                ("segment", "CPU", "wall"),
                tuple(rows),
                f"A line of {len(LINE)} bytes by `disttrace.journal.segment`, in the folder for "
                "temporary files.",
            ),
            latency.table(
                "An operation with mapped and with written segments (`fake`)",
                operations,
                note="Microseconds per operation: CPU time of the calling thread (wall time).",
            ),
        )
    )


def per_line(rounds: int, count: int) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds per line by kind of segment and clock, a value per round."""
    from disttrace.journal.segment import MappedSegment, WrittenSegment

    kinds: dict[str, Any] = {"mapped": MappedSegment, "written": WrittenSegment}
    taken: dict[str, dict[str, list[float]]] = {kind: {CPU: [], WALL: []} for kind in kinds}
    for _ in range(rounds):
        for kind, make in kinds.items():
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                segment = make(str(Path(folder, "1.ops.jsonl")), limit=_ROOM)
                wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
                _put(segment, count)
                cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
                segment.close()
            taken[kind][CPU].append(cpu / count)
            taken[kind][WALL].append(wall / count)
    return taken


def _put(segment: Any, count: int) -> None:
    """As the recorder does it: make room when the segment asks for it."""
    put = segment.put
    for _ in range(count):
        try:
            put(LINE)
        except ValueError:
            segment.extend(len(LINE))
            put = segment.put
            put(LINE)


def in_child(rounds: int, calls: int) -> dict[str, Any]:
    """An all_reduce with both kinds, in an interpreter of its own."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from benchmarks.recorder import cases

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    measured = cases.python_issued(dist.group.WORLD)[:2]
    tracers = available(BARE, OURS, WRITTEN)
    variants = {name: Variant(enter, measured) for name, enter in tracers.items()}
    found = interleaved(variants, rounds=rounds, calls=calls)
    dist.destroy_process_group()
    return found
