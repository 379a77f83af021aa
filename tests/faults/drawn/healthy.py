"""Programs that run well, composed of layers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from faults.drawn.frameworks import FRAMEWORKS
from faults.drawn.group_layers import (
    groups_in_steps,
    made_by_hand,
    other_thread,
    retried_wait,
    some_of_them,
    two_dimensions,
)
from faults.drawn.layer import Layer
from faults.drawn.layers import (
    branches,
    computing,
    data_parallel,
    equal_lines,
    logging_by_rank,
    objects,
    parameter_server,
    pipeline,
    ring,
)
from faults.drawn.program import BARE, COLLECTIVE, ENDING, SPAWN, STANDALONE, TORCHRUN, Program
from faults.drawn.store_layers import (
    listener,
    lock_in_store,
    polls_all_day,
    store_barrier,
    store_protocol,
    turns_in_store,
)

LAYERS: tuple[tuple[Callable[[random.Random, int], Layer], frozenset[int]], ...] = (
    (data_parallel, frozenset({2, 3, 4})), (two_dimensions, frozenset({4})),
    (some_of_them, frozenset({3, 4})), (pipeline, frozenset({2, 3, 4})),
    (ring, frozenset({2, 3, 4})), (parameter_server, frozenset({2, 3, 4})),
    (store_protocol, frozenset({2, 3, 4})), (store_barrier, frozenset({2, 3, 4})),
    (objects, frozenset({2, 3, 4})), (branches, frozenset({2, 3})),
    (branches, frozenset({2, 4})), (other_thread, frozenset({2, 3, 4})),
    (listener, frozenset({2, 3, 4})), (computing, frozenset({2, 3, 4})),
    (equal_lines, frozenset({2, 3, 4})), (equal_lines, frozenset({2, 3, 4})),
    (logging_by_rank, frozenset({2, 3, 4})), (made_by_hand, frozenset({2, 3, 4})),
    (lock_in_store, frozenset({2, 3})), (polls_all_day, frozenset({2, 3, 4})),
    (turns_in_store, frozenset({2, 3, 4})),
    (groups_in_steps, frozenset({2, 3, 4})), (retried_wait, frozenset({2, 3, 4})),
)  # fmt: skip


def _local(layer: Layer) -> bool:
    """Whether members make groups alone: torch names these by how many groups a process is in."""
    return any("use_local_synchronization=True" in act.template for act in layer.acts)


def compose(world: int, steps: int, layers: Sequence[Layer], launch: str = BARE) -> Program:
    """A program of these layers, one after the other in each step."""
    return Program(
        world=world, steps=steps, launch=launch,
        setup=tuple(line for layer in layers for line in layer.setup),
        body=tuple(act for layer in layers for act in layer.acts),
        ending=(*(line for layer in layers for line in layer.ending), *ENDING),
    )  # fmt: skip


def healthy(draw: random.Random, *, frameworks: bool = False) -> Program:
    """A program of one to three layers that runs well; ``frameworks``: of two ranks, one theirs."""
    world = 2 if frameworks else draw.choice((2, 3, 3, 4))
    fitting = [layer for layer, worlds in LAYERS if world in worlds]
    chosen = draw.sample(fitting, draw.randint(1, 2 if frameworks else 3))
    if frameworks:
        chosen.insert(draw.randint(0, len(chosen)), draw.choice(FRAMEWORKS))
    layers = [layer(draw, world) for layer in chosen]
    if some_of_them in chosen:
        layers = [one for one in layers if not _local(one)]
    if not any(act.kind == COLLECTIVE for layer in layers for act in layer.acts):
        layers.append(data_parallel(draw, world))
    launch = draw.choice((BARE,) * 12 + (SPAWN, TORCHRUN, STANDALONE))
    return compose(world, draw.randint(3, 12), layers, launch)
