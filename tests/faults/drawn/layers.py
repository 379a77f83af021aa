"""What healthy programs are made of: each layer gives set-up lines and acts of one step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from faults.drawn.frameworks import installed
from faults.drawn.layer import Layer
from faults.drawn.program import (
    BARE,
    COLLECTIVE,
    COMPUTE,
    COUNT,
    ENDING,
    EXCHANGE,
    GET,
    LOCK,
    RECV,
    SEND,
    SET,
    SPAWN,
    STANDALONE,
    TORCHRUN,
    UNLOCK,
    Act,
    Program,
)


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
        each = f"[{tensor} for _ in range(dist.get_world_size({{group}}))] if rank == {{root}}"
        templates["gather"] = (
            f"dist.gather({tensor}, {each} else None, dst={{root}}, group={{group}})"
        )
        templates["scatter"] = (
            f"dist.scatter({tensor}, {each} else None, src={{root}}, group={{group}})"
        )
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


def some_of_them(draw: random.Random, world: int) -> Layer:
    """A group without the first or the last rank, which goes on meanwhile."""
    ranks = tuple(range(world - 1)) if draw.random() < 0.5 else tuple(range(1, world))
    setup = (f"some = dist.new_group({list(ranks)})",)
    return Layer(setup, (_collective(draw, dict.fromkeys(ranks, ranks), "some"),))


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
    return Layer((), (Act(kind=EXCHANGE, template=template, members=_everybody(world)),))


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


def store_barrier(draw: random.Random, world: int) -> Layer:
    """Everybody counts up in a key of each step, and waits until all have: as people write it."""
    key = 'f"arrived/{step}"'
    count = f"store.add({key}, 1)"
    wait = draw.choice(
        (
            f"({count} == {world} and store.set({key} + '/go', '')) or store.wait([{key} + '/go'])",
            f"({count}, [time.sleep(0.02) for _ in iter(lambda: store.add({key}, 0), {world})])",
        )
    )
    return Layer(
        ("store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",),
        (
            Act(
                kind=COUNT,
                template=wait.replace("{", "{{").replace("}", "}}"),
                members=_everybody(world),
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


def sharded_model(draw: random.Random, world: int) -> Layer:
    """FSDP2: parameters are gathered before they are used, gradients scattered after."""
    width = draw.choice((8, 64))
    return Layer(
        (
            f"mesh = init_device_mesh('cpu', ({world},))",
            f"shards = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(2)])",
            "for part in (*shards, shards): fully_shard(part, mesh=mesh)",
        ),
        (
            Act(
                kind=COLLECTIVE,
                template=f"shards(torch.ones(2, {width})).sum().backward()",
                members=_everybody(world),
            ),
        ),
    )


def other_thread(draw: random.Random, world: int) -> Layer:
    """A second thread communicates over a group of its own; the main thread waits for it."""
    size = draw.choice((4, 1024))
    template = f"pool.submit(dist.all_reduce, torch.ones({size}), group=beside).result()"
    return Layer(
        ("beside = dist.new_group()", "pool = ThreadPoolExecutor(1)"),
        (Act(kind=COLLECTIVE, template=template, members=_everybody(world)),),
    )


def listener(draw: random.Random, world: int) -> Layer:
    """A thread that waits all day for a control message, beside whatever else is done.

    Over a connection of its own: a TCPStore serves one call at a time. It gets its message at the
    end, for torch aborts where a thread is in its C++ when the interpreter ends.
    """
    return Layer(
        (
            "shared = dist.distributed_c10d._get_default_store()",
            "control = dist.PrefixStore('control', shared.clone())",
            "def listen():",
            "    control.wait(['stop'], timedelta(hours=1))",
            "listening = threading.Thread(target=listen, daemon=True)",
            "listening.start()",
        ),
        (),
        ("dist.PrefixStore('control', shared).set('stop', '')", "listening.join()"),
    )


def equal_lines(draw: random.Random, world: int) -> Layer:
    """Several collectives of one shape from lines of their own: leaving one out hangs nobody."""
    size = draw.choice((4, 1024))
    names = ("grad", "norm", "loss")[: draw.randint(2, 3)]
    setup = [f"def {name}(): dist.all_reduce(torch.ones({size}))" for name in names]
    acts = [Act(kind=COLLECTIVE, template=f"{name}()", members=_everybody(world)) for name in names]
    return Layer(tuple(setup), tuple(acts))


def logging_by_rank(draw: random.Random, world: int) -> Layer:
    """Rank 0 takes part in a collective from a function of its own: that is meant."""
    return Layer(
        (
            "def log_first(): dist.all_reduce(torch.ones(2))",
            "def log_other(): dist.all_reduce(torch.ones(2))",
        ),
        (
            Act(
                kind=COLLECTIVE,
                template="(log_first if rank == 0 else log_other)()",
                members=_everybody(world),
            ),
        ),
    )


def made_by_hand(draw: random.Random, world: int) -> Layer:
    """A ProcessGroupGloo over the store, made without ``new_group``."""
    return Layer(
        (
            "shared = dist.distributed_c10d._get_default_store()",
            (
                "by_hand = dist.ProcessGroupGloo(dist.PrefixStore('by_hand', shared), rank,"
                f" {world}, timedelta(seconds=300))"
            ),
        ),
        (
            Act(
                kind=COLLECTIVE,
                template="by_hand.allreduce([torch.ones(8)]).wait()",
                members=_everybody(world),
            ),
        ),
    )


def lock_in_store(draw: random.Random, world: int) -> Layer:
    """Each rank takes a lock in the store in turn, and gives it back."""
    mine = "f'{rank}'"
    take = f"[time.sleep(0.02) for _ in iter(lambda: store.compare_set('lock', '', {mine})"
    return Layer(
        ("store = dist.PrefixStore('app', dist.distributed_c10d._get_default_store())",),
        (
            Act(
                kind=LOCK,
                template=(take + f", {mine}.encode())]").replace("{", "{{").replace("}", "}}"),
                members=_everybody(world),
            ),
            Act(kind=UNLOCK, template="store.delete_key('lock')", members=_everybody(world)),
        ),
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
    (some_of_them, frozenset({3, 4})),
    (pipeline, frozenset({2, 3, 4})),
    (ring, frozenset({2, 3, 4})),
    (parameter_server, frozenset({2, 3, 4})),
    (store_protocol, frozenset({2, 3, 4})),
    (store_barrier, frozenset({2, 3, 4})),
    (objects, frozenset({2, 3, 4})),
    (wrapped_model, frozenset({2, 3})),
    (sharded_model, frozenset({2, 4})),
    (other_thread, frozenset({2, 3, 4})),
    (listener, frozenset({2, 3, 4})),
    (computing, frozenset({2, 3, 4})),
    (equal_lines, frozenset({2, 3, 4})),
    (equal_lines, frozenset({2, 3, 4})),
    (logging_by_rank, frozenset({2, 3, 4})),
    (made_by_hand, frozenset({2, 3, 4})),
    (lock_in_store, frozenset({2, 3})),
)


def compose(world: int, steps: int, layers: Sequence[Layer], launch: str = BARE) -> Program:
    """A program of these layers, one after the other in each step."""
    return Program(
        world=world,
        steps=steps,
        launch=launch,
        setup=tuple(line for layer in layers for line in layer.setup),
        body=tuple(act for layer in layers for act in layer.acts),
        ending=(*(line for layer in layers for line in layer.ending), *ENDING),
    )


def healthy(draw: random.Random, *, frameworks: bool = False) -> Program:
    """A program that runs well, of one to three layers; some are launched as people launch.
    ``frameworks``: of two ranks, and one of its layers is a framework's.
    """
    world = 2 if frameworks else draw.choice((2, 3, 3, 4))
    fitting = [layer for layer, worlds in LAYERS if world in worlds]
    chosen = draw.sample(fitting, draw.randint(1, 2 if frameworks else 3))
    if frameworks:
        chosen.insert(draw.randint(0, len(chosen)), draw.choice(installed()))
    layers = [layer(draw, world) for layer in chosen]
    if not any(act.kind == COLLECTIVE for layer in layers for act in layer.acts):
        layers.append(data_parallel(draw, world))
    launch = draw.choice((BARE,) * 12 + (SPAWN, TORCHRUN, STANDALONE))
    return compose(world, draw.randint(3, 12), layers, launch)
