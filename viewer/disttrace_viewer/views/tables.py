"""The fields of an operation, which jsonl, the timeline and the API read, and the trace as tables
for other engines: operations, exchanges, processes, groups, store keys.

Names and meaning of fields are a contract, and so is the order of those in ``FIELDS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.analysis.statistics import by_device, with_shapes
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.trace.columns import STATUS, WAIT_END
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import Stack
from disttrace_viewer.trace.values import together

FRAME = pl.Struct({"file": pl.String(), "line": pl.Int64(), "function": pl.String()})
_RANKS = pl.List(pl.Int64())


class Field(NamedTuple):
    """``type`` in tables; ``of`` what a call has an index of (a process, a group, a store, a
    stack), of the call itself, or of it and its group (``member``); None for an operation's own."""

    type: pl.DataType
    source: str | None = None
    of: Callable[[Any], Any] | None = None
    varies: bool = False
    """Whether operations of one call differ in it, as they do where there is no ``of``."""


def _texts(source: str, *names: str) -> dict[str, Field]:
    """Texts that bear the names of attributes."""
    return {name: Field(pl.String(), source, attrgetter(name)) for name in names}


def _numbers(source: str, *names: str) -> dict[str, Field]:
    return {name: Field(pl.Int64(), source, attrgetter(name)) for name in names}


def _own(*names: str) -> dict[str, Field]:
    """Numbers of an operation alone."""
    return dict.fromkeys(names, Field(pl.Int64()))


_PROCESS, _GROUP, _STORE, _STACK, _CALL, _MEMBER = (
    "process", "group", "store", "stack", "call", "member",
)  # fmt: skip
FIELDS: Mapping[str, Field] = {
    "id": Field(pl.String()),
    "parent": Field(pl.String()),
    "job": Field(pl.String(), _PROCESS, attrgetter("job")),
    "process": Field(pl.String(), _PROCESS, attrgetter("id")),
    **_texts(_PROCESS, "role", "host"),
    **_numbers(_PROCESS, "pid", "attempt"),
    "thread": Field(pl.Int64()),
    **_numbers(_PROCESS, "rank", "local_rank"),
    **_texts(_CALL, "op"),
    "group": Field(pl.String(), _GROUP, attrgetter("id")),
    "group_name": Field(pl.String(), _GROUP, attrgetter("name")),
    "group_ranks": Field(_RANKS, _GROUP, lambda g: None if g.ranks is None else list(g.ranks)),
    **_numbers(_CALL, "group_rank"),
    **_texts(_CALL, "backend"),
    "device": Field(pl.String(), _CALL, attrgetter("signature.device")),
    **_own("seq", "begin_ns", "issued_ns", "wait_begin_ns", "wait_end_ns", "complete_ns", "end_ns"),
    "status": Field(pl.String()),
    "error": Field(pl.String()),
    "async": Field(pl.Boolean(), _CALL, attrgetter("asynchronous")),
    "bytes": Field(pl.Int64(), _CALL, attrgetter("bytes"), varies=True),
    "shapes": Field(pl.List(_RANKS), _CALL, attrgetter("shapes")),
    "dtypes": Field(pl.List(pl.String()), _CALL, attrgetter("dtypes")),
    "splits": Field(pl.String(), _CALL, attrgetter("signature.splits")),  # in tables: JSON text
    **_texts(_CALL, "reduce_op"),
    "root": Field(pl.Int64(), _MEMBER, lambda of: of[1].global_rank(of[0].root)),
    "root_group_rank": Field(pl.Int64(), _CALL, attrgetter("root")),
    "peer": Field(pl.Int64(), _MEMBER, lambda of: of[1].global_rank(of[0].peer), varies=True),
    "peer_group_rank": Field(pl.Int64(), _CALL, attrgetter("peer"), varies=True),
    **_numbers(_CALL, "tag"),
    "key": Field(pl.String()),  # in tables, of an operation on several keys: a JSON list as text
    "store": Field(pl.String(), _STORE, attrgetter("name")),
    **_texts(_CALL, "name", "origin"),
    "stack": Field(pl.List(FRAME), _STACK, lambda stack: [list(frame) for frame in stack]),
    "args": Field(pl.String(), _CALL, attrgetter("args")),  # in tables: JSON object as text
}
"""What every export has, in its order."""

