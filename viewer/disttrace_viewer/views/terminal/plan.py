"""The merged order in columns: one line per exchange or local step; objects come later."""

from __future__ import annotations

import datetime
import re
from fnmatch import fnmatchcase
from typing import NamedTuple

import polars as pl

from disttrace.journal.format import MOST_MEMBERS
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Group, JobTrace
from disttrace_viewer.trace.plain_text import whole

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "": 10**9}
_OFFSET = re.compile(r"([+-]\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)?")


class Filters(NamedTuple):
    """Nothing set means everything; ``ranks`` are global ranks."""

    ranks: frozenset[int] | None = None
    ops: tuple[str, ...] = ()
    """Names of operations; ``*`` stands for anything."""
    last: int | None = None

    @property
    def narrow(self) -> bool:
        """Whether rows are chosen by what they are."""
        return bool(self.ranks is not None or self.ops)


def parse_ranks(text: str) -> frozenset[int]:
    """``0,3-5`` as a set. Raises ``ViewerError`` for what is none."""
    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip())
        if matched is None:
            raise ViewerError(f"--rank {text!r} is no list of ranks; write --rank 0,3-5")
        low, high = whole(matched[1]), whole(matched[2] or matched[1])
        if low is None or high is None or high >= MOST_MEMBERS:
            raise ViewerError(f"--rank {text[:60]!r}: ranks are numbers below {MOST_MEMBERS:,}")
        found.update(range(low, high + 1))
    return frozenset(found)


def parse_time(text: str, origin_ns: int) -> int:
    """Unix ns of unix seconds, an ISO time (local without zone) or an offset such as ``+12.3s``."""
    matched = _OFFSET.fullmatch(text.strip())
    if matched is not None:
        return origin_ns + round(float(matched[1]) * _UNITS[matched[2] or ""])
    try:
        return round(float(text) * 1e9)
    except ValueError:
        pass
    try:
        # Python 3.10 does not know the Z that other tools print.
        when = datetime.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip()))
    except ValueError:
        raise ViewerError(
            f"{text!r} is not a time; write an offset (+12.3s), unix seconds or an ISO time"
        ) from None
    whole = int(when.replace(microsecond=0).timestamp())
    return whole * 10**9 + when.microsecond * 1_000


COLLECTIVE, MESSAGE, LOCAL = 0, 1, 2

UNEVEN = frozenset(
    ("gather", "scatter", "all_to_all", "all_to_all_single", "all_gather", "gather_into_tensor")
)
"""Operations whose members may legally come with different shapes."""
SLOW_TIMES = 10
SLOW_NS = 100_000_000
"""A row this many times slower than its like, and by this much, is never folded away."""
_ROOM = 1 << 20
"""Sums of so many members' numbers stay below 2**64."""

PLAN = {
    "kind": pl.UInt8(),
    "item": pl.UInt32(),  # row of the table of its kind
    "first_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "signature": pl.UInt64(),  # equal for rows that look alike
    "family": pl.UInt64(),  # equal also where only the group or the two ends differ
    "seq": pl.UInt32(),
    "unusual": pl.Boolean(),
}


class Plan(NamedTuple):
    """``rows`` (columns ``PLAN``) by first begin, and the local steps that they refer to."""

    rows: pl.DataFrame
    locals: pl.DataFrame
    """``item``, ``op`` and the columns of the operations table."""


def plan_of(
    trace: JobTrace, exchanges: Exchanges, filters: Filters, initialization: pl.DataFrame
) -> Plan:
    """``initialization``: (process, number) of what is shown as initialization, not here."""
    local = _locals(trace, filters, initialization)
    parts = [of(trace, exchanges, filters) for of in (_collectives, _messages)]
    parts.append(_steps(local))
    rows = pl.concat(part.select(pl.col(n).cast(t) for n, t in PLAN.items()) for part in parts)
    usual = pl.col("end_ns") - pl.col("first_ns")
    slow = (usual > SLOW_NS) & (usual > SLOW_TIMES * usual.median().over("kind", "signature"))
    rows = rows.with_columns(unusual=pl.col("unusual") | slow.fill_null(value=False))
    return Plan(rows.sort("first_ns", "kind", "item"), local)


