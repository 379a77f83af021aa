"""Draws the sample from a table of all operations, in columns."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from disttrace_viewer.sample.sample import BUILDING, Sample
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op, ops

_QUEUES = ("store.queue_push", "store.queue_pop")


def sample_of(trace: Trace) -> Sample:
    """The sample of a whole trace."""
    calls = trace.calls.lazy().with_row_index("call")
    rows = trace.operations.lazy().with_row_index("row").with_columns(pl.col("thread").fill_null(0))
    sites = _sites(rows).join(calls, on="call", maintain_order="left").collect()
    kept = pl.concat(
        [
            *_newest(sites),
            *(part.select("row").collect()["row"] for part in _special(rows, calls)),
        ]
    ).unique()
    kept = _with_parents(trace, kept)
    found = tuple(ops(trace, trace.operations[kept.sort()].sort("process", "number")))
    waiting = {(op.process, op.call.index) for op in found if op.pending or op.error is not None}
    longest = sites.group_by("process", "call").agg(pl.col("longest").max()).drop_nulls()
    return Sample(
        ops=found,
        counts=dict(trace.operations["process"].value_counts().iter_rows()),
        longest={
            (process, call): ns
            for process, call, ns in longest.iter_rows()
            if (process, call) in waiting
        },
        active={
            (process, thread): ns
            for process, thread, ns in sites.group_by("process", "thread")
            .agg(pl.col("active").max())
            .iter_rows()
        },
        refused=_refused(trace, calls, found),
        queues=_queues(trace, calls),
    )


def _sites(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Per process, thread and call: rows that are the last of their sort, and spans of time."""
    ok = pl.col("end_ns").is_not_null() & pl.col("error").is_null()
    # Completion that somebody else observed says nothing about the thread.
    ended = pl.col("complete_ns").is_null() | pl.col("wait_begin_ns").is_not_null()
    active = pl.max_horizontal(
        "begin_ns", "issued_ns", "wait_begin_ns", pl.when(ended).then(pl.col("end_ns"))
    )
    row, begin = pl.col("row"), pl.col("begin_ns")
    return rows.group_by("process", "thread", "call").agg(
        row.get(pl.col("number").arg_max()).alias("newest"),
        pl.col("number").max(),
        row.filter(pl.col("seq").is_not_null())
        .get(pl.col("seq").drop_nulls().arg_max(), null_on_oob=True)
        .alias("latest"),
        pl.col("seq").max(),
        row.filter(ok).get(begin.filter(ok).arg_max(), null_on_oob=True).alias("done"),
        begin.filter(ok).max().alias("done_ns"),
        (pl.col("end_ns") - pl.coalesce("wait_begin_ns", "begin_ns"))
        .filter(ok)
        .max()
        .alias("longest"),
        active.max().alias("active"),
    )


def _newest(sites: pl.DataFrame) -> list[pl.Series]:
    """Rows of the newest of each thread, of each kind in it, and of each stream."""

    def of(frame: pl.DataFrame, by: list[str], row: str, order: str) -> pl.Series:
        named = frame.filter(pl.col(row).is_not_null())
        return named.group_by(by).agg(pl.col(row).get(pl.col(order).arg_max()))[row].alias("row")

    thread = ["process", "thread"]
    native = (pl.col("kind") == "store") & (pl.col("origin") == "c++")
    counted = sites.filter(pl.col("kind").is_in(["collective", "message"]))
    met = sites.filter((pl.col("kind") == "collective") | (pl.col("op") == "recv"))
    return [
        of(sites, [*thread, "kind"], "newest", "number"),
        of(sites.filter(~native.fill_null(value=False)), thread, "newest", "number"),
        of(counted, ["process", "kind", "group", "backend", "op", "peer", "tag"], "latest", "seq"),
        of(met, ["process"], "done", "done_ns"),
    ]


