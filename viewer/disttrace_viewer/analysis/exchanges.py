"""Exchanges: what several processes do together, as tables that every rule and view asks.

A collective (group, backend, sequence number), a message (group, source, destination, tag, n-th)
and a store key (who sets, who waits). All tables are built in the columnar engine; single
operations become objects only where they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property

import polars as pl

from disttrace.journal.format import ON_DEVICE
from disttrace_viewer.analysis.sample import SETTERS
from disttrace_viewer.merge.clock import JOINING, Bounds, Point, Tree, place, realign
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import dataclass

WAITERS = ("store.get", "store.wait", "store.multi_get", "store.queue_pop", "store.barrier")

_EXCHANGE = (pl.col("_stream").cast(pl.UInt64) * (1 << 32) + pl.col("seq")).alias("_exchange")


@dataclass(frozen=True)
class Exchanges:
    """The exchanges of a trace; each table is computed when it is first requested."""

    trace: JobTrace

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """One row per collective, ordered by its first begin.

        ``exchange`` (row number), ``group``, ``backend``, ``seq``; ``call`` of the first to begin;
        ``expected`` members (null where the group's size is unknown), ``arrived`` operations;
        ``first_process``, ``first_ns``, ``last_process``, ``last_ns``: who began first and last;
        ``ended`` operations, ``end_ns`` (newest end so far), ``errors``; ``pending``: a rank is
        still in it; ``alike``: everybody came with one signature (op, root, dtypes, shapes, reduce
        op: what is unlike need not be wrong).
        """
        operations = self.collective_operations()
        begin = pl.col("begin_ns")
        rows = (
            operations.group_by("_exchange", maintain_order=True)
            .agg(
                pl.col("_stream").first(),
                pl.col("seq").first(),
                pl.col("call").first(),
                pl.len().alias("arrived"),
                # The operations come ordered by begin.
                pl.col("process").first().alias("first_process"),
                begin.first().alias("first_ns"),
                pl.col("process").last().alias("last_process"),
                begin.last().alias("last_ns"),
                pl.col("end_ns").count().alias("ended"),
                pl.col("end_ns").max(),
                pl.col("error").count().alias("errors"),
                IN_FLIGHT.any().alias("pending"),
                (pl.col("signature").min() == pl.col("signature").max()).alias("alike"),
            )
            .drop("_exchange")
            .join(self._streams.lazy(), on="_stream", how="left", maintain_order="left")
            .drop("_stream")
            .with_row_index("exchange")
        )
        names = ["exchange", "group", "backend", "seq", "call", "expected"]
        return rows.select(*names, pl.exclude(*names)).collect()

    def participants(self, exchanges: Iterable[int] | pl.Series | None = None) -> pl.DataFrame:
        """Operations in collectives (all, or those of some): ``exchange``, ``group_rank`` and the
        columns of the operations table, ordered by exchange, then begin.
        """
        return (
            self.taking_part(exchanges)
            .select("exchange", "group_rank", *self.trace.operations.columns)
            .sort("exchange", "begin_ns", "process")
            .collect()
        )

    def taking_part(self, exchanges: Iterable[int] | pl.Series | None) -> pl.LazyFrame:
        """The same in no order, for callers that need few of these columns."""
        wanted = self.collectives.lazy()
        if exchanges is not None:
            kept = pl.Series("exchange", exchanges, dtype=pl.UInt32)
            wanted = wanted.filter(pl.col("exchange").is_in(kept.implode()))
        keys = wanted.join(
            self._streams.lazy(), on=["group", "backend"], how="left", nulls_equal=True
        ).select("exchange", _EXCHANGE)
        return self.collective_operations().join(keys, on="_exchange", how="inner")

    @cached_property
    def messages(self) -> pl.DataFrame:
        """One row per message, also those with one end only, ordered by the first begin.

        ``group``, ``source``, ``destination`` (group ranks), ``tag`` (null where the backend
        ignores it), ``seq``; then for each end ``send_``/``recv_`` + ``process number call
        begin_ns end_ns error``, null where that end was not seen. Receives from any source take
        part once their source is known; until then they are in none.
        """
        ends = self._message_operations().filter(pl.col("seq").is_not_null())
        ends = ends.filter(pl.col("_peer").is_not_null() & pl.col("group_rank").is_not_null())
        keys = ["group", "source", "destination", "tag", "seq"]
        kept = ("process", "number", "call", "begin_ns", "end_ns", "error")

        def side(op: str, source: str, destination: str) -> pl.LazyFrame:
            names = {name: f"{op}_{name}" for name in kept}
            return ends.filter(pl.col("op") == op).select(
                "group",
                pl.col(source).alias("source"),
                pl.col(destination).alias("destination"),
                pl.col("_tag").alias("tag"),
                "seq",
                *(pl.col(old).alias(new) for old, new in names.items()),
            )

        sends, receives = side("send", "group_rank", "_peer"), side("recv", "_peer", "group_rank")
        return (
            sends.join(receives, on=keys, how="full", coalesce=True, nulls_equal=True)
            .with_columns(first_ns=pl.min_horizontal("send_begin_ns", "recv_begin_ns"))
            .sort("first_ns", *keys)
            .with_row_index("message")
            .collect()
        )

    def message_ends(self) -> pl.LazyFrame:
        """One row per end of a message that was seen: ``exchange`` (its row of ``messages``),
        ``side`` (``send`` or ``recv``), ``group process number call begin_ns end_ns error``, and of
        the other end ``other`` (its process) and ``other_ns`` (its begin).
        """
        kept = ("process", "number", "call", "begin_ns", "end_ns", "error")
        messages = self.messages.lazy()
        return pl.concat(
            [
                messages.filter(pl.col(f"{mine}_number").is_not_null()).select(
                    "group",
                    exchange="message",
                    side=pl.lit(mine),
                    other=f"{other}_process",
                    other_ns=f"{other}_begin_ns",
                    **{name: f"{mine}_{name}" for name in kept},
                )
                for mine, other in (("send", "recv"), ("recv", "send"))
            ]
        )

    @cached_property
    def key_events(self) -> pl.DataFrame:
        """Store operations, a row per key: ``place`` (id), ``key`` (with every prefix), ``part``
        ("set", "wait" or "other"), ``op``, and the columns of the operations table.
        """
        trace = self.trace
        stores = pl.LazyFrame(
            {
                "store": [s.index for s in trace.stores],
                "place": [s.place for s in trace.stores],
                "_prefix": [s.lead for s in trace.stores],
            },
            schema={"store": pl.UInt32, "place": pl.String, "_prefix": pl.String},
        )
        keys = pl.LazyFrame(
            {"key": range(len(trace.keys)), "_key": [list(k.parts) for k in trace.keys]},
            schema={"key": pl.UInt32, "_key": pl.List(pl.String)},
        ).explode("_key")
        part = (
            pl.when(pl.col("op").is_in(SETTERS))
            .then(pl.lit("set"))
            .when(pl.col("op").is_in(WAITERS))
            .then(pl.lit("wait"))
            .otherwise(pl.lit("other"))
        )
        rows = (
            trace.operations.lazy()
            .filter(pl.col("key").is_not_null())
            .join(self._calls("store").select("call", "op", "store"), on="call")
            .join(stores, on="store", how="left")
            .join(keys, on="key", how="left")
        )
        others = [name for name in trace.operations.columns if name != "key"]
        return (
            rows.with_columns(key=pl.col("_prefix").fill_null("?/") + pl.col("_key"), part=part)
            .select("place", "key", "part", "op", *others)
            .sort("begin_ns", "process", "number", "key")
            .collect()
        )

    @cached_property
    def keys(self) -> pl.DataFrame:
        """One row per key of a place: ``first_set_ns`` (when a set was first over), ``setter``."""
        is_set = pl.col("part") == "set"
        done = is_set & pl.col("end_ns").is_not_null() & pl.col("error").is_null()
        return (
            self.key_events.lazy()
            .group_by("place", "key", maintain_order=True)
            .agg(
                pl.col("end_ns").filter(done).min().alias("first_set_ns"),
                pl.col("process").filter(done).first().alias("setter"),
            )
            .collect()
        )

    # -- what several tables need ------------------------------------------------------------

    @cached_property
    def _streams(self) -> pl.DataFrame:
        """A number for each pair of group and backend that collectives use."""
        trace = self.trace
        sizes = pl.DataFrame(
            {"group": [g.index for g in trace.groups], "expected": [g.size for g in trace.groups]},
            schema={"group": pl.UInt32, "expected": pl.UInt32},
        )
        pairs = trace.calls.filter(
            (pl.col("kind") == "collective") & pl.col("group").is_not_null()
        ).select("group", "backend")
        numbered = pairs.unique(maintain_order=True).with_row_index("_stream")
        return numbered.join(sizes, on="group", how="left", maintain_order="left")

    def collective_operations(self) -> pl.LazyFrame:
        """Operations that take part in a collective, with ``_exchange``: stream and number."""
        streams = self._streams.lazy().select("group", "backend", "_stream")
        calls = (
            self._calls("collective")
            .join(streams, on=["group", "backend"], how="inner", nulls_equal=True)
            .select("call", "_stream", "group_rank", "signature")
        )
        return (
            self.trace.operations.lazy()
            .filter(pl.col("seq").is_not_null())
            .join(calls, on="call", how="inner", maintain_order="left")
            .with_columns(_EXCHANGE)
        )

    def _message_operations(self) -> pl.LazyFrame:
        calls = self._calls("message").filter(pl.col("group").is_not_null())
        wanted = calls.select("call", "op", "group", "group_rank", "peer", "tag", "backend")
        return (
            self.trace.operations.lazy()
            .join(wanted, on="call", how="inner", maintain_order="left")
            .with_columns(
                pl.coalesce("peer", "source").alias("_peer"),
                pl.when(~pl.col("backend").is_in(sorted(ON_DEVICE)).fill_null(False))
                .then("tag")
                .alias("_tag"),
            )
        )

    def _calls(self, *kinds: str) -> pl.LazyFrame:
        """The calls of some kinds, with their row number as ``call``."""
        return self.trace.calls.lazy().with_row_index("call").filter(pl.col("kind").is_in(kinds))


BINS = 200


def align(trace: JobTrace) -> JobTrace:
    """The trace on one time line; unchanged where all processes share one clock."""
    if len({p.clock for p in trace.processes}) < 2:
        return trace
    sides = _sides_of_collectives(trace)
    messages = _messages(trace)
    joined = _joined(sides, messages)
    clocks = place(
        trace.clocks, trace.processes, joined, lambda tree: _bounds(tree, sides, messages)
    )
    return realign(trace, clocks)


def _bounds(
    edges: Tree, sides: pl.LazyFrame, messages: pl.DataFrame
) -> Mapping[tuple[int, int], Bounds]:
    """Bounds of the edges whose clocks exchanged both ways."""
    if not edges:
        return {}
    tree = pl.LazyFrame(
        {"above": [a for a, _ in edges], "clock": [c for _, c in edges]},
        schema={"above": pl.Int64, "clock": pl.Int64},
    )
    # Something of ``first`` happened before something of ``second``: of a message its send, of a
    # collective the begin in either.
    there = tree.rename({"above": "first", "clock": "second"})
    back = tree.select(first="clock", second="above")
    met = (
        pl.concat([there, back])
        .join(sides, left_on="first", right_on="clock")
        .join(sides, left_on=["exchange", "second"], right_on=["exchange", "clock"], suffix="_of")
        .select("first", "second", "begin", end="end_of")
        .collect()
        .lazy()
    )
    both = pl.concat([met, messages.lazy().select("first", "second", "begin", "end")])
    apart = pl.col("end") - pl.col("begin")
    down = both.join(there, on=["first", "second"]).select(
        above="first", clock="second", t="end", bound=apart, upper=True
    )
    up = both.join(back, on=["first", "second"]).select(
        above="second", clock="first", t="begin", bound=-apart, upper=False
    )
    rows = pl.concat([down, up]).drop_nulls()
    return _binned(rows.collect())


def _binned(rows: pl.DataFrame) -> Mapping[tuple[int, int], Bounds]:
    """The sharpest bounds of each of some equal spans of time, by edge."""
    if not rows.height:
        return {}
    origin, last = rows["t"].min(), rows["t"].max()
    assert isinstance(origin, int)
    assert isinstance(last, int)
    width = max(1, (last - origin) // BINS)
    bound = pl.col("bound")
    sharp = pl.when(pl.col("upper").first()).then(bound.arg_min()).otherwise(bound.arg_max())
    kept = (
        rows.lazy()
        .with_columns(((pl.col("t") - origin) // width).alias("bin"))
        .group_by("above", "clock", "upper", "bin")
        .agg(pl.col("t").get(sharp), bound.get(sharp))
        .sort("t")
        .collect()
    )
    found: dict[tuple[int, int], tuple[list[Point], list[Point]]] = {}
    for above, clock, upper, t, value in kept.drop("bin").iter_rows():
        points = found.setdefault((above, clock), ([], []))[0 if upper else 1]
        points.append((float(t - origin), float(value)))
    return {
        edge: Bounds(origin, tuple(upper), tuple(lower))
        for edge, (upper, lower) in found.items()
        if upper and lower
    }


def _joined(sides: pl.LazyFrame, messages: pl.DataFrame) -> list[AbstractSet[int]]:
    """Sets of clocks that bound one another: of groups, and of messages that went both ways."""
    groups = (
        sides.filter(pl.col("end").is_not_null())
        .group_by("stream")
        .agg(pl.col("clock").unique().sort())
        .filter(pl.col("clock").list.len() > 1)
        .sort("stream")
        .collect()
    )
    ways = set(messages.select("first", "second").unique().iter_rows())
    both = sorted(way for way in ways if way[::-1] in ways)
    return list(dict.fromkeys(map(frozenset, [*groups["clock"].to_list(), *both])))


def _clock_of(trace: JobTrace) -> pl.LazyFrame:
    clocks = [p.clock for p in trace.processes]
    return pl.LazyFrame(
        {"process": range(len(clocks)), "clock": clocks},
        schema={"process": pl.UInt32, "clock": pl.Int64},
    )


def _sides_of_collectives(trace: JobTrace) -> pl.LazyFrame:
    """Per exchange and clock the last ``begin`` and the first ``end`` of those that none leaves
    before everybody came; ``stream`` numbers their groups and backends.
    """
    calls = (
        trace.calls.lazy().with_row_index("call").filter(pl.col("op").is_in(JOINING)).select("call")
    )
    found = (
        Exchanges(trace)
        .collective_operations()
        .rename({"_exchange": "exchange", "_stream": "stream"})
        .join(calls, on="call", how="semi")
        .join(_clock_of(trace), on="process")
        .group_by("exchange", "clock")
        .agg(
            pl.col("stream").first(),
            pl.col("begin_ns").max().alias("begin"),
            pl.col("end_ns").filter(pl.col("error").is_null()).min().alias("end"),
        )
    )
    return found.collect().lazy()


def _messages(trace: JobTrace) -> pl.DataFrame:
    """Messages between clocks: a send (``begin``) began before its receive ended (``end``)."""
    clocks = _clock_of(trace)
    return (
        Exchanges(trace)
        .messages.lazy()
        .filter(pl.col("recv_end_ns").is_not_null() & pl.col("recv_error").is_null())
        .join(clocks.rename({"process": "send_process", "clock": "first"}), on="send_process")
        .join(clocks.rename({"process": "recv_process", "clock": "second"}), on="recv_process")
        .filter(pl.col("first") != pl.col("second"))
        .select("first", "second", begin="send_begin_ns", end="recv_end_ns")
        .collect()
    )
