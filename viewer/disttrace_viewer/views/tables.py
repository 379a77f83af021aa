"""The trace as tables for other engines: operations, exchanges, processes, groups, store keys.

Columns of operations are the fields of ``call_fields``. Everything is put together in the columnar
engine, so that a table costs what its columns cost: ``operations`` makes only those of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.statistics import by_device, with_shapes
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace.columns import STATUS, WAIT_END
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.call_fields import (
    FIELDS,
    FRAME,
    FURTHER,
    OF_PROCESS,
    Column,
    columns_of,
    group_ids,
    groups_by_index,
    processes_by_index,
    stacks_by_index,
    stores_by_index,
)


def operations(
    trace: Trace, columns: Sequence[str] = tuple(FIELDS), rows: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The operations (all, or some rows of their table), ordered by begin."""
    schema = {**FIELDS, **FURTHER}
    wanted = set(columns)
    table = (trace.operations if rows is None else rows).lazy().with_columns(STATUS, WAIT_END)
    table = table.with_columns(_number=pl.col("number"), _process=pl.col("process"))
    table = table.rename({"bytes": "_bytes", "parent": "_parent", "error": "_error"}).drop(
        "process", "number"
    )
    found = table.join(calls(trace, wanted).lazy(), on="call", how="left", maintain_order="left")
    if "error" in wanted:
        errors = pl.LazyFrame(
            {"_error": range(len(trace.errors)), "error": trace.errors},
            schema={"_error": pl.UInt32, "error": pl.String},
        )
        found = found.join(errors, on="_error", how="left", maintain_order="left")
    if "key" in wanted:
        pairs = trace.operations.select("call", "key").drop_nulls().unique()
        texts = [_text(trace.full_key(call, key)) for call, key in pairs.iter_rows()]
        keys = pairs.lazy().with_columns(pl.Series("_key", texts, dtype=pl.String))
        found = (
            found.join(keys, on=["call", "key"], how="left", maintain_order="left")
            .drop("key")
            .rename({"_key": "key"})
        )
    if wanted & {"peer", "peer_group_rank"}:
        found = found.with_columns(
            peer_group_rank=pl.coalesce("peer_group_rank", pl.col("source").cast(pl.Int64))
        )
    if "peer" in wanted:
        found = _with_global(trace, found, peer="peer_group_rank")
    made = {
        "id": pl.concat_str("_short", pl.lit("."), "_number") if "id" in wanted else None,
        "parent": pl.concat_str("_short", pl.lit("."), "_parent") if "parent" in wanted else None,
        "bytes": pl.coalesce("_bytes", "bytes") if "bytes" in wanted else None,
        "number": pl.col("_number"),
        "duration_ns": pl.col("end_ns") - pl.col("begin_ns"),
    }
    picked = []
    for name in columns:
        expression = made.get(name)
        column = pl.col(name) if expression is None else expression
        picked.append(column.cast(schema[name].type).alias(name))
    return found.select(picked).collect()


def calls(trace: Trace, wanted: Iterable[str]) -> pl.DataFrame:
    """What the operations of a call share, one row per ``call``, for some columns."""
    need = set(wanted)
    if "peer" in need:
        need |= {"peer_group_rank", "_g"}
    if "root" in need:
        need |= {"root_group_rank"}
    rows = trace.calls.lazy().with_row_index("call")
    rows = rows.rename({"root": "root_group_rank", "peer": "peer_group_rank", "name": "_name"})
    rows = rows.rename({"process": "_p", "group": "_g", "store": "_s", "stack": "_k"})
    rows = rows.with_columns(name="_name").with_columns(pl.col("args").fill_null("{}"))
    for index, table in (
        ("_p", processes_by_index(trace)),
        ("_g", groups_by_index(trace, need)),
        ("_s", stores_by_index(trace)),
        ("_k", stacks_by_index(trace, need)),
    ):
        rows = rows.join(table.lazy(), on=index, how="left", maintain_order="left")
    if "stack" in need:
        rows = rows.with_columns(pl.col("stack").fill_null(pl.lit([], pl.List(FRAME))))
    if "root" in need:
        rows = _with_global(trace, rows, root="root_group_rank")
    schema = rows.collect_schema().names()
    kept = [name for name in ("call", "_short", "_g", *FIELDS, *FURTHER) if name in schema]
    return rows.select(
        name for name in kept if name in need or name in ("_short", "call")
    ).collect()


