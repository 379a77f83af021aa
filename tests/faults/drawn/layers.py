"""What healthy programs communicate: each layer gives set-up lines and acts of one step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from faults.drawn.layer import Layer, everybody, together
from faults.drawn.program import COLLECTIVE, COMPUTE, EXCHANGE, RECV, SEND, Act


def collective(
    draw: random.Random, members: Mapping[int, tuple[int, ...]], group: str = "world"
) -> Act:
    """One collective; its tensors are made anew, so that a change of size changes nothing else."""
    size = str(draw.choice((4, 64, 1024, 30_000)))
    dtype = draw.choice(("float32", "float64", "int64"))
    tensor = "torch.ones({size}, dtype=torch.{dtype})"
    root = str(min(min(m) for m in members.values()))
    templates = {
        "all_reduce": f"dist.all_reduce({tensor}, op=dist.ReduceOp.{{reduce}}, group={{group}})",
        "async all_reduce": f"dist.all_reduce({tensor}, op=dist.ReduceOp.{{reduce}},"
        " group={group}, async_op=True).wait()",
        "all_gather": f"dist.all_gather([torch.empty({{size}}, dtype=torch.{{dtype}}) for _ in"
        f" range(dist.get_world_size({{group}}))], {tensor}, group={{group}})",
        "barrier": "dist.barrier(group={group})",
        "all_gather_into_tensor": "dist.all_gather_into_tensor(torch.empty({size} *"
        f" dist.get_world_size({{group}}), dtype=torch.{{dtype}}), {tensor}, group={{group}})",
        "reduce_scatter_tensor": "dist.reduce_scatter_tensor(torch.empty({size},"
        " dtype=torch.{dtype}), torch.ones({size} * dist.get_world_size({group}),"
        " dtype=torch.{dtype}), op=dist.ReduceOp.{reduce}, group={group})",
        "all_to_all_single": "dist.all_to_all_single(*[torch.ones({size} *"
        " dist.get_world_size({group}), dtype=torch.{dtype}) for _ in range(2)], group={group})",
        "functional all_reduce": f"functional.all_reduce({tensor}, '{{reduce}}'.lower(),"
        " {group}).sum().item()",
        "several all_reduce": f"[w.wait() for w in [dist.all_reduce({tensor}, op=dist.ReduceOp."
        "{reduce}, group={group}, async_op=True) for _ in range(3)]]",
    }
    fields = {"size": size, "dtype": dtype, "reduce": draw.choice(("SUM", "MAX")), "group": group}
    if len(set(members.values())) == 1:  # a root is one rank: not where the group varies
        templates["broadcast"] = f"dist.broadcast({tensor}, src={{root}}, group={{group}})"
        templates["reduce"] = f"dist.reduce({tensor}, dst={{root}}, group={{group}})"
        each = f"[{tensor} for _ in range(dist.get_world_size({{group}}))]"
        both = f"{tensor}, {each} if rank == {{root}} else None"
        templates["gather"] = f"dist.gather({both}, dst={{root}}, group={{group}})"
        templates["scatter"] = f"dist.scatter({both}, src={{root}}, group={{group}})"
        fields["root"] = root
    name = draw.choice(sorted(templates))
    return Act(kind=COLLECTIVE, template=templates[name], fields=fields, members=members)


def data_parallel(draw: random.Random, world: int) -> Layer:
    """Gradients are reduced over everybody."""
    members = everybody(world)
    acts = [collective(draw, members) for _ in range(draw.randint(1, 3))]
    return Layer((), tuple(acts))


def ring(draw: random.Random, world: int) -> Layer:
    """Everybody sends to the right and receives from the left, in one batch or one by one."""
    size = draw.choice((8, 512, 20_000))
    right, left = f"(rank + 1) % {world}", f"(rank - 1) % {world}"
    send, recv = f"torch.ones({size}), {right}", f"torch.empty({size}), {left}"
    works = draw.choice(
        (
            (
                f"dist.batch_isend_irecv([dist.P2POp(dist.isend, {send}),"
                f" dist.P2POp(dist.irecv, {recv})])"
            ),
            f"[dist.isend({send}), dist.irecv({recv})]",
        )
    )
    template = f"[work.wait() for work in {works}]"
    return Layer((), (together(template, world, EXCHANGE),))


def pipeline(draw: random.Random, world: int) -> Layer:
    """Activations go from rank to rank, gradients come back."""
    size, tag = str(draw.choice((8, 512, 20_000))), str(draw.choice((0, 0, 7)))
    send = "dist.send(torch.ones({size}), dst={peer}, tag={tag})"
    recv = "dist.recv(torch.empty({size}), src={peer}, tag={tag})"
    acts = []
    for pair in itertools.pairwise(range(world)):
        for kind, template, (rank, peer) in ((SEND, send, pair), (RECV, recv, pair[::-1])):
            fields = {"size": size, "tag": tag, "peer": str(peer)}
            acts.append(Act(kind=kind, template=template, fields=fields, members={rank: pair}))
    return Layer((), tuple(acts))


def parameter_server(draw: random.Random, world: int) -> Layer:
    """Rank 0 takes gradients from each worker in turn and answers."""
    size = str(draw.choice((16, 2048)))
    acts = []
    for worker in range(1, world):
        pair = (0, worker)
        for kind, rank, peer in (
            (SEND, worker, 0),
            (RECV, 0, worker),
            (SEND, 0, worker),
            (RECV, worker, 0),
        ):
            call, side = ("send", "dst") if kind == SEND else ("recv", "src")
            template = f"dist.{call}(torch.ones({{size}}), {side}={{peer}}, tag={{tag}})"
            fields = {"size": size, "tag": "0", "peer": str(peer)}
            acts.append(Act(kind=kind, template=template, fields=fields, members={rank: pair}))
    return Layer((), tuple(acts))


def objects(draw: random.Random, world: int) -> Layer:
    """Python objects by collectives made of several."""
    template = draw.choice(
        (
            "dist.broadcast_object_list([{{'step': step}}], src={root}, group={group})",
            "dist.all_gather_object([None] * dist.get_world_size(), rank, group={group})",
        )
    )
    return Layer((), (together(template, world, root="0", group="world"),))


def branches(draw: random.Random, world: int) -> Layer:
    """A model whose parts are used or not, in DDP or FSDP2."""
    shard = "fully_shard({}, mesh=init_device_mesh('cpu', (WORLD,)), ignored_params=ignored)"
    wrapped = draw.choice(
        (
            "torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-4)",
            "torch.nn.parallel.DistributedDataParallel(net)",
            shard.format("net"),
            f"[{shard.format('part')} for part in (*net.children(), net)][-1]",
        )
    ).replace("WORLD", str(world))
    return Layer(
        (
            "class Branches(torch.nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            "        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in 'abc')",
            "    def forward(self, x, off):",
            "        used = [getattr(self, n) for n in 'abc' if n != off]",
            "        return sum(one(x).sum() for one in used if one is not None)",
            NET,
            f"branches = {wrapped}",
        ),
        (together("[branches.zero_grad(), branches(torch.ones(1, 4), {off}).backward()]", world,
                  off="None"),),
    )  # fmt: skip


NET = "net, ignored = Branches(), set()"


def equal_lines(draw: random.Random, world: int) -> Layer:
    """Several collectives of one shape from lines of their own: leaving one out hangs nobody."""
    size = draw.choice((4, 1024))
    names = ("grad", "norm", "loss")[: draw.randint(2, 3)]
    setup = ["def reduce(tensor): dist.all_reduce(tensor)"]
    by = draw.choice(("dist.all_reduce", "reduce"))  # or one line of a helper
    setup += [f"def {name}(): {by}(torch.ones({size}))" for name in names]
    return Layer(tuple(setup), tuple(together(f"{name}()", world) for name in names))


def logging_by_rank(draw: random.Random, world: int) -> Layer:
    """Rank 0 takes part in a collective from a function of its own: that is meant."""
    return Layer(
        (
            "def log_first(): dist.all_reduce(torch.ones(2))",
            "def log_other(): dist.all_reduce(torch.ones(2))",
        ),
        (together("(log_first if rank == 0 else log_other)()", world),),
    )


def computing(draw: random.Random, world: int) -> Layer:
    """Work between communication."""
    members = {rank: (rank,) for rank in range(world)}
    ms = draw.choice((1, 5, 20))
    template = f"time.sleep({ms / 1000})"
    return Layer((), (Act(kind=COMPUTE, template=template, members=members),))
