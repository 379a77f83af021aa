"""The fields of an operation, which jsonl, the timeline and the API read, and the trace as tables
for other engines: operations, exchanges, processes, groups, store keys.

Names and meaning of fields are a contract, and so is the order of those in ``FIELDS``. A table is
put together in the columnar engine, so that it costs what its columns cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.sample import innermost, together
from disttrace_viewer.analysis.statistics import by_device, with_shapes
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace.columns import STATUS, WAIT_END
from disttrace_viewer.trace.model import Call, Group, JobTrace, Store
from disttrace_viewer.trace.process import Process

FRAME = pl.Struct({"file": pl.String(), "line": pl.Int64(), "function": pl.String()})
_RANKS = pl.List(pl.Int64())


class _Context(NamedTuple):
    """A call and what it refers to."""

    trace: JobTrace
    call: Call
    owner: Process
    group: Group | None
    store: Store | None

    def rank(self, group_rank: int | None) -> int | None:
        """The global rank, None where there is none."""
        return None if self.group is None else self.group.global_rank(group_rank)


class Field(NamedTuple):
    """``type`` in tables; ``of`` a call, None for what belongs to an operation alone."""

    type: pl.DataType
    of: Callable[[_Context], Any] | None = None
    varies: bool = False
    """Whether operations of one call differ in it, as they do where there is no ``of``."""


def _owner(name: str) -> Callable[[_Context], Any]:
    return lambda c: getattr(c.owner, name)


def _call(name: str) -> Callable[[_Context], Any]:
    return lambda c: getattr(c.call, name)


def _group(name: str) -> Callable[[_Context], Any]:
    return lambda c: None if c.group is None else getattr(c.group, name)


FIELDS: Mapping[str, Field] = {
    "id": Field(pl.String()),
    "parent": Field(pl.String()),
    "job": Field(pl.String(), _owner("job")),
    "process": Field(pl.String(), _owner("id")),
    "role": Field(pl.String(), _owner("role")),
    "host": Field(pl.String(), _owner("host")),
    "pid": Field(pl.Int64(), _owner("pid")),
    "attempt": Field(pl.Int64(), _owner("attempt")),
    "thread": Field(pl.Int64()),
    "rank": Field(pl.Int64(), _owner("rank")),
    "local_rank": Field(pl.Int64(), _owner("local_rank")),
    "op": Field(pl.String(), _call("op")),
    "group": Field(pl.String(), _group("id")),
    "group_name": Field(pl.String(), _group("name")),
    "group_ranks": Field(_RANKS, _group("ranks")),
    "group_rank": Field(pl.Int64(), _call("group_rank")),
    "backend": Field(pl.String(), _call("backend")),
    "device": Field(pl.String(), lambda c: c.call.signature.device),
    "seq": Field(pl.Int64()),
    "begin_ns": Field(pl.Int64()),
    "issued_ns": Field(pl.Int64()),
    "wait_begin_ns": Field(pl.Int64()),
    "wait_end_ns": Field(pl.Int64()),
    "complete_ns": Field(pl.Int64()),
    "end_ns": Field(pl.Int64()),
    "status": Field(pl.String()),
    "error": Field(pl.String()),
    "async": Field(pl.Boolean(), _call("asynchronous")),
    "bytes": Field(pl.Int64(), _call("bytes"), varies=True),
    "shapes": Field(pl.List(_RANKS), _call("shapes")),
    "dtypes": Field(pl.List(pl.String()), _call("dtypes")),
    "splits": Field(pl.String(), lambda c: c.call.signature.splits),  # in tables: JSON text
    "reduce_op": Field(pl.String(), _call("reduce_op")),
    "root": Field(pl.Int64(), lambda c: c.rank(c.call.root)),
    "root_group_rank": Field(pl.Int64(), _call("root")),
    "peer": Field(pl.Int64(), lambda c: c.rank(c.call.peer), varies=True),
    "peer_group_rank": Field(pl.Int64(), _call("peer"), varies=True),
    "tag": Field(pl.Int64(), _call("tag")),
    "key": Field(pl.String()),  # in tables, of an operation on several keys: a JSON list as text
    "store": Field(pl.String(), lambda c: None if c.store is None else c.store.name),
    "name": Field(pl.String(), _call("name")),
    "origin": Field(pl.String(), _call("origin")),
    "stack": Field(pl.List(FRAME), lambda c: [list(f) for f in c.trace.stack(c.call.index)]),
    "args": Field(pl.String(), _call("args")),  # in tables: JSON object as text
}
"""What every export has, in its order."""

FURTHER: Mapping[str, Field] = {
    "kind": Field(pl.String(), _call("kind")),
    "number": Field(pl.Int64()),
    "group_desc": Field(pl.String(), _group("desc")),
    "duration_ns": Field(pl.Int64()),
    "line": Field(pl.String()),  # file:line of the user's frame
    "place": Field(pl.String()),  # id of the store server
}
"""What tables have beside it where it is chosen by name."""

_ALL = {**FIELDS, **FURTHER}
VARYING = frozenset(name for name, field in FIELDS.items() if field.varies or field.of is None)
_ON_A_SLICE = (
    "op",
    "name",
    "kind",
    "group_name",
    *("group_ranks", "backend", "device", "async", "bytes", "shapes", "dtypes", "splits"),
    *("reduce_op", "root", "peer", "tag", "store", "origin", "args", "stack"),
)


def values(trace: JobTrace, number: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of a call, None for one that does not apply."""
    call = trace.call(number)
    context = _Context(
        trace,
        call,
        trace.processes[call.process],
        trace.group_of(call),
        trace.store_of(call),
    )
    return {name: of(context) for name in names if (of := _ALL[name].of) is not None}


