"""Groups beside the world's: parts of it, of other threads, made by hand, of another library."""

from __future__ import annotations

import random

from faults.drawn.layer import Layer, together
from faults.drawn.layers import collective
from faults.drawn.program import CREATE


def two_dimensions(draw: random.Random, world: int) -> Layer:
    """Tensor and data parallel groups of a mesh of four."""
    setup = (
        "rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]",
        "columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]",
        "tensor_parallel, data_parallel = rows[rank // 2], columns[rank % 2]",
    )
    rows = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    columns = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}
    first = [collective(draw, rows, "tensor_parallel") for _ in range(draw.randint(1, 2))]
    return Layer(setup, (*first, collective(draw, columns, "data_parallel")))


def some_of_them(draw: random.Random, world: int) -> Layer:
    """A group without the first or the last rank, which goes on meanwhile."""
    ranks = tuple(range(world - 1)) if draw.random() < 0.5 else tuple(range(1, world))
    setup = (f"some = dist.new_group({list(ranks)})",)
    return Layer(setup, (collective(draw, dict.fromkeys(ranks, ranks), "some"),))


def other_thread(draw: random.Random, world: int) -> Layer:
    """A second thread communicates over a group of its own; the main thread waits for it."""
    size = draw.choice((4, 1024))
    template = f"pool.submit(dist.all_reduce, torch.ones({size}), group=beside).result()"
    return Layer(
        ("beside = dist.new_group()", "pool = ThreadPoolExecutor(1)"),
        (together(template, world),),
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
        (together("by_hand.allreduce([torch.ones(8)]).wait()", world),),
    )


def groups_in_steps(draw: random.Random, world: int) -> Layer:
    """A group is made in each step: by torch, by its members only, or by hand."""
    ranks = list(range(world))
    made = draw.choice(
        (
            "dist.new_group()",
            f"dist.new_group({ranks}, use_local_synchronization=True)",
            (
                "dist.ProcessGroupGloo(dist.PrefixStore(f'hand{{step}}', shared), rank,"
                f" {world}, timedelta(seconds=300))"
            ),
        )
    )
    return Layer(
        ("shared = dist.distributed_c10d._get_default_store()", "made = []"),
        (together(f"made.append({made})", world, CREATE),),
    )


def retried_wait(draw: random.Random, world: int) -> Layer:
    """A collective that is waited for a second at a time, as long as it takes."""
    return Layer(
        (
            "def reduce_patiently():",
            "    work = dist.all_reduce(torch.ones(4), async_op=True)",
            "    while True:",
            "        try: return work.wait(timedelta(seconds=1))",
            "        except RuntimeError as error: print(str(error)[:50])",
        ),
        (together("reduce_patiently()", world),),
    )
