"""How much of each operation was waiting for another process, and for which: pale parts of bars.

A collective waits until its last member arrives, a receive until its send begins, a send that was
still going on until its receive begins, a store's wait until the key is set. What comes after is
the exchange itself.
"""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges

WAITS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "exchange": pl.UInt32(),  # row of Exchanges.collectives; null for others
    "until_ns": pl.Int64(),  # when waiting was over; null: never, as far as is known
    "for_process": pl.UInt32(),  # who was waited for; null: nobody, or not known
}


def waits(exchanges: Exchanges) -> pl.DataFrame:
    """One row per operation of a collective, and per message or store wait that waited."""
    parts = [
        _collectives(exchanges),
        _messages(exchanges),
        _alone(exchanges, "send", "destination"),
        _alone(exchanges, "recv", "source"),
        _keys(exchanges),
    ]
    found = pl.concat([part.cast(WAITS) for part in parts])  # type: ignore[arg-type]
    return found.unique(["process", "number"], keep="first", maintain_order=True)


def _collectives(exchanges: Exchanges) -> pl.DataFrame:
    table = exchanges.collectives.select(
        "exchange",
        "last_ns",
        "last_process",
        complete=pl.col("arrived") >= pl.col("expected").fill_null(1),
    )
    members = (
        exchanges.participants()
        .join(table, on="exchange", how="left")
        .join(_only_missing(exchanges), on="exchange", how="left", maintain_order="left")
    )
    alone = pl.col("process") == pl.col("last_process")
    return members.select(
        "process",
        "number",
        "exchange",
        pl.when("complete").then("last_ns").alias("until_ns"),
        pl.when(~pl.col("complete"))
        .then("missing")
        .when(~alone)
        .then("last_process")
        .alias("for_process"),
    )


def _members(exchanges: Exchanges) -> pl.DataFrame:
    """Processes of groups: ``group``, ``group_rank``, ``peer``."""
    found = [
        (group.index, member.rank, member.process)
        for group in exchanges.trace.groups
        for member in group.members
    ]
    schema = {"group": pl.UInt32, "group_rank": pl.Int32, "peer": pl.UInt32}
    rows = pl.DataFrame(found, schema=schema, orient="row")
    # A restarted rank has several processes: which of them was meant is not known.
    return rows.unique(["group", "group_rank"], keep="none", maintain_order=True)


def _only_missing(exchanges: Exchanges) -> pl.DataFrame:
    """The one process that a collective lacks: ``exchange``, ``missing``."""
    lacking = exchanges.collectives.filter(pl.col("arrived") + 1 == pl.col("expected"))
    wanted = lacking.select("exchange", "group").join(_members(exchanges), on="group")
    here = exchanges.participants(lacking["exchange"]).select("exchange", "group_rank")
    return (
        wanted.join(here, on=["exchange", "group_rank"], how="anti")
        .unique("exchange", keep="none", maintain_order=True)
        .select("exchange", pl.col("peer").alias("missing"))
    )


def _messages(exchanges: Exchanges) -> pl.DataFrame:
    both = exchanges.messages.filter(
        pl.col("send_begin_ns").is_not_null() & pl.col("recv_begin_ns").is_not_null()
    )
    received = both.filter(pl.col("send_begin_ns") > pl.col("recv_begin_ns"))
    over = pl.col("send_end_ns").fill_null(1 << 62)
    sent = both.filter(
        (pl.col("recv_begin_ns") > pl.col("send_begin_ns")) & (over >= pl.col("recv_begin_ns"))
    )
    return pl.concat([_side(received, "recv", "send"), _side(sent, "send", "recv")])


def _alone(exchanges: Exchanges, own: str, peer: str) -> pl.DataFrame:
    """One end in flight of a message whose other end has not begun."""
    other = "recv" if own == "send" else "send"
    rows = exchanges.messages.filter(
        pl.col(f"{other}_begin_ns").is_null()
        & pl.col(f"{own}_begin_ns").is_not_null()
        & pl.col(f"{own}_end_ns").is_null()
        & pl.col(f"{own}_error").is_null()
    ).with_columns(group_rank=pl.col(peer).cast(pl.Int32))
    found = rows.join(
        _members(exchanges), on=["group", "group_rank"], how="left", maintain_order="left"
    )
    return found.select(
        pl.col(f"{own}_process").alias("process"),
        pl.col(f"{own}_number").alias("number"),
        pl.lit(None, pl.UInt32).alias("exchange"),
        pl.lit(None, pl.Int64).alias("until_ns"),
        pl.col("peer").alias("for_process"),
    )


def _side(rows: pl.DataFrame, own: str, other: str) -> pl.DataFrame:
    return rows.select(
        pl.col(f"{own}_process").alias("process"),
        pl.col(f"{own}_number").alias("number"),
        pl.lit(None, pl.UInt32).alias("exchange"),
        pl.col(f"{other}_begin_ns").alias("until_ns"),
        pl.col(f"{other}_process").alias("for_process"),
    )


def _keys(exchanges: Exchanges) -> pl.DataFrame:
    known = exchanges.keys.select("place", "key", "first_set_ns", "setter")
    rows = (
        exchanges.key_events.filter(pl.col("part") == "wait")
        .join(known, on=["place", "key"], how="left")
        .filter(pl.col("first_set_ns").is_null() | (pl.col("first_set_ns") > pl.col("begin_ns")))
    )
    return rows.select(
        "process",
        "number",
        pl.lit(None, pl.UInt32).alias("exchange"),
        pl.col("first_set_ns").alias("until_ns"),
        pl.col("setter").alias("for_process"),
    )