def shared(trace: JobTrace, number: int) -> dict[str, Any]:
    """What a timeline has once per call: ``group`` is its name; nothing that does not apply."""
    found = values(trace, number, _ON_A_SLICE)
    found["args"] = found["args"] or None
    return {
        "group" if name == "group_name" else name: value
        for name, value in found.items()
        if value is not None
    }


Column = tuple[type[pl.DataType], Callable[[Process], Any]]
OF_PROCESS: Mapping[str, Column] = {
    "job": (pl.String, lambda p: p.job),
    "process": (pl.String, lambda p: p.id),
    "rank": (pl.Int64, lambda p: p.rank),
    "local_rank": (pl.Int64, lambda p: p.local_rank),
    "world_size": (pl.Int64, lambda p: p.world_size),
    "role": (pl.String, lambda p: p.role),
    "host": (pl.String, lambda p: p.host),
    "pid": (pl.Int64, lambda p: p.pid),
    "attempt": (pl.Int64, lambda p: p.attempt),
    "start_ns": (pl.Int64, lambda p: p.start_ns),
    "last_ns": (pl.Int64, lambda p: p.last_ns),
    "exit": (pl.String, lambda p: None if p.exit is None else p.exit.how),
    "exit_code": (pl.Int64, lambda p: None if p.exit is None else p.exit.code),
}


def columns_of(trace: JobTrace, columns: Mapping[str, Column]) -> pl.DataFrame:
    """One row per process, in their order."""
    return pl.DataFrame(
        {name: [of(p) for p in trace.processes] for name, (_, of) in columns.items()},
        schema={name: kind for name, (kind, _) in columns.items()},
    )


def processes_by_index(trace: JobTrace) -> pl.DataFrame:
    """By ``_p``, with ``_short``, the id that begins those of operations."""
    own: dict[str, Column] = {
        "_p": (pl.UInt32, lambda p: p.index),
        "_short": (pl.String, lambda p: trace.short_ids[p.index]),
    }
    names = ("job", "process", "role", "host", "pid", "attempt", "rank", "local_rank")
    return columns_of(trace, own | {name: OF_PROCESS[name] for name in names})


def group_ids(trace: JobTrace) -> pl.LazyFrame:
    """Ids (``_group``) by ``_g``."""
    return groups_by_index(trace, set()).lazy().select("_g", _group="group")


def groups_by_index(trace: JobTrace, need: set[str]) -> pl.DataFrame:
    """By ``_g``; members only where they are needed."""
    found = pl.DataFrame(
        [(g.index, g.id, g.name, g.desc) for g in trace.groups],
        schema={"_g": pl.UInt32, **dict.fromkeys(("group", "group_name", "group_desc"), pl.String)},
        orient="row",
    )
    if "group_ranks" not in need:
        return found
    ranks = [None if g.ranks is None else list(g.ranks) for g in trace.groups]
    return found.with_columns(pl.Series("group_ranks", ranks, dtype=_RANKS))


def stores_by_index(trace: JobTrace) -> pl.DataFrame:
    """Names and servers by ``_s``."""
    return pl.DataFrame(
        {
            "_s": [s.index for s in trace.stores],
            "store": [s.name for s in trace.stores],
            "place": [s.place for s in trace.stores],
        },
        schema={"_s": pl.UInt32, "store": pl.String, "place": pl.String},
    )


