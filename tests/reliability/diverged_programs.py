"""What ``diverged.py`` runs: python diverged_programs.py KIND SECONDS [SEED RANK STEP].

Of ``mutated.NAME`` one rank does something else in one step; each rank notes on stderr when it came
there. The others are healthy, though their ranks do not do the same things.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
LINGER_S = 4.0
"""A rank whose call raised stays for so long: who is gone says nothing."""


def grads(n: int = 8, dtype: torch.dtype = torch.float32, op: dist.ReduceOp = SUM) -> None:
    """The call that is mutated."""
    dist.all_reduce(torch.ones(n, dtype=dtype), op=op)


def norm() -> None:
    """A neighbour that looks alike."""
    dist.all_reduce(torch.ones(8))


def loss() -> None:
    dist.all_reduce(torch.ones(8))


def root(source: int = 0) -> None:
    dist.broadcast(torch.ones(8), source)


def mutated(name: str, seconds: float, seed: int, odd: int, at: int) -> None:
    """Steps of a drawn number of calls that look alike."""
    draw = random.Random(seed)
    body: list[Callable[[], None]] = [grads, *draw.choices([norm, loss], k=draw.randrange(2, 5))]
    body += [root] * (name == "root" or draw.random() < 0.2)
    pause = draw.choice([0.002, 0.01, 0.05])
    until = time.monotonic() + seconds
    step = 0
    while time.monotonic() < until or step <= at:
        step += 1
        wrong = step == at and dist.get_rank() == odd
        if step == at:
            print(f"MUTATED {time.time()}", file=sys.stderr, flush=True)
        calls = list(body)
        if wrong:
            other: dict[str, list[Callable[[], None]]] = {
                "skip": [], "double": [grads, grads], "shape": [lambda: grads(n=12)],
                "dtype": [lambda: grads(dtype=torch.float64)],
                "op": [lambda: dist.broadcast(torch.ones(8), 0)], "reduce": [lambda: grads(op=MAX)],
            }  # fmt: skip
            calls = other.get(name, [grads]) + calls[1:]
            if name == "swap":
                calls[0], calls[1] = calls[1], calls[0]
            if name == "root":
                calls = [(lambda: root(1)) if call is root else call for call in calls]
        for call in calls:
            call()
        time.sleep(pause)


def ddp(until: float) -> None:
    """Two models in turn, as of a GAN, and a rank that logs by a line of its own."""
    made = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
    models = [torch.nn.parallel.DistributedDataParallel(one) for one in made]
    step = 0
    while running(until):
        step += 1
        model = models[step % 3 == 0]
        total = model(torch.randn(4, 64)).sum()
        total.backward()
        if dist.get_rank() == 0:
            shown = total.detach()
            dist.all_reduce(shown)
        else:
            dist.all_reduce(total.detach())
        if step % 50 == 0:
            if dist.get_rank() == 0:
                dist.broadcast_object_list([{"checkpoint": step}], 0)
            else:
                dist.broadcast_object_list([None], 0)


def tensors(until: float) -> None:
    """Functional collectives, as tensor parallel layers make them."""
    group = dist.new_group(list(range(dist.get_world_size())))
    while running(until):
        for _ in range(3):
            one = functional.all_reduce(torch.ones(16), "sum", group)
            functional.wait_tensor(one)
            gathered = functional.all_gather_tensor(torch.ones(4, 4), 0, group)
            functional.wait_tensor(gathered)


def stages(until: float) -> None:
    """A pipeline: who is first, last or between sends by lines of its own."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    while running(until):
        x = torch.ones(8)
        for _ in range(2):
            if rank:
                dist.recv(x, rank - 1)
            if rank < last:
                dist.send(x, rank + 1)
        if rank == last:
            dist.broadcast(x, last)
        else:
            dist.broadcast(torch.empty(8), last)


