"""Who an operation waited for, as arrows between operations: what timelines draw."""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges

ARROWS: dict[str, pl.DataType] = {
    "what": pl.String(),  # "message" or "collective"
    "from_process": pl.UInt32(),
    "from_number": pl.UInt32(),
    "from_ns": pl.Int64(),
    "to_process": pl.UInt32(),
    "to_number": pl.UInt32(),
    "to_ns": pl.Int64(),
}


def arrows(exchanges: Exchanges) -> pl.DataFrame:
    """One row per arrow, by the time it starts.

    A message leads from the begin of its send to the end of its receive; in a collective the last
    to come leads to all that were still in it then, at their ends. Ends that are in flight have
    no arrow: nobody knows yet that they will be let go by this.
    """
    both = pl.concat([_messages(exchanges), _collectives(exchanges)])
    return both.filter(pl.col("to_ns") >= pl.col("from_ns")).sort("from_ns", maintain_order=True)


def _messages(exchanges: Exchanges) -> pl.DataFrame:
    rows = exchanges.messages.filter(
        pl.col("send_begin_ns").is_not_null()
        & pl.col("recv_end_ns").is_not_null()
        & pl.col("recv_error").is_null()
    )
    return rows.select(
        pl.lit("message").alias("what"),
        pl.col("send_process").alias("from_process"),
        pl.col("send_number").alias("from_number"),
        pl.col("send_begin_ns").alias("from_ns"),
        pl.col("recv_process").alias("to_process"),
        pl.col("recv_number").alias("to_number"),
        pl.col("recv_end_ns").alias("to_ns"),
    ).cast(ARROWS)  # type: ignore[arg-type]


def _collectives(exchanges: Exchanges) -> pl.DataFrame:
    members = exchanges.participants()
    last = members.group_by("exchange", maintain_order=True).agg(
        pl.col("process").last().alias("from_process"),
        pl.col("number").last().alias("from_number"),
        pl.col("begin_ns").last().alias("from_ns"),
    )
    others = (
        members.join(last, on="exchange", how="left", maintain_order="left")
        .filter(pl.col("process") != pl.col("from_process"))
        .filter(pl.col("end_ns").is_not_null() & pl.col("error").is_null())
    )
    return others.select(
        pl.lit("collective").alias("what"),
        "from_process",
        "from_number",
        "from_ns",
        pl.col("process").alias("to_process"),
        pl.col("number").alias("to_number"),
        pl.col("end_ns").alias("to_ns"),
    ).cast(ARROWS)  # type: ignore[arg-type]
