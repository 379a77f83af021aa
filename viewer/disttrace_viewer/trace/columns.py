"""The columns of a trace's two tables, and expressions on them.

The operations table holds numbers only, some 90 bytes a row; what many operations share is in the
calls table.
"""

from __future__ import annotations

import polars as pl

OPERATIONS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),  # index into Trace.processes
    "number": pl.UInt32(),  # the operation's number in its process
    "call": pl.UInt32(),  # row of Trace.calls
    "thread": pl.UInt16(),  # thread number in the process
    "parent": pl.UInt32(),  # number of the innermost composed operation around it
    "seq": pl.UInt32(),  # from 1; null where it takes none
    "key": pl.UInt32(),  # index into Trace.keys
    "source": pl.Int32(),  # group rank of the source of an any-source receive
    "error": pl.UInt32(),  # index into Trace.errors
    "refused": pl.Boolean(),  # raised on issue: nothing was handed to the backend
    "lost": pl.Boolean(),  # its end was never seen, and never will be
    "asked": pl.Boolean(),  # the same, although the program asked, or no program could have known
    "bytes": pl.Int64(),  # where the call does not fix them
    "begin_ns": pl.Int64(),
    "issued_ns": pl.Int64(),
    "wait_begin_ns": pl.Int64(),
    "complete_ns": pl.Int64(),  # completion as first seen (of the device, on NCCL)
    "end_ns": pl.Int64(),  # over for this process; null: in flight
}
"""Ordered by ``begin_ns``, then process and number."""

TIMES = ("begin_ns", "issued_ns", "wait_begin_ns", "complete_ns", "end_ns")

CALLS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "op": pl.String(),
    "kind": pl.String(),  # collective, message, store, constructor, composed, unknown
    "group": pl.UInt32(),  # index into Trace.groups
    "group_rank": pl.Int32(),  # own rank in it
    "backend": pl.String(),
    "device": pl.String(),
    "async": pl.Boolean(),
    "shapes": pl.List(pl.List(pl.Int64())),
    "dtypes": pl.List(pl.String()),
    "bytes": pl.Int64(),
    "splits": pl.String(),  # JSON
    "reduce_op": pl.String(),
    "root": pl.Int32(),  # group rank
    "peer": pl.Int32(),  # group rank
    "tag": pl.Int64(),
    "store": pl.UInt32(),  # index into Trace.stores
    "name": pl.String(),
    "origin": pl.String(),
    "stack": pl.UInt32(),  # index into Trace.stacks
    "args": pl.String(),  # JSON object
    "signature": pl.UInt32(),  # same op, root, dtypes, shapes, splits, reduce op
}

COMPLETIONS: dict[str, pl.DataType] = {
    "process": pl.UInt32(),
    "number": pl.UInt32(),
    "slack_ns": pl.Int64(),  # it completed within this time before complete_ns
    "device_ns": pl.Int64(),  # duration by the backend's own clock
}

IN_FLIGHT: pl.Expr = pl.col("end_ns").is_null() & pl.col("error").is_null()
"""Begun and not known to be over (a ``lost`` one may well be)."""

STATUS: pl.Expr = (
    pl.when(pl.col("error").is_not_null())
    .then(pl.lit("error"))
    .when(pl.col("end_ns").is_null())
    .then(pl.lit("in_flight"))
    .otherwise(pl.lit("ok"))
    .alias("status")
)

WAIT_END: pl.Expr = (
    pl.when(pl.col("wait_begin_ns").is_not_null()).then(pl.col("end_ns")).alias("wait_end_ns")
)
"""When the waiting ended; null for a call that has not waited or still does."""