def processes(trace: Trace) -> pl.DataFrame:
    """One row per process, by rank: who it is, when it lived (unix ns), how it says it ended."""
    error: Column = (pl.Int64, lambda p: trace.clocks[p.clock].error_ns)
    found = columns_of(trace, {**OF_PROCESS, "clock_error_ns": error})
    return found.sort("rank", "start_ns", "process", nulls_last=True)


def groups(trace: Trace) -> pl.DataFrame:
    """One row per member of a group, also for members of which no process was seen."""
    rows = []
    for group in trace.groups:
        seen: dict[int | None, list[int]] = {}
        for member in group.members:
            seen.setdefault(member.rank, []).append(member.process)
        jobs = [trace.processes[m.process].job for m in group.members]
        shared = (jobs[0] if jobs else None, group.id, group.name, group.desc)
        backend = ",".join(sorted(set(group.backends.values()))) or None
        numbers = sorted({*seen, *range(group.size or 0)}, key=lambda n: -1 if n is None else n)
        for number in numbers:
            for process in seen.get(number, [None]):
                own = trace.processes[process] if process is not None else None
                rank = group.global_rank(number)
                if rank is None and own is not None:
                    rank = own.rank
                rows.append(
                    (
                        *shared,
                        backend,
                        group.size,
                        group.default,
                        number,
                        rank,
                        None if own is None else own.id,
                    )
                )
    return pl.DataFrame(
        rows,
        schema={
            "job": pl.String,
            "group": pl.String,
            "name": pl.String,
            "desc": pl.String,
            "backend": pl.String,
            "size": pl.Int64,
            "default": pl.Boolean,
            "group_rank": pl.Int64,
            "rank": pl.Int64,
            "process": pl.String,
        },
        orient="row",
    )


def collectives(waits: WaitStates) -> pl.DataFrame:
    """One row per collective, by its first begin: who arrived when, who last, and what it cost.

    ``line`` and ``bytes`` are of the first to arrive. ``arrivals`` are in order, ``missing`` the
    group ranks that did not come. ``wait_ns`` is what all members waited, summed; ``spread_ns``
    lies between the first arrival and the last, ``busy_ns`` between the last and the newest end
    (null while it is pending). ``algbw`` and ``busbw`` are bytes per second, by the
    time of ``clock``: ``device`` where the backend measured it on all members, else ``host``.
    """
    exchanges = waits.exchanges
    trace = exchanges.trace
    parts = waits.parts.lazy().filter(pl.col("kind") == "collective")
    parts = by_device(parts, trace.completions)
    members = (
        parts.join(processes_by_index(trace).lazy(), left_on="process", right_on="_p", how="left")
        .with_columns(
            _arrival=pl.struct("rank", pl.col("process_right").alias("process"), "begin_ns")
        )
        .sort("exchange", "begin_ns", "process")
        .group_by("exchange", maintain_order=True)
        .agg(
            pl.col("rank").first().alias("first_rank"),
            pl.col("rank").last().alias("last_rank"),
            pl.col("_arrival").alias("arrivals"),
            pl.col("wait_ns").sum(),
            pl.col("busy_ns").mean().alias("_busy"),
            pl.col("clock").first(),
            pl.col("is_root").any().alias("_rooted"),
            pl.col("bytes").first(),
        )
    )
    call = calls(trace, {"job", "op", "line", "group_name", "group_desc", "kind"}).lazy()
    rows = (
        exchanges.collectives.lazy()
        .join(call.drop("_short"), on="call", how="left", maintain_order="left")
        .join(members, on="exchange", how="left", maintain_order="left")
        .join(group_ids(trace), left_on="group", right_on="_g", how="left", maintain_order="left")
        .with_columns(
            is_root=pl.lit(value=False),
            spread_ns=pl.col("last_ns") - pl.col("first_ns"),
            busy_ns=pl.when(~pl.col("pending")).then(
                pl.max_horizontal(pl.col("end_ns") - pl.col("last_ns"), pl.lit(0))
            ),
            missing=_absent(exchanges),
        )
    )
    seconds = pl.when(pl.col("_busy") > 0).then(pl.col("_busy") / 1e9)
    complete = ~pl.col("pending") & (pl.col("errors") == 0)
    algbw = pl.when(complete).then(pl.col("_moved") / seconds)
    return (
        with_shapes(rows)
        .select(
            "job",
            pl.col("_group").alias("group"),
            "group_name",
            "group_desc",
            "backend",
            pl.col("seq").cast(pl.Int64),
            "op",
            "line",
            "bytes",
            pl.col("expected", "arrived").cast(pl.Int64),
            "missing",
            "arrivals",
            "first_ns",
            "last_ns",
            "first_rank",
            "last_rank",
            pl.col("ended").cast(pl.Int64),
            "end_ns",
            pl.col("errors").cast(pl.Int64),
            "pending",
            "alike",
            "wait_ns",
            "spread_ns",
            "busy_ns",
            algbw.alias("algbw"),
            (algbw * pl.col("_factor")).alias("busbw"),
            pl.when(algbw.is_not_null()).then("clock").alias("clock"),
        )
        .collect()
    )


