"""Which operations belong to initialization: until groups are ready, and the agents' own."""

from __future__ import annotations

import polars as pl

from disttrace_viewer.trace.model import Trace

MAKERS = ("init_process_group", "new_group", "new_subgroups", "split_group", "shrink_group")
"""What a group is said to be made by."""
JOINING = (*MAKERS, "new_subgroups_by_enumeration", "rendezvous")
"""Composed operations that make groups, with all that they issue in stores."""


def of_agents(trace: Trace) -> pl.Expr:
    """Whether an operation is of an agent."""
    return pl.col("process").is_in([p.index for p in trace.processes if p.is_agent])


def initialization_of(trace: Trace) -> pl.DataFrame:
    """Columns ``process``, ``number``, ``depth``: agents' operations, constructors, and what
    makes groups with everything inside it except collectives and messages."""
    calls = trace.calls.lazy().with_row_index("call").select("call", "op", "kind", "origin")
    ours = trace.operations.lazy().select("process", "number", "call", "parent")
    ours = ours.join(calls, on="call")
    talk = pl.col("kind").is_in(["collective", "message"])
    inner = ours.filter(pl.col("parent").is_not_null() & ~talk).collect()
    roots = ours.filter(
        pl.col("op").is_in(JOINING)
        | (pl.col("kind") == "constructor")
        | (of_agents(trace) & ~talk)
        | ((pl.col("kind") == "store") & (pl.col("origin") == "c++"))
    ).collect()
    found = level = roots.select("process", "number", depth=pl.lit(0, pl.Int32))
    depth = 0
    while level.height:
        depth += 1
        above = level.select("process", pl.col("number").alias("parent"))
        level = inner.join(above, on=["process", "parent"], how="semi").select(
            "process", "number", depth=pl.lit(depth, pl.Int32)
        )
        found = pl.concat([found, level])
    return found.group_by("process", "number", maintain_order=True).agg(pl.col("depth").max())
