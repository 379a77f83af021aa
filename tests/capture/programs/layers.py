"""Issues operations through the layers above collectives: FSDP1, DTensor over a mesh, a pipeline.

python layers.py RANK WORLD STORE_FILE    as paths.py
"""

from __future__ import annotations

import gc
import inspect
from typing import Any

import torch
from paths import dist, main


def fully_sharded(rank: int, world: int, store: Any) -> None:
    """Two steps of FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    inner = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=cpu)
    layers = torch.nn.Sequential(inner, torch.nn.Linear(4, 4))
    model = FullyShardedDataParallel(layers, device_id=cpu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    del model, inner, optimizer
    gc.collect()


def meshed(rank: int, world: int, store: Any) -> None:
    """DTensors over a mesh of two dimensions, one of them with groups of one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("rows", "columns"))
    rows = mesh["rows"]
    sharded = distribute_tensor(torch.arange(16.0).reshape(4, 4), rows, [Shard(0)])
    whole = distribute_tensor(torch.eye(4), rows, [Replicate()])
    (sharded @ whole).full_tensor()
    sharded.redistribute(rows, [Shard(1)])
    sharded.redistribute(rows, [Replicate()])
    sharded.sum().full_tensor()
    local = torch.distributed.tensor.DTensor.from_local(torch.ones(4, 4), rows, [Partial()])
    local.redistribute(rows, [Shard(0)]).to_local()
    twice = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    twice.full_tensor()
    leaf = torch.ones(4, 4, requires_grad=True)
    distribute_tensor(leaf, rows, [Shard(0)]).full_tensor().sum().backward()
    dist.all_reduce(torch.ones(2), group=mesh.get_group("columns"))


def pipelined(rank: int, world: int, store: Any) -> None:
    """A pipeline with one stage on each rank: two schedules, two steps each."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    kinds, shapes = [ScheduleGPipe, Schedule1F1B], {}
    given = inspect.signature(PipelineStage).parameters["input_args"]
    if given.default is inspect.Parameter.empty:
        # Torch 2.5 does not find the shapes out, and its 1F1B hangs on gloo, without tracing too.
        kinds, shapes = [ScheduleGPipe], {"input_args": (torch.ones(2, 4),)}
    for kind in kinds:
        module = torch.nn.Linear(4, 4)
        stage = PipelineStage(module, rank, world, torch.device("cpu"), **shapes)
        schedule = kind(stage, 2, loss_fn=torch.nn.functional.mse_loss)
        for _ in range(2):
            if rank == 0:
                schedule.step(torch.ones(4, 4))
            else:
                schedule.step(target=torch.zeros(4, 4), losses=[])


if __name__ == "__main__":
    main([fully_sharded, meshed, pipelined])
