"""How much of its communication a process hid behind work of its own.

An operation is under way from its begin until it was seen to be complete. It holds its process up
in its call and in the wait for it; what C++ or a device waits for, where nobody sees the wait, from
the last begin on of another one beside it: before, the process was still issuing. What is under way
while nothing holds the process up is hidden, behind computation or whatever else it does.
"""

from __future__ import annotations

import polars as pl

from disttrace_viewer.analysis.timing.wait_states import WaitStates, exclusive, stretches

COLUMNS = {"process": pl.UInt32(), "in_flight_ns": pl.Int64(), "overlapped_ns": pl.Int64()}


def overlap(waits: WaitStates) -> pl.DataFrame:
    """One row per process that communicates: ``process``, ``in_flight_ns`` (something of it was
    under way, or held it up), ``overlapped_ns`` (the part of that in which nothing held it up).
    """
    rows = waits.parts.with_row_index("_row")
    if not rows.height:
        return pl.DataFrame(schema=COLUMNS)
    done = waits.exchanges.trace.operations.select("process", "number", "complete_ns")
    rows = rows.join(done, on=["process", "number"], how="left", maintain_order="left")
    begins = rows.select("process", _last="begin_ns").sort("_last")
    newest = rows.select("_row", "process", at=pl.col("end_ns") - 1).sort("at")
    newest = newest.join_asof(
        begins, left_on="at", right_on="_last", by="process", check_sortedness=False
    )
    rows = rows.join(newest.select("_row", "_last"), on="_row", how="left", maintain_order="left")
    unseen = pl.col("unseen") & pl.col("wait_begin_ns").is_null()
    later = pl.max_horizontal("begin_ns", "_last")
    holding = stretches(
        rows.with_columns(begin_ns=pl.when(unseen).then(later).otherwise("begin_ns")), waits.lives
    )
    flying = rows.with_columns(issued_ns=None, end_ns=pl.coalesce("complete_ns", "end_ns"))
    all_of_it = pl.concat([stretches(flying, waits.lives), holding])
    whole, held = (
        _sums(rows, pieces, name)
        for pieces, name in ((all_of_it, "in_flight_ns"), (holding, "_held"))
    )
    return (
        whole.join(held, on="process", how="left", maintain_order="left")
        .with_columns(overlapped_ns=pl.col("in_flight_ns") - pl.col("_held"))
        .select(*COLUMNS)
        .cast(COLUMNS)  # type: ignore[arg-type]
        .sort("process")
    )


def _sums(rows: pl.DataFrame, pieces: pl.DataFrame, name: str) -> pl.DataFrame:
    parts = rows.select("_row", "process").join(exclusive(pieces, name), on="_row", how="left")
    return parts.group_by("process").agg(pl.col(name).sum())
