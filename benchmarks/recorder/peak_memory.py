"""Peak memory of a process that trains, with and without tracing."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.scale import FSDP, Scale
from benchmarks.recorder.series import BARE, added, relative, spread
from benchmarks.recorder.tracers import OURS
from benchmarks.report import Report, Table, Verdict

LIMIT = 0.01
"""Of the peak, in an FSDP step."""

# One arena, and every tensor a mapping of its own: the peak is what was in use, not what happened
# to be free between blocks.
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}

_LAYERS, _WIDTH, _STEPS = 8, 1536, 4


def measure(scale: Scale) -> Report:
    """Two ranks in processes of their own, in turns with and without."""
    rows, verdicts = [], []
    for kind in scale.trainings:
        taken: dict[str, list[float]] = {BARE: [], OURS: []}
        for _ in range(scale.memory_runs):
            for name, samples in taken.items():
                arguments = {"kind": kind, "traced": name == OURS}
                found = child.measure(
                    __name__, "in_child", arguments, ranks=2, variables=_ALLOCATOR
                )
                samples += [peak for peak in found if peak is not None]
        if not taken[BARE]:
            rows.append((kind, "not in this torch", "", ""))
            continue
        share, more = relative(taken, OURS), added(taken, OURS)
        rows.append(
            (
                kind,
                f"{spread(taken[BARE]).median / 2**20:,.0f}",
                f"{more.median / 2**20:+.1f}",
                f"{share.median:+.2%} ({share.low:+.2%} to {share.high:+.2%})",
            )
        )
        if kind == FSDP:
            goal = f"Peak memory of an FSDP step: within {LIMIT:.0%}"
            met = True if share.median <= LIMIT else False if share.low > LIMIT else None
            verdicts.append(Verdict(goal, f"{share.median:+.2%}", met))
    return Report(
        tables=(
            Table(
                "Peak memory (gloo, two processes)",
                ("training with", "bare, MiB", "added MiB", "added (quartiles)"),
                tuple(rows),
                f"Largest resident memory of a rank over {_STEPS} steps of "
                f"{_LAYERS * _WIDTH * (_WIDTH + 1):,} parameters with Adam. What tracing adds is "
                "a constant: its code, its tables and the mapped end of the journal.",
            ),
        ),
        verdicts=tuple(verdicts),
    )


def in_child(kind: str, traced: bool) -> float | None:
    """Peak of one rank in bytes; None where this torch has no such training."""
    import torch.distributed as dist

    import disttrace

    fully_shard = _fully_shard()
    if kind == FSDP and fully_shard is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if traced:
            disttrace.install(dir=str(Path(folder)))
        dist.init_process_group(
            "gloo",
            init_method=os.environ["BENCH_INIT"],
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        _train(fully_shard if kind == FSDP else None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        dist.barrier()
        dist.destroy_process_group()
        disttrace.uninstall()
    return peak


def _train(fully_shard: Any) -> None:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
    if fully_shard is None:
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    batch = torch.randn(64, _WIDTH)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def _fully_shard() -> Any:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch 2.5
        return None
    return fully_shard