def _groups(trace: JobTrace, wanted: frozenset[int] | None) -> list[int]:
    """Groups with any of these ranks; None: all."""

    def ranks(group: Group) -> set[int | None]:
        seen = {trace.processes[member.process].rank for member in group.members}
        return seen | {*(group.ranks or ())}

    return [g.index for g in trace.groups if wanted is None or wanted & ranks(g)]


def wanted_op(op: str, filters: Filters) -> bool:
    """Whether an operation's name passes."""
    return not filters.ops or any(fnmatchcase(op, pattern) for pattern in filters.ops)


def _of_calls(trace: JobTrace, *names: str) -> pl.LazyFrame:
    return trace.calls.lazy().with_row_index("call").select("call", *names)


def _collectives(trace: JobTrace, exchanges: Exchanges, filters: Filters) -> pl.DataFrame:
    unseen = {group.index: len(group.missing) for group in trace.groups}
    names = [op for op in trace.calls["op"].unique().to_list() if wanted_op(op, filters)]
    looks = _looks(trace, exchanges)
    uneven = pl.col("op").is_in(list(UNEVEN)) | pl.col("op").str.ends_with("_coalesced")
    unknown = pl.col("group").replace_strict(unseen, default=None, return_dtype=pl.UInt32)
    absent = pl.col("arrived") + unknown < pl.col("expected")
    return (
        exchanges.collectives.lazy()
        .filter(pl.col("group").is_in(_groups(trace, filters.ranks)))
        .join(_of_calls(trace, "op", "signature"), on="call", how="left", maintain_order="left")
        .filter(pl.col("op").is_in(names))
        .join(looks, on="exchange", how="left", maintain_order="left")
        .with_columns(
            kind=pl.lit(COLLECTIVE),
            item="exchange",
            end_ns=pl.when(~pl.col("pending")).then("end_ns"),
            signature=pl.struct("group", "op", "_look", "arrived").hash(),
            family=pl.struct("op", "_look").hash(),
            unusual=(
                pl.col("pending")
                | (pl.col("errors") > 0)
                | (~pl.col("alike") & ~uneven)
                | absent.fill_null(value=False)
            ),
        )
        .collect()
    )


def _sites(trace: JobTrace) -> pl.LazyFrame:
    """``call`` and ``site``: a number for the user's line that it was called from."""
    numbers: dict[tuple[str, int] | None, int] = {}
    of_stack = []
    for stack in trace.stacks:
        where = innermost(stack)
        line = None if where is None else (where.file, where.line)
        of_stack.append(numbers.setdefault(line, len(numbers)))
    table = pl.LazyFrame(
        {"stack": range(len(of_stack)), "site": of_stack},
        schema={"stack": pl.UInt32, "site": pl.UInt32},
    )
    calls = _of_calls(trace, "stack")
    return calls.join(table, on="stack", how="left", maintain_order="left").drop("stack")


def _looks(trace: JobTrace, exchanges: Exchanges) -> pl.LazyFrame:
    """A number per collective, equal where all members came from the same lines and arguments."""
    member = pl.struct("group_rank", "site", "signature").hash() // _ROOM
    return (
        exchanges.collective_operations()
        .join(_sites(trace), on="call", how="left", maintain_order="left")
        .group_by("_exchange", maintain_order=True)  # the order of the table of collectives
        .agg(member.sum().alias("_look"))
        .with_row_index("exchange")
        .select("exchange", "_look")
    )


