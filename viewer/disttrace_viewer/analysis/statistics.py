"""Where the time of a job goes, as three tables: by operation, by rank, by who made others wait.

Sums are over ranks: a job of eight ranks that ran ten seconds has eighty seconds of wall time, and
what its ranks communicated, waited and did outside adds up to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import polars as pl

from disttrace_viewer.analysis.delays import own_delays
from disttrace_viewer.analysis.wait_states import (
    REMARKABLE,
    STATES,
    WaitStates,
    exclusive,
    stretches,
    weighted_mean,
)
from disttrace_viewer.trace.model import Group
from disttrace_viewer.trace.operation import on_bus
from disttrace_viewer.trace.values import dataclass

HOST, DEVICE = "host", "device"
"""Which clock a bandwidth comes from: begins and ends as they were seen, or the backend's own."""


def by_device(parts: pl.LazyFrame, completions: pl.DataFrame) -> pl.LazyFrame:
    """``parts`` of exchanges with ``busy_ns`` of the device's clock where all members have one.

    A device's time of a collective includes its waiting for the others, so that of the member who
    waited least counts: the last to come. ``clock`` states which one it is.
    """
    if not completions["device_ns"].count():  # queried of each exchange it takes half of ``stats``
        return parts.with_columns(clock=pl.lit(HOST))
    own = completions.lazy().select("process", "number", "device_ns")
    device = pl.col("device_ns")
    whole = device.is_not_null().all().over("kind", "exchange") & (device.min() > 0).over(
        "kind", "exchange"
    )
    return (
        parts.join(own, on=["process", "number"], how="left", maintain_order="left")
        .with_columns(
            busy_ns=pl.when(whole).then(device.min().over("kind", "exchange")).otherwise("busy_ns"),
            clock=pl.when(whole).then(pl.lit(DEVICE)).otherwise(pl.lit(HOST)),
        )
        .drop("device_ns")
    )