def stacks_by_index(trace: JobTrace, need: set[str]) -> pl.DataFrame:
    """By ``_k``: the line, the stack, or both."""
    index = pl.Series("_k", range(len(trace.stacks)), dtype=pl.UInt32)
    columns = [index]
    if "line" in need:
        frames = [innermost(stack) for stack in trace.stacks]
        texts = [None if one is None else f"{one.file}:{one.line}" for one in frames]
        columns.append(pl.Series("line", texts, dtype=pl.String))
    if "stack" in need:
        values = [[frame._asdict() for frame in stack] for stack in trace.stacks]
        columns.append(pl.Series("stack", values, dtype=pl.List(FRAME)))
    return pl.DataFrame(columns)


def operations(
    trace: JobTrace, columns: Sequence[str] = tuple(FIELDS), rows: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The operations (all, or some rows of their table), ordered by begin."""
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
        full = (trace.full_key(call, key) for call, key in pairs.iter_rows())
        texts = [json.dumps(key) if isinstance(key, list) else key for key in full]
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
        "id": pl.concat_str("_short", pl.lit("."), "_number"),
        "parent": pl.concat_str("_short", pl.lit("."), "_parent"),
        "bytes": pl.coalesce("_bytes", "bytes"),
        "number": pl.col("_number"),
        "duration_ns": pl.col("end_ns") - pl.col("begin_ns"),
    }
    return found.select(
        made.get(name, pl.col(name)).cast(_ALL[name].type).alias(name) for name in columns
    ).collect()


def calls(trace: JobTrace, wanted: Iterable[str]) -> pl.DataFrame:
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


def processes(trace: JobTrace) -> pl.DataFrame:
    """One row per process, by rank: who it is, when it lived (unix ns), how it says it ended."""
    error: Column = (pl.Int64, lambda p: trace.clocks[p.clock].error_ns)
    found = columns_of(trace, {**OF_PROCESS, "clock_error_ns": error})
    return found.sort("rank", "start_ns", "process", nulls_last=True)


def groups(trace: JobTrace) -> pl.DataFrame:
    """One row per member of a group, also for members of which no process was seen."""
    rows: list[tuple[Any, ...]] = []
    for group in trace.groups:
        seen = together((member.rank, member.process) for member in group.members)
        job = trace.processes[group.members[0].process].job if group.members else None
        backend = ",".join(sorted(set(group.backends.values()))) or None
        about = (job, group.id, group.name, group.desc, backend, group.size, group.default)
        numbers = sorted({*seen, *range(group.size or 0)}, key=lambda n: -1 if n is None else n)
        for number in numbers:
            rank = group.global_rank(number)
            here = [trace.processes[process] for process in seen.get(number, ())]
            rows += [(*about, number, one.rank if rank is None else rank, one.id) for one in here]
            rows += [] if here else [(*about, number, rank, None)]
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
            "job", pl.col("_group").alias("group"), "group_name", "group_desc", "backend",
            pl.col("seq").cast(pl.Int64), "op", "line", "bytes",
            pl.col("expected", "arrived").cast(pl.Int64), "missing", "arrivals",
            "first_ns", "last_ns", "first_rank", "last_rank",
            pl.col("ended").cast(pl.Int64), "end_ns", pl.col("errors").cast(pl.Int64),
            "pending", "alike", "wait_ns", "spread_ns", "busy_ns",
            algbw.alias("algbw"),
            (algbw * pl.col("_factor")).alias("busbw"),
            pl.when(algbw.is_not_null()).then("clock").alias("clock"),
        )
        .collect()
    )  # fmt: skip


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


def _with_global(trace: JobTrace, rows: pl.LazyFrame, **columns: str) -> pl.LazyFrame:
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


def _absent(exchanges: Exchanges) -> pl.Series:
    """Per collective the group ranks that did not begin it."""
    table = exchanges.collectives
    short = table.filter(pl.col("arrived") < pl.col("expected"))
    rows: list[list[int]] = [[]] * table.height
    if short.height:
        some = exchanges.participants(short["exchange"])
        came: dict[int, list[int]] = together(some.select("exchange", "group_rank").iter_rows())
        for exchange, expected in short.select("exchange", "expected").iter_rows():
            rows[exchange] = sorted({*range(expected)} - {*came[exchange]})
    return pl.Series("missing", rows, dtype=pl.List(pl.Int64()))
