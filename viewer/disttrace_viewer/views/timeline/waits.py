"""Until when each operation waited, and for whom: the pale parts of bars, and how many wait."""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.timing.wait_states import WaitStates

WAITS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "until_ns": pl.Int64(),  # when waiting was over; null: it is not, as far as is known
    "for_process": pl.UInt32(),  # who was waited for; null: not known, or several
}


def waits(exchanges: Exchanges) -> pl.DataFrame:
    """One row per operation that waited: in a collective, for a message, for a key of a store."""
    parts = _partners(exchanges), _keys(exchanges)
    found = pl.concat([part.cast(WAITS) for part in parts])  # type: ignore[arg-type]
    return found.unique(["process", "number"], keep="first", maintain_order=True)


def _partners(exchanges: Exchanges) -> pl.DataFrame:
    """As ``stats`` counts them; where one process alone has not begun, it is the one waited for."""
    missing = pl.concat([_only_missing(exchanges), _other_ends(exchanges)])
    open_ = pl.col("in_flight") & pl.col("never")
    return (
        WaitStates(exchanges)
        .parts.filter(pl.col("until_ns").is_not_null())
        .join(missing, on=["kind", "exchange"], how="left", maintain_order="left")
        .select(
            "process",
            "number",
            pl.when(~open_).then("until_ns").alias("until_ns"),
            pl.when(open_).then("missing").otherwise("by").alias("for_process"),
        )
    )


def _members(exchanges: Exchanges) -> pl.DataFrame:
    """Processes of groups: ``group``, ``group_rank``, ``missing``."""
    found = [
        (group.index, member.rank, member.process)
        for group in exchanges.trace.groups
        for member in group.members
    ]
    schema = {"group": pl.UInt32, "group_rank": pl.Int32, "missing": pl.UInt32}
    rows = pl.DataFrame(found, schema=schema, orient="row")
    # A restarted rank has several processes: which of them was meant is not known.
    return rows.unique(["group", "group_rank"], keep="none", maintain_order=True)


def _only_missing(exchanges: Exchanges) -> pl.DataFrame:
    """The one process that a collective lacks: ``kind``, ``exchange``, ``missing``."""
    lacking = exchanges.collectives.filter(pl.col("arrived") + 1 == pl.col("expected"))
    wanted = lacking.select("exchange", "group").join(_members(exchanges), on="group")
    here = exchanges.taking_part(lacking["exchange"]).select("exchange", "group_rank")
    return (
        wanted.join(here.collect(), on=["exchange", "group_rank"], how="anti")
        .unique("exchange", keep="none", maintain_order=True)
        .select(pl.lit("collective").alias("kind"), "exchange", "missing")
    )


def _other_ends(exchanges: Exchanges) -> pl.DataFrame:
    """The other end of a message of which one end was seen: the same columns."""
    send, receive = pl.col("send_number").is_null(), pl.col("recv_number").is_null()
    rows = exchanges.messages.filter(send | receive).with_columns(
        group_rank=pl.when(send).then("source").otherwise("destination").cast(pl.Int32)
    )
    return rows.join(_members(exchanges), on=["group", "group_rank"]).select(
        pl.lit("message").alias("kind"), pl.col("message").alias("exchange"), "missing"
    )


def _keys(exchanges: Exchanges) -> pl.DataFrame:
    known = exchanges.keys.select("place", "key", "first_set_ns", "setter")
    rows = (
        exchanges.key_events.filter(pl.col("part") == "wait")
        .join(known, on=["place", "key"], how="left", maintain_order="left")
        .filter(pl.col("first_set_ns").is_null() | (pl.col("first_set_ns") > pl.col("begin_ns")))
    )
    return rows.select(
        "process",
        "number",
        pl.col("first_set_ns").alias("until_ns"),
        pl.col("setter").alias("for_process"),
    )
