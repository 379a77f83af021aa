"""Does memory grow with the operations of a process, or with how often it is traced?

Every method is called in turn; the resident memory after the first fifth is compared with that at
the end. Then tracing is installed and taken off again many times. The journal is bounded, and lies
on disk in files that are mapped a window at a time.

    python tests/reliability/growth.py --operations 10000000 --core c
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import disttrace

_ALLOWED_KIB = 4096  # what an allocator may hold on to; 10 million operations of a byte are more
_PAGE_KIB = 4
_ROUND = 200  # calls of one method before the next one's turn


def resident() -> int:
    """KiB that are this process's own: a mapped window of the journal is not."""
    gc.collect()
    with open("/proc/self/statm") as file:
        _, whole, shared, *_ = map(int, file.read().split())
    return (whole - shared) * _PAGE_KIB


def methods() -> dict[str, tuple[Callable[[int], object], int]]:
    """What is called, by name, and how many operations a call is."""
    tensor, gathered = torch.ones(4), torch.ones(8)
    store, group = dist.HashStore(), dist.group.WORLD
    functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    shapes = [torch.ones(n + 1) for n in range(3000)]

    def forgotten(n: int) -> None:
        dist.all_reduce(tensor, async_op=True)

    def refused(n: int) -> None:
        try:
            group.allreduce(None)
        except TypeError:
            pass

    def keyed(n: int) -> None:
        store.set(f"step/{n}", b"")
        store.delete_key(f"step/{n}")

    return {
        "all_reduce": (lambda n: dist.all_reduce(tensor), 1),
        "asynchronous": (lambda n: dist.all_reduce(tensor, async_op=True).wait(), 1),
        "forgotten": (forgotten, 1),
        "all_gather": (lambda n: dist.all_gather_into_tensor(gathered, tensor), 1),
        "shapes": (lambda n: dist.broadcast(shapes[n % len(shapes)], 0), 1),
        "barrier": (lambda n: dist.barrier(), 1),
        "send": (lambda n: dist.send(tensor, 1), 1),
        "refused": (refused, 1),
        "keys": (keyed, 2),
        "functional": (
            lambda n: functional.wait_tensor(functional.all_reduce(tensor, "sum", name)),
            1,
        ),
    }


def run(operations: int, core: str) -> int:
    """KiB that the last four fifths of so many operations added."""
    chosen, number, turn, first = methods(), 0, 0, 0
    while number < operations:
        for call, count in chosen.values():
            for n in range(turn * _ROUND, (turn + 1) * _ROUND):
                call(n)
            number += count * _ROUND
        turn += 1
        if not first and number >= operations // 5:
            first = resident()
            print(f"{number} operations: {first} KiB", flush=True)
    last = resident()
    print(f"{number} operations: {last} KiB", flush=True)
    return last - first


def reinstall(times: int, core: str) -> int:
    """KiB that the second half of so many installations added."""
    first = 0
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            disttrace.install(dir=folder, core=core)
            for call, _ in methods().values():
                call(number)
            disttrace.uninstall()
        if number == times // 2:
            first = resident()
    last = resident()
    print(f"{times} installations: {first} KiB after half, {last} KiB at the end", flush=True)
    return last - first


def main() -> int:
    """1 where memory grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000_000)
    parser.add_argument("--installations", type=int, default=100)
    parser.add_argument("--core", default="c")
    options = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with tempfile.TemporaryDirectory() as folder:
        disttrace.install(dir=folder, core=options.core, max_mb=64)
        grown = run(options.operations, options.core)
        disttrace.uninstall()
    again = reinstall(options.installations, options.core)
    print(f"grown by {grown} KiB; by {again} KiB over installations")
    return int(max(grown, again) > _ALLOWED_KIB)


if __name__ == "__main__":
    sys.exit(main())