def _messages(trace: JobTrace, exchanges: Exchanges, filters: Filters) -> pl.DataFrame:
    ops = [op for op in ("send", "recv") if wanted_op(op, filters)]
    rows = exchanges.messages.lazy().filter(
        pl.col("group").is_in(_groups(trace, filters.ranks)) & pl.lit(bool(ops))
    )
    if (ranks := filters.ranks) is not None:
        members = [
            (group.index, member)
            for group in trace.groups
            for member in range(group.size or 0)
            if group.global_rank(member) in ranks
        ]
        schema = {"group": pl.UInt32, "member": pl.Int32}
        chosen = pl.LazyFrame(members, schema=schema, orient="row")
        of_end = (
            rows.join(chosen, left_on=["group", end], right_on=["group", "member"], how="semi")
            for end in ("source", "destination")
        )
        rows = pl.concat(of_end).unique("message")
    about = _of_calls(trace, "signature").join(_sites(trace), on="call")
    site, open_ = pl.col("site"), IN_FLIGHT & ~pl.col("lost")
    ends = (
        exchanges.message_ends()
        .join(about, on="call")
        .sort("side", descending=True)  # the send first
        .group_by("exchange", maintain_order=True)
        .agg(
            pl.col("signature").first(),
            site.first().alias("_from"),
            site.last().alias("_to"),
            pl.col("end_ns").max(),
            (open_ | pl.col("error").is_not_null()).any().alias("unusual"),
            (pl.len() < 2).alias("_alone"),
        )
    )
    like = ("tag", "signature", "_from", "_to")
    return (
        rows.join(ends, left_on="message", right_on="exchange", how="left", maintain_order="left")
        .with_columns(
            kind=pl.lit(MESSAGE),
            item="message",
            signature=pl.struct("group", "source", "destination", *like).hash(),
            family=pl.struct(*like).hash(),
            unusual=pl.col("unusual") | pl.col("_alone"),
        )
        .collect()
    )


def _locals(trace: JobTrace, filters: Filters, initialization: pl.DataFrame) -> pl.DataFrame:
    """Operations in no exchange: store, composed and constructor ones, refused ones, receives
    whose source is open. ``item``: the n-th time of every process at one line is one row."""
    operations = trace.operations.lazy()
    shared = pl.col("kind").is_in(["collective", "message"]) & pl.col("group").is_not_null()
    names = [op for op in trace.calls["op"].unique().to_list() if wanted_op(op, filters)]
    lanes = [
        p.index
        for p in trace.processes
        if not p.is_agent and (filters.ranks is None or p.rank in filters.ranks)
    ]
    rows = (
        operations.join(
            _of_calls(trace, "op", "kind", "group", "stack", "origin", "name"),
            on="call",
            maintain_order="left",
        )
        .filter(pl.col("process").is_in(lanes) & pl.col("op").is_in(names))
        .filter(~shared | pl.col("seq").is_null())
        # What C++ asks of a store belongs to the making of connections.
        .filter((pl.col("kind") != "store") | pl.col("origin").ne_missing("c++") | IN_FLIGHT)
        .join(initialization.lazy(), on=["process", "number"], how="anti", maintain_order="left")
    )
    parents = operations.filter(pl.col("parent").is_not_null()).select(
        "process", pl.col("parent").alias("number"), IN_FLIGHT.alias("_inner")
    )
    parents = parents.group_by("process", "number").agg(pl.col("_inner").any())
    rows = rows.join(parents, on=["process", "number"], how="left", maintain_order="left")
    inside = pl.col("_inner").is_not_null() & pl.col("error").is_null()
    rows = rows.filter(~(inside & (~IN_FLIGHT | pl.col("_inner"))))
    site = ["op", "stack", "name"]
    return (
        rows.with_columns(_nth=pl.int_range(pl.len()).over("process", *site))
        .with_columns(item=pl.struct(*site, "_nth").rank("dense").cast(pl.UInt32))
        .select("item", "op", "stack", *trace.operations.columns)
        .collect()
    )


def _steps(local: pl.DataFrame) -> pl.DataFrame:
    alike = pl.struct(pl.col("op").first(), pl.col("stack").first(), pl.len()).first().hash()
    return local.group_by("item", maintain_order=True).agg(
        pl.lit(LOCAL).first().alias("kind"),
        pl.col("begin_ns").min().alias("first_ns"),
        pl.col("end_ns").max(),
        alike.alias("signature"),
        alike.alias("family"),
        pl.lit(None, pl.UInt32).first().alias("seq"),
        (pl.col("error").is_not_null() | (IN_FLIGHT & ~pl.col("lost"))).any().alias("unusual"),
    )
