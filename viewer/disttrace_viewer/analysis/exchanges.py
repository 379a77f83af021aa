"""Exchanges: what several processes do together, as tables that every rule and view asks.

A collective (group, backend, sequence number), a message (group, source, destination, tag, n-th)
and a store key (who sets, who waits). All tables are built in the columnar engine; single
operations become objects only where they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import polars as pl

from disttrace.journal.format import ON_DEVICE
from disttrace_viewer.analysis.sample import SETTERS
from disttrace_viewer.merge.clock import JOINING, Met, Side, Ways, place, realign
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import dataclass, together

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
        ``first_ns``, ``last_process``, ``last_ns``: when the first began, and who did last;
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
        wanted = self.collectives.lazy()
        if exchanges is not None:
            kept = pl.Series("exchange", exchanges, dtype=pl.UInt32)
            wanted = wanted.filter(pl.col("exchange").is_in(kept.implode()))
        keys = wanted.join(
            self._streams.lazy(), on=["group", "backend"], how="left", nulls_equal=True
        ).select("exchange", _EXCHANGE)
        return (
            self.collective_operations()
            .join(keys, on="_exchange", how="inner")
            .select("exchange", "group_rank", *self.trace.operations.columns)
            .sort("exchange", "begin_ns", "process")
            .collect()
        )

    @cached_property
    def messages(self) -> pl.DataFrame:
        """One row per message, also those with one end only, ordered by the first begin.

        ``group``, ``source``, ``destination`` (group ranks), ``tag`` (null where the backend
        ignores it), ``seq``; then for each end ``send_``/``recv_`` + ``process number call
        begin_ns end_ns error``, null where that end was not seen. Receives from any source take
        part once their source is known; until then they are in none.
        """
        calls = self._calls("message").filter(
            pl.col("group").is_not_null() & pl.col("group_rank").is_not_null()
        )
        wanted = calls.select("call", "op", "group", "group_rank", "peer", "tag", "backend")
        tagged = ~pl.col("backend").is_in(sorted(ON_DEVICE)).fill_null(False)
        ends = (
            self.trace.operations.lazy()
            .filter(pl.col("seq").is_not_null())
            .join(wanted, on="call", how="inner", maintain_order="left")
            .with_columns(_peer=pl.coalesce("peer", "source"), _tag=pl.when(tagged).then("tag"))
            .filter(pl.col("_peer").is_not_null())
        )
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
        ``side`` (``send`` or ``recv``), ``group``, of the other end ``other`` (its process) and
        ``other_ns`` (its begin), and the columns of the operations table.
        """
        messages = self.messages.lazy()
        ends = [
            messages.filter(pl.col(f"{mine}_number").is_not_null()).select(
                "group",
                exchange="message",
                side=pl.lit(mine),
                process=f"{mine}_process",
                number=f"{mine}_number",
                other=f"{other}_process",
                other_ns=f"{other}_begin_ns",
            )
            for mine, other in (("send", "recv"), ("recv", "send"))
        ]
        return pl.concat(ends).join(self.trace.operations.lazy(), on=["process", "number"])

    @cached_property
    def previous(self) -> pl.DataFrame:
        """Of each operation the one before in its process: ``_before`` (number), ``_before_end``
        (else its begin), ``_before_issued``; but for what threads beside the main one ask stores: a
        sign of life proves nothing of what that does.
        """
        asks = pl.col("call").is_in(self._calls("store").collect()["call"].implode())
        known = {
            "_before": pl.col("number"),
            "_before_end": pl.coalesce("end_ns", "begin_ns"),
            "_before_issued": pl.col("issued_ns"),
        }
        return (
            self.trace.operations.lazy()
            .filter((pl.col("thread") == 0) | ~asks)
            .sort("process", "number")
            .select(
                "process",
                "number",
                **{name: value.shift(1).over("process") for name, value in known.items()},
            )
            .collect()
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

    def _calls(self, *kinds: str) -> pl.LazyFrame:
        """The calls of some kinds, with their row number as ``call``."""
        return self.trace.calls.lazy().with_row_index("call").filter(pl.col("kind").is_in(kinds))


MOST_MET = 2_000
"""Of so many collectives of a group, and messages one way, clocks are set right."""


def align(trace: JobTrace) -> JobTrace:
    """The trace on one time line; unchanged where all processes share one clock."""
    if len({p.clock for p in trace.processes}) < 2:
        return trace
    return realign(trace, place(trace.clocks, trace.processes, _met(trace), _ways(trace)))


def _clock_of(trace: JobTrace) -> pl.LazyFrame:
    clocks = [p.clock for p in trace.processes]
    return pl.LazyFrame(
        {"process": range(len(clocks)), "clock": clocks},
        schema={"process": pl.UInt32, "clock": pl.Int64},
    )


def _spans(time: str, keys: Sequence[str], count: pl.Expr) -> pl.Expr:
    """The number of one of so many equal spans of the time that those of some keys take."""
    passed = pl.col(time) - pl.col(time).min().over(keys)
    return passed * count // (passed.max().over(keys) + 1)


def _met(trace: JobTrace) -> list[Met]:
    """Collectives that none leaves before everybody came: of each span of time, for each clock that
    in which its processes were inside for the shortest time, which bounds the others' sharply.
    """
    calls = (
        trace.calls.lazy().with_row_index("call").filter(pl.col("op").is_in(JOINING)).select("call")
    )
    sides = (
        Exchanges(trace)
        .collective_operations()
        .join(calls, on="call", how="semi")
        .filter(pl.col("end_ns").is_not_null() & pl.col("error").is_null())
        .join(_clock_of(trace), on="process")
        .group_by("_exchange", "clock")
        .agg(pl.col("_stream").first(), begin=pl.col("begin_ns").max(), end=pl.col("end_ns").min())
        .filter(pl.len().over("_exchange") > 1)
        .collect()
    )
    count = MOST_MET // pl.col("clock").n_unique().over("_stream")
    spans = sides.with_columns(_span=_spans("begin", ["_stream", "clock"], count))
    inside = pl.col("end") - pl.col("begin")
    chosen = spans.group_by("_stream", "clock", "_span").agg(
        pl.col("_exchange").sort_by(inside, "_exchange").first()
    )
    kept = sides.join(chosen, on="_exchange", how="semi").sort("_exchange", "clock")
    streams: dict[int, int] = {}
    found: dict[int, dict[int, Side]] = {}
    for exchange, clock, stream, begin, end in kept.iter_rows():
        streams[exchange] = stream
        found.setdefault(exchange, {})[clock] = (begin, end)
    return [(streams[exchange], here) for exchange, here in found.items()]


def _ways(trace: JobTrace) -> Ways:
    """Messages between clocks: a send began before its receive ended. Of each span of time that
    which took the shortest time.
    """
    clocks = _clock_of(trace)
    keys = ["first", "second"]
    rows = (
        Exchanges(trace)
        .messages.lazy()
        .filter(pl.col("recv_end_ns").is_not_null() & pl.col("recv_error").is_null())
        .join(clocks.rename({"process": "send_process", "clock": "first"}), on="send_process")
        .join(clocks.rename({"process": "recv_process", "clock": "second"}), on="recv_process")
        .filter(pl.col("first") != pl.col("second"))
        .select(*keys, t="send_begin_ns", bound=pl.col("recv_end_ns") - pl.col("send_begin_ns"))
        .with_columns(_span=_spans("t", keys, pl.lit(MOST_MET)))
        .group_by(*keys, "_span")
        .agg(pl.col("t", "bound").sort_by("bound", "t").first())
        .sort(*keys, "t")
        .collect()
    )
    return together(
        ((first, second), (t, bound)) for first, second, _, t, bound in rows.iter_rows()
    )