def store_operations(exchanges: Exchanges) -> pl.DataFrame:
    """One row per key of an operation on a store: which rank used which store, how and when.

    ``place`` is the store server, ``part`` one of ``set``, ``wait`` and ``other``.
    """
    trace = exchanges.trace
    owners = (
        processes_by_index(trace).lazy().select("_p", "job", "rank", pl.col("process").alias("_id"))
    )
    return (
        exchanges.key_events.lazy()
        .with_columns(STATUS)
        .join(owners, left_on="process", right_on="_p", how="left", maintain_order="left")
        .select(
            "job",
            "place",
            "key",
            "part",
            "op",
            pl.col("_id").alias("process"),
            "rank",
            pl.col("number").cast(pl.Int64),
            "begin_ns",
            "end_ns",
            "status",
        )
        .collect()
    )


def _with_global(trace: Trace, rows: pl.LazyFrame, **columns: str) -> pl.LazyFrame:
    """``rows``, whose groups are ``_g``, with global ranks for columns of group ranks; null where
    there is none. A list of all ranks beside each row would be the square of the job's size.
    """
    known = [g for g in trace.groups if g.ranks is not None]
    ranks = pl.DataFrame(
        {"_g": [g.index for g in known], "_global": [list(g.ranks or ()) for g in known]},
        schema={"_g": pl.UInt32, "_global": pl.List(pl.Int64)},
    ).with_columns(_member=pl.int_ranges(pl.col("_global").list.len()))
    members = ranks.explode("_global", "_member").drop_nulls().lazy()
    for name, group_rank in columns.items():
        table = members.rename({"_global": name, "_member": group_rank})
        rows = rows.join(table, on=["_g", group_rank], how="left", maintain_order="left")
    return rows


def _text(key: str | list[str] | None) -> str | None:
    import json

    return json.dumps(key) if isinstance(key, list) else key


def _absent(exchanges: Exchanges) -> pl.Series:
    """Per collective the group ranks that did not begin it."""
    table = exchanges.collectives
    short = table.filter(pl.col("arrived") < pl.col("expected"))
    rows: list[list[int]] = [[]] * table.height
    if short.height:
        came: dict[int, set[int]] = {}
        some = exchanges.participants(short["exchange"])
        for exchange, rank in some.select("exchange", "group_rank").iter_rows():
            came.setdefault(exchange, set()).add(rank)
        for exchange, expected in short.select("exchange", "expected").iter_rows():
            rows[exchange] = [r for r in range(expected) if r not in came[exchange]]
    return pl.Series("missing", rows, dtype=pl.List(pl.Int64()))
