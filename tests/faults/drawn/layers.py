"""What healthy programs are made of: each layer gives set-up lines and acts of one step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from faults.drawn.program import (
    BARE,
    COLLECTIVE,
    COMPUTE,
    GET,
    RECV,
    SEND,
    SET,
    SPAWN,
    STANDALONE,
    TORCHRUN,
    Act,
    Program,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Lines before the loop, and acts inside it."""

    setup: tuple[str, ...]
    acts: tuple[Act, ...]


def _everybody(world: int) -> dict[int, tuple[int, ...]]:
    return {rank: tuple(range(world)) for rank in range(world)}


def _collective(
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
    }
    fields = {"size": size, "dtype": dtype, "reduce": draw.choice(("SUM", "MAX")), "group": group}
    if len(set(members.values())) == 1:  # a root is one rank: not where the group varies
        templates["broadcast"] = f"dist.broadcast({tensor}, src={{root}}, group={{group}})"
        templates["reduce"] = f"dist.reduce({tensor}, dst={{root}}, group={{group}})"
        fields["root"] = root
    name = draw.choice(sorted(templates))
    return Act(kind=COLLECTIVE, template=templates[name], fields=fields, members=members)


def data_parallel(draw: random.Random, world: int) -> Layer:
    """Gradients are reduced over everybody."""
    members = _everybody(world)
    acts = [_collective(draw, members) for _ in range(draw.randint(1, 3))]
    return Layer((), tuple(acts))


def two_dimensions(draw: random.Random, world: int) -> Layer:
    """Tensor and data parallel groups of a mesh of four."""
    setup = (
        "rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]",
        "columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]",
        "tensor_parallel, data_parallel = rows[rank // 2], columns[rank % 2]",
    )
    rows = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    columns = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}
    first = [_collective(draw, rows, "tensor_parallel") for _ in range(draw.randint(1, 2))]
    return Layer(setup, (*first, _collective(draw, columns, "data_parallel")))


def pipeline(draw: random.Random, world: int) -> Layer:
    """Activations go from rank to rank, gradients come back."""
    size, tag = str(draw.choice((8, 512, 20_000))), str(draw.choice((0, 0, 7)))
    send = "dist.send(torch.ones({size}), dst={peer}, tag={tag})"
    recv = "dist.recv(torch.empty({size}), src={peer}, tag={tag})"
    acts = []
    for one in range(world - 1):
        for source, sink in ((one, one + 1),):
            fields = {"size": size, "tag": tag}
            pair = (source, sink)
            acts += [
                Act(
                    kind=SEND,
                    template=send,
                    fields={**fields, "peer": str(sink)},
                    members={source: pair},
                ),
                Act(
                    kind=RECV,
                    template=recv,
                    fields={**fields, "peer": str(source)},
                    members={sink: pair},
                ),
            ]
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
            name = "send" if kind == SEND else "recv"
            side = "dst" if kind == SEND else "src"
            acts.append(
                Act(
                    kind=kind,
                    template=f"dist.{name}(torch.ones({{size}}), {side}={{peer}}, tag={{tag}})",
                    fields={"size": size, "tag": "0", "peer": str(peer)},
                    members={rank: pair},
                )
            )
    return Layer((), tuple(acts))


def store_protocol(draw: random.Random, world: int) -> Layer:
    """One rank publishes a key in each step, and the others wait for it."""
    writer = draw.randrange(world)
    everybody = tuple(range(world))
    others = {rank: everybody for rank in range(world) if rank != writer}
    key = 'f"{name}/{{step}}"'
    return Layer(
        ("store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",),
        (
            Act(
                kind=SET,
                template=f"store.set({key}, 'done')",
                fields={"name": "checkpoint"},
                members={writer: everybody},
            ),
            Act(
                kind=GET,
                template=f"store.get({key})",
                fields={"name": "checkpoint"},
                members=others,
            ),
        ),
    )


def objects(draw: random.Random, world: int) -> Layer:
    """Python objects by collectives made of several."""
    members = _everybody(world)
    template = draw.choice(
        (
            "dist.broadcast_object_list([{{'step': step}}], src={root}, group={group})",
            "dist.all_gather_object([None] * dist.get_world_size(), rank, group={group})",
        )
    )
    fields = {"root": "0", "group": "world"}
    return Layer((), (Act(kind=COLLECTIVE, template=template, fields=fields, members=members),))


def wrapped_model(draw: random.Random, world: int) -> Layer:
    """DistributedDataParallel: C++ issues the reductions."""
    width = draw.choice((4, 128))
    return Layer(
        (f"model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear({width}, {width}))",),
        (
            Act(
                kind=COLLECTIVE,
                template=f"model(torch.ones(2, {width})).sum().backward()",
                members=_everybody(world),
            ),
        ),
    )


def listener(draw: random.Random, world: int) -> Layer:
    """A thread that waits all day for a control message, beside whatever else is done.

    Over a connection of its own: a TCPStore serves one call at a time.
    """
    return Layer(
        (
            "shared = dist.distributed_c10d._get_default_store()",
            "control = dist.PrefixStore('control', shared.clone())",
            "def listen():",
            "    try:",
            "        control.wait(['stop'], timedelta(hours=1))",
            "    except Exception:",
            "        pass  # the store goes away at the end",
            "threading.Thread(target=listen, daemon=True).start()",
        ),
        (),
    )


def computing(draw: random.Random, world: int) -> Layer:
    """Work between communication."""
    members = {rank: (rank,) for rank in range(world)}
    ms = draw.choice((1, 5, 20))
    template = f"time.sleep({ms / 1000})"
    return Layer((), (Act(kind=COMPUTE, template=template, members=members),))


LAYERS: tuple[tuple[Callable[[random.Random, int], Layer], frozenset[int]], ...] = (
    (data_parallel, frozenset({2, 3, 4})),
    (two_dimensions, frozenset({4})),
    (pipeline, frozenset({2, 3, 4})),
    (parameter_server, frozenset({2, 3, 4})),
    (store_protocol, frozenset({2, 3, 4})),
    (objects, frozenset({2, 3, 4})),
    (wrapped_model, frozenset({2, 3})),
    (listener, frozenset({2, 3, 4})),
    (computing, frozenset({2, 3, 4})),
)


def compose(world: int, steps: int, layers: Sequence[Layer], launch: str = BARE) -> Program:
    """A program of these layers, one after the other in each step."""
    return Program(
        world=world,
        steps=steps,
        launch=launch,
        setup=tuple(line for layer in layers for line in layer.setup),
        body=tuple(act for layer in layers for act in layer.acts),
    )


def healthy(draw: random.Random) -> Program:
    """A program that runs well, of one to three layers; some are launched as people launch."""
    world = draw.choice((2, 3, 3, 4))
    fitting = [layer for layer, worlds in LAYERS if world in worlds]
    chosen = draw.sample(fitting, draw.randint(1, 3))
    layers = [layer(draw, world) for layer in chosen]
    if not any(act.kind == COLLECTIVE for layer in layers for act in layer.acts):
        layers.append(data_parallel(draw, world))
    launch = draw.choice((BARE,) * 12 + (SPAWN, TORCHRUN, STANDALONE))
    return compose(world, draw.randint(3, 12), layers, launch)