def _special(rows: pl.LazyFrame, calls: pl.LazyFrame) -> list[pl.LazyFrame]:
    """Rows that are kept whatever came after them."""
    failed = rows.filter(pl.col("error").is_not_null())
    nth = pl.col("end_ns").rank("ordinal").over("process", "call", "error")
    count = pl.len().over("process", "call", "error")
    building = pl.col("kind") == "composed"
    building &= pl.any_horizontal(pl.col("op").str.starts_with(name) for name in BUILDING)
    wanted = calls.filter((pl.col("kind") == "constructor") | building).select("call")
    agents = calls.filter(building & (pl.col("op") == "rendezvous")).select("call")
    parents = rows.join(agents, on="call", how="semi").select(
        "process", pl.col("number").alias("parent")
    )
    stores = calls.filter(pl.col("store").is_not_null()).select("call")
    inside = (
        rows.join(parents, on=["process", "parent"], how="semi")
        .join(stores, on="call", how="semi")
        .sort("number")
        .unique(["process", "parent"], keep="first")
    )
    by_source = rows.filter(pl.col("source").is_not_null())
    keyed = rows.filter(pl.col("key").is_not_null())
    # Of each key its first and its last use by a call, and the one that ended last.
    first = pl.col("row").get(pl.col("begin_ns").arg_min())
    last = pl.col("row").get(pl.col("begin_ns").arg_max())
    over = pl.col("row").get(pl.col("end_ns").arg_max(), null_on_oob=True)
    keys = keyed.group_by("process", "call", "key").agg(
        pl.concat_list(first, last, over).alias("row")
    )
    return [
        rows.filter(IN_FLIGHT & ~pl.col("lost")),
        failed.filter((nth == 1) | (nth == count)),
        rows.join(wanted, on="call", how="semi"),
        inside,
        by_source.group_by("process", "call", "source").agg(
            pl.col("row").get(pl.col("seq").arg_max(), null_on_oob=True)
        ),
        keys.explode("row").filter(pl.col("row").is_not_null()),
    ]


def _with_parents(trace: Trace, kept: pl.Series) -> pl.Series:
    """The rows with those of all composed operations around them."""
    rows = trace.operations.lazy().with_row_index("row")
    while True:
        around = (
            trace.operations[kept]
            .lazy()
            .select("process", number="parent")
            .drop_nulls()
            .unique()
            .join(rows, on=["process", "number"])
            .select("row")
            .collect()["row"]
        )
        found = pl.concat([kept, around]).unique()
        if len(found) == len(kept):
            return found
        kept = found


def _refused(trace: Trace, calls: pl.LazyFrame, found: Iterable[Op]) -> dict[tuple[int, int], int]:
    """Each one follows the newest number of its stream that its process had taken until then."""
    numbers = {}
    for op in found:
        if not op.refused or op.call.kind != "collective":
            continue
        stream = calls.filter(
            (pl.col("process") == op.process)
            & (pl.col("group") == op.call.group)
            & pl.col("backend").eq_missing(pl.lit(op.call.backend))
            & (pl.col("kind") == "collective")
        )
        before = (
            trace.operations.lazy()
            .filter((pl.col("process") == op.process) & (pl.col("number") < op.number))
            .join(stream.select("call"), on="call", how="semi")
            .select(pl.col("seq").max())
            .collect()
            .item()
        )
        numbers[op.id] = (before or 0) + 1
    return numbers


def _queues(trace: Trace, calls: pl.LazyFrame) -> dict[tuple[int, int, str], tuple[int, int]]:
    wanted = calls.filter(pl.col("op").is_in(_QUEUES)).select("call", "op", "store")
    done = pl.col("end_ns").is_not_null() & pl.col("error").is_null()
    rows = (
        trace.operations.lazy()
        .filter(pl.col("key").is_not_null())
        .join(wanted, on="call")
        .group_by("process", "store", "key")
        .agg(
            (pl.col("op") == _QUEUES[0]).sum().alias("pushed"),
            ((pl.col("op") == _QUEUES[1]) & done).sum().alias("popped"),
        )
        .collect()
    )
    return {
        (process, store, trace.keys[key].parts[0]): (pushed, popped)
        for process, store, key, pushed, popped in rows.iter_rows()
    }
