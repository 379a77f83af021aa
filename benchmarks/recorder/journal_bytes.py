"""Bytes on disk per operation, counted in real journals."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recorder import child
from benchmarks.recorder.journalled import begins, sizes
from benchmarks.recorder.scale import Scale
from benchmarks.report import Report, Table, Verdict


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation and the bytes that one of them may take on disk, if there is a goal."""

    name: str
    limit: int | None


SYNCHRONOUS = Kind("synchronous", 100)
ASYNCHRONOUS = Kind("asynchronous", 160)
STORE = Kind("store, with its key", None)
FUNCTIONAL = Kind("issued from C++, waited for", 160)
KINDS = (SYNCHRONOUS, ASYNCHRONOUS, STORE, FUNCTIONAL)


def measure(scale: Scale) -> Report:
    """A journal of each kind, all of one process."""
    (found,) = child.measure(__name__, "in_child", {"operations": scale.journal_operations})
    rows, verdicts = [], []
    for kind in KINDS:
        begun, segments, definitions = found[kind.name]
        each = segments / begun if begun else 0.0
        complete = begun == scale.journal_operations
        rows.append((kind.name, f"{begun:,}", f"{each:.1f}" if begun else "-", f"{definitions:,}"))
        if kind.limit is not None:
            verdicts.append(
                Verdict(
                    f"Bytes per operation, {kind.name}: at most {kind.limit}",
                    f"{each:.1f}" if begun else "not recorded",
                    each <= kind.limit if complete else None,
                )
            )
    return Report(
        tables=(
            Table(
                "Bytes on disk",
                ("operations", "number", "bytes each", "bytes of definitions"),
                tuple(rows),
                "Segments by the number of operations; definitions are written once per place, "
                "so they do not grow with it.",
            ),
        ),
        verdicts=tuple(verdicts),
    )


def in_child(operations: int) -> dict[str, tuple[int, int, int]]:
    """(operations recorded, bytes of segments, bytes of definitions) of each kind."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import disttrace

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor, store = torch.ones(4), dist.HashStore()

    def synchronous(n: int) -> None:
        for _ in range(n):
            dist.all_reduce(tensor)

    def asynchronous(n: int) -> None:
        for _ in range(n):
            dist.all_reduce(tensor, async_op=True).wait()

    def store_set(n: int) -> None:
        for turn in range(n):
            store.set(f"step/{turn % 100}", "ready")

    def functional(n: int) -> None:
        import torch.distributed._functional_collectives  # announces the C++ issuer

        name = dist.group.WORLD.group_name
        ops = torch.ops._c10d_functional
        for _ in range(n):
            ops.wait_tensor(ops.all_reduce(tensor, "sum", name))

    loops: dict[str, Callable[[int], None]] = {
        SYNCHRONOUS.name: synchronous,
        ASYNCHRONOUS.name: asynchronous,
        STORE.name: store_set,
        FUNCTIONAL.name: functional,  # last: it brings the C++ issuer in
    }
    found: dict[str, tuple[int, int, int]] = {}
    for name, loop in loops.items():
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            disttrace.install(dir=folder)
            loop(operations)
            disttrace.uninstall()
            count: Any = begins(Path(folder))[loop.__name__]
            found[name] = (count, *sizes(Path(folder)))
    dist.destroy_process_group()
    return found
