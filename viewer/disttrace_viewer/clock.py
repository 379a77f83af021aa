"""Puts all processes on one time line: monotonic clocks of a boot become unix time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.columns import TIMES
from disttrace_viewer.model import Clock, Trace


@dataclass(frozen=True, slots=True)
class Anchor:
    """A monotonic reading and a unix time that were taken together."""

    monotonic_ns: int
    unix_ns: int
    error_ns: int


def from_anchors(boot_id: str, host: str, anchors: Iterable[Anchor]) -> Clock:
    """The clock of one boot from the anchors of all of its processes.

    Processes of one boot share the monotonic clock exactly, so they need one offset between them;
    the anchor that was read fastest is the best one. How far anchors differ tells how far the wall
    clock was corrected meanwhile, which shifts all of them alike.
    """
    ordered = sorted(anchors, key=lambda a: (a.error_ns, a.monotonic_ns))
    if not ordered:
        return Clock(boot_id=boot_id, host=host, offset_ns=0, error_ns=0)
    best = ordered[0]
    return Clock(
        boot_id=boot_id,
        host=host,
        offset_ns=best.unix_ns - best.monotonic_ns,
        error_ns=best.error_ns,
        origin_ns=best.monotonic_ns,
    )


def to_unix(clock: Clock, monotonic_ns: int) -> int:
    """Unix time of a monotonic reading."""
    drifted = round((monotonic_ns - clock.origin_ns) * clock.drift) if clock.drift else 0
    return monotonic_ns + clock.offset_ns - drifted


def realign(trace: Trace, clocks: tuple[Clock, ...]) -> Trace:
    """The same operations under other clocks (same order and length as ``trace.clocks``)."""
    of_process = [p.clock for p in trace.processes]
    changed = [new != old for new, old in zip(clocks, trace.clocks, strict=True)]
    if not any(changed):
        return trace
    table = pl.DataFrame(
        {
            "process": pl.Series(range(len(of_process)), dtype=pl.UInt32),
            "old": [trace.clocks[c].offset_ns for c in of_process],
            "new": [clocks[c].offset_ns for c in of_process],
            "origin": [clocks[c].origin_ns for c in of_process],
            "drift": [clocks[c].drift for c in of_process],
        }
    )
    moved = trace.operations.lazy().join(table.lazy(), on="process", maintain_order="left")
    monotonic = {name: pl.col(name) - pl.col("old") for name in TIMES}
    moved = moved.with_columns(
        (
            m + pl.col("new") - ((m - pl.col("origin")) * pl.col("drift")).round().cast(pl.Int64)
        ).alias(name)
        for name, m in monotonic.items()
    )
    operations = (
        moved.select(trace.operations.columns).sort("begin_ns", "process", "number").collect()
    )
    return trace.replace(operations=operations, clocks=clocks)