FURTHER: Mapping[str, Field] = {
    **_texts(_CALL, "kind"),
    "number": Field(pl.Int64()),
    "group_desc": Field(pl.String(), _GROUP, attrgetter("desc")),
    "duration_ns": Field(pl.Int64()),
    "line": Field(pl.String(), _STACK, lambda stack: _line(stack)),  # file:line of the user's frame
    "place": Field(pl.String(), _STORE, attrgetter("place")),  # id of the store server
}
"""What tables have beside it where it is chosen by name."""

_ALL = {**FIELDS, **FURTHER}
VARYING = frozenset(name for name, field in FIELDS.items() if field.varies or field.of is None)
_ON_A_SLICE = (
    *("op", "name", "kind", "group_name"),
    *("group_ranks", "backend", "device", "async", "bytes", "shapes", "dtypes", "splits"),
    *("reduce_op", "root", "peer", "tag", "store", "origin", "args", "stack"),
)


def _line(stack: Stack) -> str | None:
    frame = innermost(stack)
    return None if frame is None else f"{frame.file}:{frame.line}"


def values(trace: JobTrace, number: int, names: tuple[str, ...]) -> dict[str, Any]:
    """Some fields of a call, None for one that does not apply."""
    call = trace.call(number)
    group = trace.group_of(call)
    sources = {
        _PROCESS: trace.processes[call.process],
        _GROUP: group,
        _STORE: trace.store_of(call),
        _STACK: call.stack,
        _CALL: call,
        _MEMBER: None if group is None else (call, group),
    }
    found = {}
    for name in names:
        _, source, of, _ = _ALL[name]
        if source is not None and of is not None:
            found[name] = None if sources[source] is None else of(sources[source])
    return found


def shared(trace: JobTrace, number: int) -> dict[str, Any]:
    """What a timeline has once per call: ``group`` is its name; nothing that does not apply."""
    found = values(trace, number, _ON_A_SLICE)
    found["args"] = found["args"] or None
    return {
        "group" if name == "group_name" else name: value
        for name, value in found.items()
        if value is not None
    }


def of_each(things: Iterable[Any], field: Field) -> pl.Series:
    """A field of each process, or whatever it is of, as a column."""
    assert field.of is not None
    return pl.Series([field.of(one) for one in things], dtype=field.type)


def of_indices(trace: JobTrace, name: str) -> pl.Series:
    """A field of all processes or groups, in the order of their indices."""
    return of_each(trace.groups if _ALL[name].source == _GROUP else trace.processes, _ALL[name])


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
    """What the operations of a call share, one row per ``call``, for some columns; ``_short`` is
    how ids of its process begin, ``_g`` the index of its group."""
    need = set(wanted)
    need |= {"root_group_rank"} if "root" in need else set()
    need |= {"peer_group_rank"} if "peer" in need else set()
    rows = trace.calls
    things = {
        _PROCESS: trace.processes,
        _GROUP: trace.groups,
        _STORE: trace.stores,
        _STACK: trace.stacks,
    }
    made = {
        "call": pl.int_range(rows.height, dtype=pl.UInt32, eager=True),
        "_short": pl.Series(trace.short_ids, dtype=pl.String).gather(rows["process"]),
        "_g": rows["group"],
    }
    for name in (one for one in _ALL if one in need):
        field = _ALL[name]
        if field.source == _CALL:
            made[name] = rows[name.removesuffix("_group_rank")]
        elif name == "stack":
            frames = [[one._asdict() for one in stack] for stack in trace.stacks]
            made[name] = pl.Series(frames, dtype=field.type).gather(rows["stack"])
        elif field.source in things:
            made[name] = of_each(things[field.source], field).gather(rows[field.source])
    found = pl.DataFrame({name: column.alias(name) for name, column in made.items()})
    if "args" in need:
        found = found.with_columns(pl.col("args").fill_null("{}"))
    if "stack" in need:
        found = found.with_columns(pl.col("stack").fill_null(pl.lit([], pl.List(FRAME))))
    if "root" in need:
        found = _with_global(trace, found.lazy(), root="root_group_rank").collect()
    return found