def with_shapes(rows: pl.LazyFrame) -> pl.LazyFrame:
    """``rows`` (with ``op``, ``bytes``, ``expected``, ``is_root``) and what nccl-tests divide by
    the time: ``_moved`` (S in bytes) and ``_factor`` of the bus; null where none is defined.
    """
    keys = ["op", "expected", "is_root"]
    known = []
    for op, size, root in rows.select(keys).unique().collect().iter_rows():
        shape = on_bus((op or "").removesuffix("_coalesced"), size, root=bool(root))
        if shape is not None:
            known.append((op, size, root, *map(float, shape)))
    table = pl.LazyFrame(
        known,
        schema={
            "op": pl.String,
            "expected": pl.UInt32,
            "is_root": pl.Boolean,
            "_scale": pl.Float64,
            "_factor": pl.Float64,
        },
        orient="row",
    )
    return rows.join(
        table, on=keys, how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(_moved=pl.col("bytes") * pl.col("_scale"))


KEYS = ("op", "group", "line")
FAMILY = "family"
"""A further key: groups of one description (the tp groups of a mesh) are one family."""
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
        # What reaches into the window counts with its time only.
        low = self.waits.from_ns
        begun = pl.lit(value=True) if low is None else pl.col("begin_ns") >= low
        rows = self._parts.filter(begun).with_columns(_duration=duration)
        over = ~pl.col("in_flight") & pl.col("busy_ns").is_not_null()
        seconds = pl.col("busy_ns").filter(over & pl.col("_moved").is_not_null()).sum() / 1e9
        moved = pl.col("_moved").filter(over)
        bus = (pl.col("_moved") * pl.col("_factor")).filter(over)
        table = rows.group_by(keys, maintain_order=True).agg(
            pl.len().alias("calls"),
            pl.col("bytes").sum(),
            pl.col("_duration").sum().alias("total_ns"),
            pl.col("_duration").median().round().cast(pl.Int64).alias("median_ns"),
            pl.col("_duration").quantile(0.99, "nearest").cast(pl.Int64).alias("p99_ns"),
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
            rows.filter(pl.col("is_last") & ~pl.col("never"))
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
        late = parts.filter((pl.col("by") != pl.col("process")) & ~pl.col("never"))
        caused = (
            pl.concat([late.select("by", "wait_ns"), self._never.lazy()])
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
        ``mean_ns`` (by how much) and ``caused_ns`` (what others waited for it, summed). First what
        never completed: by culprit of the findings and its line, or by none; ``mean_ns`` is null.
        """
        lines = self.lines.lazy()
        key = ["process", "line"]
        low, high = pl.lit(self.waits.from_ns, pl.Int64), pl.lit(self.waits.to_ns, pl.Int64)
        late = (
            own_delays(self.waits.exchanges)
            .filter((pl.col("begin_ns") >= low).fill_null(value=True))
            .filter((pl.col("begin_ns") < high).fill_null(value=True))
            .join(lines, on="call", how="left")
        )
        late = late.filter(
            pl.col("delay_ns") >= REMARKABLE * weighted_mean(pl.col("delay_ns")).over(key)
        )
        of = self._parts.group_by(key).agg(pl.len().alias("of"))
        where = self.waits.blame.lines
        never = self._never.select(
            process="by",
            line=pl.Series([where.get(by) for by in self._never["by"]], dtype=pl.String),
            count=pl.lit(1, pl.UInt32),
            of=pl.lit(1, pl.UInt32),
            mean_ns=pl.lit(None, pl.Int64),
            caused_ns="wait_ns",
        )
        lately = (
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
        return pl.concat([never, lately])

    @cached_property
    def _never(self) -> pl.DataFrame:
        rows = [*self.waits.never.items()]
        return pl.DataFrame(rows, schema={"by": pl.UInt32, "wait_ns": pl.Int64}, orient="row")

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
            rows.append((NEVER, never.height, int(never["never_ns"].sum())))
        rows.append(("exchange", self.waits.parts.height, exchanged))
        rows.append(("outside communication", None, sums["outside_ns"]))
        return pl.DataFrame(
            rows,
            schema={"state": pl.String, "count": pl.Int64, "time_ns": pl.Int64},
            orient="row",
        )

    @cached_property
    def _parts(self) -> pl.LazyFrame:
        trace = self.waits.exchanges.trace
        families = pl.LazyFrame(
            {"group": [g.index for g in trace.groups], FAMILY: list(map(_family, trace.groups))},
            schema={"group": pl.UInt32, FAMILY: pl.String},
        )
        rows = self.waits.parts.lazy().join(self.lines.lazy(), on="call", how="left")
        rows = by_device(rows, trace.completions)
        return with_shapes(rows.join(families, on="group", how="left", maintain_order="left"))


def _family(group: Group) -> str:
    if group.default:
        return "default"
    if group.described:
        return group.described
    if group.ranks is not None and len(group.ranks) <= 4:
        return f"[{', '.join(map(str, group.ranks))}]"
    return group.name or f"group {group.id[:6]}"


_OVERLAP = {"process": pl.UInt32(), "in_flight_ns": pl.Int64(), "overlapped_ns": pl.Int64()}


def overlap(waits: WaitStates) -> pl.DataFrame:
    """How much of its communication a process hid behind work of its own.

    An operation is under way from its begin until it was seen to be complete. It holds its process
    up in its call and in the wait for it; what C++ or a device waits for, where none sees the
    wait, from the last begin on of another one beside it: before, the process was still issuing.
    What is under way while nothing holds the process up is hidden.

    One row per process that communicates: ``process``, ``in_flight_ns`` (something of it was
    under way, or held it up), ``overlapped_ns`` (the part of that in which nothing held it up).
    """
    rows = waits.parts.with_row_index("_row")
    if not rows.height:
        return pl.DataFrame(schema=_OVERLAP)
    done = waits.exchanges.trace.operations.select("process", "number", "complete_ns")
    rows = rows.join(done, on=["process", "number"], how="left", maintain_order="left")
    begins = rows.select("process", _last="begin_ns").sort("_last")
    newest = rows.select("_row", "process", at=pl.col("end_ns") - 1).sort("at")
    newest = newest.join_asof(
        begins, left_on="at", right_on="_last", by="process", check_sortedness=False
    )
    rows = rows.join(newest.select("_row", "_last"), on="_row", how="left", maintain_order="left")
    unseen = pl.col("unseen") & pl.col("wait_begin_ns").is_null()
    later = pl.max_horizontal("begin_ns", "_last")
    holding = stretches(
        rows.with_columns(begin_ns=pl.when(unseen).then(later).otherwise("begin_ns")), waits.lives
    )
    flying = rows.with_columns(issued_ns=None, end_ns=pl.coalesce("complete_ns", "end_ns"))
    all_of_it = pl.concat([stretches(flying, waits.lives), holding])
    whole, held = (
        _sums(rows, pieces, name)
        for pieces, name in ((all_of_it, "in_flight_ns"), (holding, "_held"))
    )
    return (
        whole.join(held, on="process", how="left", maintain_order="left")
        .with_columns(overlapped_ns=pl.col("in_flight_ns") - pl.col("_held"))
        .select(*_OVERLAP)
        .cast(_OVERLAP)  # type: ignore[arg-type]
        .sort("process")
    )


def _sums(rows: pl.DataFrame, pieces: pl.DataFrame, name: str) -> pl.DataFrame:
    parts = rows.select("_row", "process").join(exclusive(pieces, name), on="_row", how="left")
    return parts.group_by("process").agg(pl.col(name).sum())
