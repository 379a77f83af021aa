"""Where the time of a job goes, as three tables: by operation, by rank, by who made others wait.

Sums are over ranks: a job of eight ranks that ran ten seconds has eighty seconds of wall time, and
what its ranks communicated, waited and did outside adds up to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from disttrace_viewer.analysis.timing.bandwidth import DEVICE, HOST, by_device, with_shapes
from disttrace_viewer.analysis.timing.wait_states import (
    REMARKABLE,
    STATES,
    WaitStates,
    weighted_mean,
)
from disttrace_viewer.trace.model import Group

KEYS = ("op", "group", "line")
FAMILY = "family"
"""A further key: groups of one description (the tp groups of a mesh) are one family."""
P99 = 0.99
NEVER = "never completed"
"""A state beside Scalasca's: waiting in an exchange that never was over."""


@dataclass(frozen=True)
class Statistics:
    """Tables over the parts that processes take in exchanges."""

    waits: WaitStates
    lines: pl.DataFrame
    """``call``, ``line`` (``file:line`` of the user's frame, or null)."""

    def by(self, keys: Sequence[str]) -> pl.DataFrame:
        """One row per value of ``keys`` (``op``, ``group``: index, ``line``, ``family``: the name
        under which a person knows the group), longest first.

        ``calls`` and ``bytes`` of all ranks; ``total_ns``, ``median_ns``, ``p99_ns`` and ``max_ns``
        of begin to end; ``waiting_ns``, of which ``never_completed_ns`` was for
        what never completed; ``last_to_arrive``: (process, count) of exchanges of more
        than one that a process was the last to begin, most first; ``algbw`` and ``busbw``: bytes
        per second from the last arrival on, over all that ended; ``clock``: the one that this time
        is of, ``device`` where the backend measured all of them, else ``host``.
        """
        keys = list(keys)
        duration = pl.col("end_ns") - pl.col("begin_ns")
        rows = self._parts.filter(self._inside).with_columns(_duration=duration)
        over = ~pl.col("in_flight") & pl.col("busy_ns").is_not_null()
        seconds = pl.col("busy_ns").filter(over & pl.col("_moved").is_not_null()).sum() / 1e9
        moved = pl.col("_moved").filter(over)
        bus = (pl.col("_moved") * pl.col("_factor")).filter(over)
        table = rows.group_by(keys, maintain_order=True).agg(
            pl.len().alias("calls"),
            pl.col("bytes").sum(),
            pl.col("_duration").sum().alias("total_ns"),
            pl.col("_duration").median().round().cast(pl.Int64).alias("median_ns"),
            pl.col("_duration").quantile(P99, "nearest").cast(pl.Int64).alias("p99_ns"),
            pl.col("_duration").max().alias("max_ns"),
            pl.col("wait_ns").sum().alias("waiting_ns"),
            pl.col("never_ns").sum().alias("never_completed_ns"),
            pl.when(seconds > 0).then(moved.sum() / seconds).alias("algbw"),
            pl.when(seconds > 0).then(bus.sum() / seconds).alias("busbw"),
            pl.when((pl.col("clock").filter(over) == DEVICE).all())
            .then(pl.lit(DEVICE))
            .otherwise(pl.lit(HOST))
            .alias("clock"),
        )
        last = (
            rows.filter("is_last")
            .group_by(*keys, "process")
            .agg(pl.len().alias("count"))
            .sort("count", "process", descending=[True, False])
            .group_by(keys, maintain_order=True)
            .agg(pl.struct("process", "count").alias("last_to_arrive"))
        )
        return (
            table.join(last, on=keys, how="left", nulls_equal=True, maintain_order="left")
            .with_columns(pl.col("algbw", "busbw").replace(0.0, None))
            .with_columns(clock=pl.when(pl.col("algbw").is_not_null()).then("clock"))
            .sort("total_ns", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
            .collect()
        )

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """One row per process that has a rank or communicates: ``process``, ``wall_ns`` (its life),
        ``communicating_ns``, ``waiting_ns``, ``outside_ns``, ``made_others_wait_ns``,
        ``never_completed_ns``.
        """
        parts = self._parts
        mine = parts.group_by("process").agg(
            pl.col("blocked_ns").sum().alias("communicating_ns"),
            pl.col("wait_ns").sum().alias("waiting_ns"),
            pl.col("never_ns").sum().alias("never_completed_ns"),
        )
        caused = (
            parts.filter(pl.col("by") != pl.col("process"))
            .group_by(pl.col("by").alias("process"))
            .agg(pl.col("wait_ns").sum().alias("made_others_wait_ns"))
        )
        ranked = [p.index for p in self.waits.exchanges.trace.processes if p.rank is not None]
        none = pl.col("process").is_in(ranked) | pl.col("communicating_ns").is_not_null()
        return (
            self.waits.lives.lazy()
            .select("process", (pl.col("to_ns") - pl.col("from_ns")).alias("wall_ns"))
            .join(mine, on="process", how="left", maintain_order="left")
            .join(caused, on="process", how="left", maintain_order="left")
            .filter(none)
            .with_columns(pl.exclude("process").fill_null(0))
            .with_columns(outside_ns=pl.col("wall_ns") - pl.col("communicating_ns"))
            .select(
                "process",
                "wall_ns",
                "communicating_ns",
                "waiting_ns",
                "outside_ns",
                "made_others_wait_ns",
                "never_completed_ns",
            )
            .collect()
        )

    @cached_property
    def origins(self) -> pl.DataFrame:
        """Before which line the time went, largest ``caused_ns`` first: ``process``, ``line``,
        ``count`` (exchanges it was late to by its own doing) ``of`` all of it at that line,
        ``mean_ns`` (by how much) and ``caused_ns`` (what others waited for it, summed).
        """
        lines = self.lines.lazy()
        key = ["process", "line"]
        late = self.waits.delays.lazy().join(lines, on="call", how="left")
        late = late.filter(
            pl.col("delay_ns") >= REMARKABLE * weighted_mean(pl.col("delay_ns")).over(key)
        )
        of = self._parts.group_by(key).agg(pl.len().alias("of"))
        return (
            late.group_by(key, maintain_order=True)
            .agg(
                pl.len().alias("count"),
                pl.col("delay_ns").mean().round().cast(pl.Int64).alias("mean_ns"),
                pl.col("caused_ns").sum(),
            )
            .join(of, on=key, how="left", nulls_equal=True, maintain_order="left")
            .filter(pl.col("caused_ns") > 0)
            .sort("caused_ns", "process", "line", descending=[True, False, False])
            .select("process", "line", "count", "of", "mean_ns", "caused_ns")
            .collect()
        )

    @cached_property
    def states(self) -> pl.DataFrame:
        """``state``, ``count``, ``time_ns``: wait states in Scalasca's words, the exchange of data
        itself, and the time outside of communication. They add up to the wall time.
        """
        waits = (
            self._parts.filter(pl.col("wait_ns") > 0)
            .group_by("state")
            .agg(
                pl.len().alias("count"),
                (pl.col("wait_ns") - pl.col("never_ns")).sum().alias("time_ns"),
            )
            .filter(pl.col("time_ns") > 0)
            .collect()
        )
        known = {state: (count, time) for state, count, time in waits.iter_rows()}
        sums = self.ranks.select(pl.exclude("process").sum()).row(0, named=True)
        exchanged = sums["communicating_ns"] - sums["waiting_ns"]
        rows = [(state, *known[state]) for state in STATES if state in known]
        never = self.waits.parts.filter(pl.col("never_ns") > 0)
        if never.height:
            rows.append((NEVER, never.height, self.never_completed_ns))
        rows.append(("exchange", self.waits.parts.height, exchanged))
        rows.append(("outside communication", None, sums["outside_ns"]))
        return pl.DataFrame(
            rows,
            schema={"state": pl.String, "count": pl.Int64, "time_ns": pl.Int64},
            orient="row",
        )

    @cached_property
    def never_completed_ns(self) -> int:
        """What was waited for members that never came, or in what ended in an error."""
        return int(self.waits.parts["never_ns"].sum())

    @property
    def _inside(self) -> pl.Expr:
        """Begun within the window: what reaches into it counts with its time only."""
        low = self.waits.from_ns
        return pl.lit(value=True) if low is None else pl.col("begin_ns") >= low

    @cached_property
    def _families(self) -> pl.LazyFrame:
        groups = self.waits.exchanges.trace.groups
        names = [_family(group) for group in groups]
        return pl.LazyFrame(
            {"group": [g.index for g in groups], FAMILY: names},
            schema={"group": pl.UInt32, FAMILY: pl.String},
        )

    @cached_property
    def _parts(self) -> pl.LazyFrame:
        rows = self.waits.parts.lazy().join(self.lines.lazy(), on="call", how="left")
        rows = by_device(rows, self.waits.exchanges.trace.completions)
        rows = rows.join(self._families, on="group", how="left", maintain_order="left")
        return with_shapes(rows)


def _family(group: Group) -> str:
    if group.default:
        return "default"
    if group.desc and group.desc != "undefined" and "0x" not in group.desc:
        return group.desc
    if group.ranks is not None and len(group.ranks) <= 4:
        return f"[{', '.join(map(str, group.ranks))}]"
    return group.name or f"group {group.id[:6]}"
