"""The programs whose steps are measured: each makes what it needs, and gives its step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.steps.training import MEDIUM, SMALL, training

Step = Callable[[], object]
_WIDTH = 256
_MICRO = 4
"""Parts of a batch in the pipeline."""


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def _trained(model: nn.Module, batch: torch.Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def _layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(count)))


def _fsdp2() -> Step:
    from torch.distributed.fsdp import fully_shard

    model, mesh = _layers(4), _mesh()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _trained(model, torch.randn(64, _WIDTH))


def _tensor_parallel() -> Step:
    """One functional all_reduce in each forward pass."""
    from torch.distributed.tensor import parallel

    plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(_layers(2), _mesh(), plan)
    return _trained(model, torch.randn(64, _WIDTH))


def _pipeline() -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, batch = _layers(2), torch.randn(32, _WIDTH)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, _MICRO, loss_fn=nn.functional.mse_loss)

    def step() -> None:
        model.zero_grad()
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)

    return step


def _four_bytes() -> Step:
    tensor = torch.ones(1)
    return lambda: dist.all_reduce(tensor)


def _beside_ddp() -> Step:
    """The same in a process whose DDP has trained."""
    train = training(SMALL, dist.group.WORLD)
    for _ in range(3):
        train()
    return _four_bytes()


def _loader() -> Step:
    """An epoch: two workers are forked, and give their batches to a step that communicates."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(256, _WIDTH))
    loader = DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork")

    def step() -> None:
        for (batch,) in loader:
            dist.all_reduce(batch)

    return step


def _checkpoint() -> Step:
    from torch.distributed import checkpoint

    state = _layers(8).state_dict()
    folder = [tempfile.mkdtemp(prefix="bench-dcp-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return lambda: checkpoint.save(state, checkpoint_id=folder[0])


PROGRAMS: Mapping[str, Callable[[], Step]] = {
    "DDP, small": lambda: training(SMALL, dist.group.WORLD),
    "DDP, medium": lambda: training(MEDIUM, dist.group.WORLD),
    "FSDP2": _fsdp2,
    "TP": _tensor_parallel,
    "1F1B": _pipeline,
    "all_reduce of 4 bytes": _four_bytes,
    "the same beside DDP": _beside_ddp,
    "DataLoader, an epoch": _loader,
    "DCP, a save": _checkpoint,
}
