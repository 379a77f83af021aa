"""Programs that run well, composed of layers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from faults.drawn import group_layers, layers, store_layers
from faults.drawn.frameworks import FRAMEWORKS
from faults.drawn.layer import Layer
from faults.drawn.program import BARE, COLLECTIVE, ENDING, SPAWN, STANDALONE, TORCHRUN, Program

_ANY = frozenset({2, 3, 4})
LAYERS: tuple[tuple[Callable[[random.Random, int], Layer], frozenset[int]], ...] = (
    (layers.data_parallel, _ANY), (group_layers.two_dimensions, frozenset({4})),
    (group_layers.some_of_them, frozenset({3, 4})), (layers.pipeline, _ANY), (layers.ring, _ANY),
    (layers.parameter_server, _ANY), (store_layers.store_protocol, _ANY),
    (store_layers.store_barrier, _ANY), (layers.objects, _ANY),
    (layers.branches, frozenset({2, 3})), (layers.branches, frozenset({2, 4})),
    (group_layers.other_thread, _ANY), (store_layers.listener, _ANY), (layers.computing, _ANY),
    (layers.equal_lines, _ANY), (layers.equal_lines, _ANY), (layers.logging_by_rank, _ANY),
    (group_layers.made_by_hand, _ANY), (store_layers.lock_in_store, frozenset({2, 3})),
    (store_layers.polls_all_day, _ANY), (store_layers.turns_in_store, _ANY),
    (group_layers.groups_in_steps, _ANY), (group_layers.retried_wait, _ANY),
)  # fmt: skip


def _local(layer: Layer) -> bool:
    """Whether members make groups alone: torch names these by how many groups a process is in."""
    return any("use_local_synchronization=True" in act.template for act in layer.acts)


def compose(world: int, steps: int, parts: Sequence[Layer], launch: str = BARE) -> Program:
    """A program of these layers, one after the other in each step."""
    return Program(
        world=world, steps=steps, launch=launch,
        setup=tuple(line for layer in parts for line in layer.setup),
        body=tuple(act for layer in parts for act in layer.acts),
        ending=(*(line for layer in parts for line in layer.ending), *ENDING),
    )  # fmt: skip


def healthy(draw: random.Random, *, frameworks: bool = False) -> Program:
    """A program of one to three layers that runs well; ``frameworks``: of two ranks, one theirs."""
    world = 2 if frameworks else draw.choice((2, 3, 3, 4))
    fitting = [layer for layer, worlds in LAYERS if world in worlds]
    chosen = draw.sample(fitting, draw.randint(1, 2 if frameworks else 3))
    if frameworks:
        chosen.insert(draw.randint(0, len(chosen)), draw.choice(FRAMEWORKS))
    parts = [layer(draw, world) for layer in chosen]
    if group_layers.some_of_them in chosen:
        parts = [one for one in parts if not _local(one)]
    if not any(act.kind == COLLECTIVE for layer in parts for act in layer.acts):
        parts.append(layers.data_parallel(draw, world))
    launch = draw.choice((BARE,) * 12 + (SPAWN, TORCHRUN, STANDALONE))
    return compose(world, draw.randint(3, 12), parts, launch)