def experts(until: float) -> None:
    """Rows that are routed anew in each step, and ranks that gather by lines of their own."""
    rank, world = dist.get_rank(), dist.get_world_size()
    draw = random.Random(rank)
    while running(until):
        given = [draw.randrange(1, 9) for _ in range(world)]
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
        dist.all_to_all_single(taken := torch.zeros(world, dtype=torch.long), torch.tensor(given))
        rows = taken.tolist()
        dist.all_to_all_single(torch.empty(sum(rows)), torch.ones(sum(given)), rows, given)
        dist.all_gather(sizes, torch.tensor([sum(rows)]))
        if rank == 0:
            dist.gather(torch.ones(4), [torch.empty(4) for _ in range(world)], 0)
        else:
            dist.gather(torch.ones(4), None, 0)


def roles(until: float) -> None:
    """Ranks that come to one call by other lines now and then, without a pattern."""
    draw = random.Random(dist.get_rank())
    other = [norm, loss]
    while running(until):
        grads()
        draw.choice(other)()
        if dist.get_rank() == 0:
            norm()
        else:
            loss()


def turns(until: float) -> None:
    """Each parameter has an owner and each step a leader, which call from lines of their own."""
    rank, world, step = dist.get_rank(), dist.get_world_size(), 0
    while running(until):
        for number in range(5):
            if number % world == rank:
                dist.broadcast(torch.ones(8), number % world)
            else:
                dist.broadcast(torch.empty(8), number % world)
        if step % world == rank:
            norm()
        else:
            loss()
        step += 1


def uneven(until: float) -> None:
    """DDP whose ranks have other numbers of batches in each epoch, under ``Join``."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    draw = random.Random(dist.get_rank())
    while running(until):
        with Join([model]):
            for _ in range(draw.randint(3, 12)):
                model(torch.ones(2, 8)).sum().backward()
        loss()


def sharded(until: float) -> None:
    """FSDP2 with a clipped norm, and a rank that writes down the loss by a line of its own."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while running(until):
        loss = model(torch.randn(4, 32)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            dist.reduce(loss.detach(), 0)
        else:
            dist.reduce(loss.detach(), 0)


def parallel(until: float) -> None:
    """Tensor parallel layers of torch."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    torch.manual_seed(1)
    while running(until):
        model(torch.randn(4, 24)).sum().backward()


def schedule(until: float) -> None:
    """1F1B of torch, as many microbatches as twice the stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(torch.nn.Linear(8, 8), rank, world, torch.device("cpu"))
    steps = Schedule1F1B(stage, 2 * world, loss_fn=torch.nn.functional.mse_loss)
    while running(until):
        if rank == 0:
            steps.step(torch.ones(4 * world, 8))
        else:
            steps.step(target=torch.zeros(4 * world, 8), losses=[])
        total = torch.ones(1)
        dist.all_reduce(total)


def accelerated(until: float) -> None:
    """What accelerate makes of DDP, and gathers for metrics."""
    Accelerator = importlib.import_module("accelerate").Accelerator  # noqa: N806 - a class

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    step = 0
    while running(until):
        step += 1
        loss = model(torch.randn(4, 16)).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.gather_for_metrics(loss.detach())
        if step % 50 == 0:
            with accelerator.main_process_first():
                accelerator.wait_for_everyone()


def running(until: float) -> bool:
    """Whether there is another step, which all ranks know at the same time."""
    goes_on = torch.tensor([time.monotonic() < until])
    dist.broadcast(goes_on, 0)
    return bool(goes_on)


HEALTHY = {
    "ddp": ddp, "sharded": sharded, "tensors": tensors, "parallel": parallel, "stages": stages,
    "schedule": schedule, "experts": experts, "roles": roles, "turns": turns, "uneven": uneven,
}  # fmt: skip
FRAMEWORKS = {"accelerated": accelerated}
"""What needs a package that the project does not."""
MUTATIONS = ("skip", "double", "swap", "shape", "dtype", "op", "root", "reduce")


def main(kind: str, seconds: str, *numbers: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    known = {**HEALTHY, **FRAMEWORKS}
    if kind in known:
        known[kind](time.monotonic() + float(seconds))
    else:
        try:
            mutated(kind, float(seconds), *map(int, numbers))
        except RuntimeError:
            time.sleep(LINGER_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
