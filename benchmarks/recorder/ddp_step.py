"""A training step of DistributedDataParallel over gloo, of a small and of a medium model."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.interleave import CPU, WALL
from benchmarks.recorder.journalled import origins
from benchmarks.recorder.scale import SMALL, Scale
from benchmarks.recorder.series import BARE, added, relative, spread
from benchmarks.recorder.tracers import OURS, PROFILER, STACKS, available
from benchmarks.report import Report, Table

_SETTLE = 3
"""Steps before the clock is read: DDP builds its buckets anew after the first."""


def measure(scale: Scale) -> Report:
    """Both models; what a tracer adds to a step, in microseconds and as a fraction."""
    tables = []
    for size in scale.models:
        steps = scale.steps * (5 if size == SMALL else 1)
        arguments = {"size": size, "rounds": scale.step_rounds, "steps": steps}
        found = child.measure(__name__, "in_child", arguments, ranks=2, timeout=400)
        tables.append(_table(size, found[0]))
    return Report(tables=tuple(tables))


def _table(size: str, found: dict[str, Any]) -> Table:
    figures, reduces = found["figures"], found["reduces"]
    wall = figures[WALL]
    rows = []
    for name in wall:
        low, median, high = _triple(wall, name)
        rows.append(
            (
                name,
                f"{spread(wall[name]).median / 1e6:.2f}",
                "" if name == BARE else f"{median:+.1%} ({low:+.1%} to {high:+.1%})",
                "" if name == BARE else f"{added(figures[CPU], name).median / 1e3:+,.0f}",
                "" if name == BARE else f"{added(figures['process'], name).median / 1e3:+,.0f}",
            )
        )
    return Table(
        f"A DDP step, {size} model (gloo, two processes)",
        (
            "tracer",
            "step, ms",
            "added (quartiles)",
            "added CPU us, main thread",
            "added CPU us, all threads",
        ),
        tuple(rows),
        f"{found['parameters']:,} parameters; {reduces:.1f} all-reduces per step recorded as "
        "issued by C++. Wall time of rank 0, median over rounds; the difference is taken within "
        "a round.",
    )


def _triple(wall: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    found = relative(wall, name)
    return found.low, found.median, found.high


def in_child(size: str, rounds: int, steps: int) -> dict[str, Any]:
    """One rank. Every block has a model of its own, made under the tracer that it measures."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=os.environ["BENCH_INIT"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    # No DETAIL here: DDP's logger crashes on a checking group unless the variable was set from
    # the start.
    pace, plain = dist.new_group(), dist.new_group()
    variants = available(BARE, OURS, PROFILER, STACKS)
    figures: dict[str, dict[str, list[float]]] = {CPU: {}, WALL: {}, "process": {}}
    names = list(variants)
    found: dict[str, Any] = {"figures": figures, "reduces": 0.0}
    for number in range(-1, rounds):
        turn = max(number, 0) % len(names)
        for name in names[turn:] + names[:turn]:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                with variants[name](Path(folder)):
                    step, found["parameters"] = training(size, plain)
                    _repeat(step, _SETTLE)
                    dist.barrier(group=pace)
                    taken = _timed(step, steps)
                    dist.barrier(group=pace)
                    del step
                    gc.collect()
                if name == OURS:
                    found["reduces"] = _reduces(Path(folder)) / (steps + _SETTLE)
            if number >= 0:
                for clock, value in taken.items():
                    figures[clock].setdefault(name, []).append(value / steps)
    dist.barrier(group=pace)
    dist.destroy_process_group()
    return found


def _reduces(folder: Path) -> int:
    """All-reduces of DDP's reducer that our journal holds."""
    return sum(
        count
        for origin, count in origins(folder).items()
        if (origin.op, origin.language) == ("all_reduce", "c++")
    )


def training(size: str, group: Any) -> tuple[Callable[[], None], int]:
    """A step of training, and the number of parameters."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    if size == SMALL:
        layers: list[nn.Module] = []
        for _ in range(8):
            layers += [nn.Linear(32, 32), nn.ReLU()]
        model: nn.Module = nn.Sequential(*layers)
        batch, bucket_mb = torch.randn(16, 32), 0.005  # about a bucket per layer
    else:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        batch, bucket_mb = torch.randn(4, 64, 256), 4
    parameters = sum(parameter.numel() for parameter in model.parameters())
    parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        parallel(batch).square().mean().backward()
        optimizer.step()

    return step, parameters


def _timed(step: Callable[[], None], count: int) -> dict[str, int]:
    before = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
    _repeat(step, count)
    after = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
    wall, cpu, process = (end - start for start, end in zip(before, after, strict=True))
    return {WALL: wall, CPU: cpu, "process": process}


def _repeat(step: Callable[[], None], count: int) -> None:
    for _ in range(count):
        step()