def processes(trace: JobTrace) -> pl.DataFrame:
    """One row per process, by rank: who it is, when it lived (unix ns), how it says it ended."""
    more = {
        **_numbers(_PROCESS, "world_size", "start_ns", "last_ns"),
        "exit": Field(pl.String(), _PROCESS, lambda p: None if p.exit is None else p.exit.how),
        "exit_code": Field(pl.Int64(), _PROCESS, lambda p: None if p.exit is None else p.exit.code),
        "clock_error_ns": Field(pl.Int64(), _PROCESS, lambda p: trace.clocks[p.clock].error_ns),
    }
    names = ("job", "process", "rank", "local_rank", "world_size", "role", "host", "pid", "attempt")
    shown = [*names, *(name for name in more if name not in names)]
    fields = {name: more.get(name) or _ALL[name] for name in shown}
    columns = {name: of_each(trace.processes, field) for name, field in fields.items()}
    return pl.DataFrame(columns).sort("rank", "start_ns", "process", nulls_last=True)


def groups(trace: JobTrace) -> pl.DataFrame:
    """One row per member of a group, also for members of which no process was seen."""
    rows: list[tuple[Any, ...]] = []
    schema = {
        **dict.fromkeys(("job", "group", "name", "desc", "backend"), pl.String()),
        "size": pl.Int64(),
        "default": pl.Boolean(),
        **dict.fromkeys(("group_rank", "rank"), pl.Int64()),
        "process": pl.String(),
    }
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
    return pl.DataFrame(rows, schema, orient="row")


def collectives(waits: WaitStates) -> pl.DataFrame:
    """One row per collective, by its first begin: who arrived when, who last, and what it cost.

    ``line`` and ``bytes`` are of the first to arrive. ``wait_ns`` is what all members waited,
    summed; ``spread_ns`` lies between the first arrival and the last, ``busy_ns`` between the last
    and the newest end (null while it is pending). ``algbw`` and ``busbw`` are bytes per second, by
    ``clock``: ``device`` where the backend measured it on all members, else ``host``.
    """
    exchanges = waits.exchanges
    trace = exchanges.trace
    parts = waits.parts.lazy().filter(pl.col("kind") == "collective")
    parts = by_device(parts, trace.completions)
    members = (
        parts.with_columns(
            rank=pl.lit(of_indices(trace, "rank")).gather("process"),
            _id=pl.lit(of_indices(trace, "process")).gather("process"),
        )
        .with_columns(_arrival=pl.struct("rank", pl.col("_id").alias("process"), "begin_ns"))
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
        .join(call.drop("_short", "_g"), on="call", how="left", maintain_order="left")
        .join(members, on="exchange", how="left", maintain_order="left")
        .with_columns(
            _group=pl.lit(of_indices(trace, "group")).gather("group"),
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
    """One row per key of an operation on a store: which rank used which store, how and when."""
    trace = exchanges.trace
    job, process, rank = (
        pl.lit(of_indices(trace, name)).gather("process").alias(name)
        for name in ("job", "process", "rank")
    )
    return (
        exchanges.key_events.lazy()
        .with_columns(STATUS, pl.col("number").cast(pl.Int64))
        .select(
            *(job, "place", "key", "part", "op"),
            *(process, rank, "number", "begin_ns", "end_ns", "status"),
        )
        .collect()
    )


def _with_global(trace: JobTrace, rows: pl.LazyFrame, **columns: str) -> pl.LazyFrame:
    """``rows``, whose groups are ``_g``, with global ranks for columns of group ranks. A list of
    all ranks beside each row would be the square of the job's size."""
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
