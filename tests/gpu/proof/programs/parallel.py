"""What frameworks of torch's issue: DDP, FSDP, tensor parallelism, meshes of two dimensions,
pipelines."""

from __future__ import annotations

import inspect
from typing import Any

from gpu.proof.rank import Rank


def _layers(rank: Rank, count: int) -> Any:
    nn = rank.torch.nn
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(count)]).to(rank.device)


def _steps(rank: Rank, model: Any, count: int) -> None:
    for _ in range(count):
        model(rank.torch.ones(8, 64, device=rank.device)).sum().backward()


def _mesh(rank: Rank, *sizes: int, names: tuple[str, ...] | None = None) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(rank.device.type, sizes, mesh_dim_names=names)


def ddp(rank: Rank) -> None:
    """Its reducer issues from C++; then calls of the program's own beside it."""
    model = _layers(rank, 4)
    _steps(rank, rank.torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02), 5)
    rank.dist.all_reduce(rank.x)
    rank.dist.barrier()
    rank.dist.all_reduce(rank.x, async_op=True).wait()
    rank.end_well()


def fsdp1(rank: Rank) -> None:
    """Its collectives are waited for by events of streams."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = rank.device if rank.cuda else rank.torch.device("cpu")
    _steps(rank, FullyShardedDataParallel(_layers(rank, 3), device_id=device), 3)
    rank.end_well()


def fsdp2(rank: Rank) -> None:
    """`fully_shard` of each layer."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard
    mesh, model = _mesh(rank, rank.world), _layers(rank, 3)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _steps(rank, model, 3)
    rank.end_well()


def tensor_parallel(rank: Rank) -> None:
    """DTensor's functional collectives."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    _steps(rank, parallelize_module(_layers(rank, 2), _mesh(rank, rank.world), plan), 3)
    rank.end_well()


def mesh(rank: Rank) -> None:
    """Two by two: sharded within a pair, replicated over pairs; each dimension a group."""
    two = _mesh(rank, 2, 2, names=("replicate", "shard"))
    for _ in range(5):
        rank.dist.all_reduce(rank.x, group=two["shard"].get_group())
        rank.dist.all_reduce(rank.x, group=two["replicate"].get_group())
    rank.x.fill_(1.0)
    rank.dist.all_reduce(rank.x)
    rank.end_well()


def pipeline(rank: Rank) -> None:
    """torch's own schedule 1F1B, whose messages are batches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    data = rank.torch.ones(8, 64, device=rank.device)
    shapes = {}
    told = inspect.signature(PipelineStage).parameters["input_args"]
    if told.default is told.empty:  # torch 2.5 does not find out by itself
        shapes = {"input_args": (data[:2],), "output_args": (data[:2],)}
    stage = PipelineStage(_layers(rank, 1), rank.rank, rank.world, rank.device, **shapes)
    loss = rank.torch.nn.functional.mse_loss
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
    for _ in range(2):
        if rank.rank == 0:
            schedule.step(data)
        else:
            schedule.step(target=data)
    rank.end_well()
