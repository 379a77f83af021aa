"""Arrows between operations: one per matched message, one with many ends per collective."""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges

ENDS: dict[str, pl.DataType] = {
    "what": pl.String(),  # "message" or "collective"
    "id": pl.UInt32(),
    "leaves": pl.Boolean(),  # the one start of the arrow; else one of its ends
    "from_process": pl.UInt32(),
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "came_ns": pl.Int64(),  # when the operation at its start began
}


def ends(exchanges: Exchanges) -> pl.DataFrame:
    """Starts and ends of arrows, a start before its ends.

    A message leads from its send to its receive. A collective leads from the last to arrive to all
    others in it, also to those in flight: they are in the same one, whether or not all have come.
    """
    messages = _messages(exchanges)
    found = pl.concat([messages, _collectives(exchanges, messages.height // 2)])
    return found.cast(ENDS)  # type: ignore[arg-type]


def _messages(exchanges: Exchanges) -> pl.DataFrame:
    rows = exchanges.messages.filter(
        pl.col("send_begin_ns").is_not_null() & pl.col("recv_begin_ns").is_not_null()
    ).with_row_index("id", offset=1)
    sides = [
        rows.select(
            pl.lit("message").alias("what"),
            "id",
            pl.lit(value=side == "send").alias("leaves"),
            pl.col("send_process").alias("from_process"),
            pl.col(f"{side}_process").alias("process"),
            pl.col(f"{side}_number").alias("number"),
            pl.col("send_begin_ns").alias("came_ns"),
        )
        for side in ("send", "recv")
    ]
    return pl.concat(sides).sort("id", maintain_order=True)


def _collectives(exchanges: Exchanges, known: int) -> pl.DataFrame:
    members = exchanges.participants()
    last = pl.int_range(pl.len()) == pl.len() - 1
    return members.select(
        pl.lit("collective").alias("what"),
        (pl.col("exchange") + known + 1).alias("id"),
        last.over("exchange").alias("leaves"),
        pl.col("process").last().over("exchange").alias("from_process"),
        "process",
        "number",
        pl.col("begin_ns").last().over("exchange").alias("came_ns"),
    ).sort("id", ~pl.col("leaves"), maintain_order=True)
