"""Tables for query engines: a folder of Parquet files, operations in partitions.

``operations/job=J/ranks=N/`` holds those of the ranks 64 N to 64 N + 63 of a job, since a file per
rank is thousands of small ones. What has no rank (agents) is in ``ranks=none``.
"""

from __future__ import annotations

import os
import urllib.parse

import orjson
import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import together
from disttrace_viewer.views import tables

BUCKET = 64
"""Ranks of a partition."""
MARK = "processes.parquet"
"""Written last: a folder that holds it is whole."""
OPERATIONS = (
    *("rank", "process", "number", "thread", "parent", "op", "kind"),
    *("group", "group_desc", "group_rank", "backend", "seq", "peer"),
    *("begin_ns", "issued_ns", "wait_begin_ns", "complete_ns", "end_ns", "duration_ns"),
    *("bytes", "status", "error", "line"),
)
"""Of ``operations``; ``wait_ns`` and the partitions ``job`` and ``ranks`` come to them."""


def write(trace: JobTrace, folder: str) -> None:
    """All tables into a folder that exists."""
    waits = WaitStates(Exchanges(trace))
    _operations(trace, waits, folder)
    files = {
        "exchanges": tables.collectives(waits),
        "store_operations": tables.store_operations(waits.exchanges),
        "findings": _findings(waits.exchanges),
        "groups": tables.groups(trace),
        "processes": tables.processes(trace),
    }
    for name, table in files.items():
        table.write_parquet(os.path.join(folder, f"{name}.parquet"))


def is_export(folder: str) -> bool:
    """Whether a folder is one that ``write`` has made (or is empty)."""
    return os.path.isdir(folder) and (not os.listdir(folder) or MARK in os.listdir(folder))


def _operations(trace: JobTrace, waits: WaitStates, folder: str) -> None:
    waited = waits.parts.select("process", "number", "wait_ns")
    rows = trace.operations.join(
        waited, on=["process", "number"], how="left", maintain_order="left"
    )
    buckets = together(
        ((one.job, "none" if one.rank is None else str(one.rank // BUCKET)), one.index)
        for one in trace.processes
    )
    for (job, part), members in buckets.items():
        mine = rows.filter(pl.col("process").is_in(members))
        if not mine.height:
            continue
        name = urllib.parse.quote(job, safe="")  # as Hive writes a part of a path
        place = os.path.join(folder, "operations", f"job={name}", f"ranks={part}")
        os.makedirs(place)
        table = tables.operations(trace, OPERATIONS, mine).with_columns(mine["wait_ns"])
        table.write_parquet(os.path.join(place, "part-0.parquet"))


def _findings(exchanges: Exchanges) -> pl.DataFrame:
    """The findings of ``diagnose --json``; nested fields are JSON as text."""
    verdict = verdict_on(exchanges.trace, exchanges)
    rows = []
    for found in verdict.findings:
        values = as_values(verdict.case, found)
        nested = {name: orjson.dumps(values[name]).decode() for name in ("cycle", "locations")}
        rows.append({**values, **nested})
    return pl.DataFrame(rows, schema=_FINDINGS)


_FINDINGS = {
    **dict.fromkeys(("kind", "severity", "certainty", "summary", "hint"), pl.String()),
    "culprits": pl.List(pl.String()),
    "culprit_ranks": pl.List(pl.Int64()),
    "waiting": pl.List(pl.String()),
    "waiting_ranks": pl.List(pl.Int64()),
    **dict.fromkeys(("op", "group"), pl.String()),
    "seq": pl.Int64(),
    **dict.fromkeys(("key", "cycle", "locations"), pl.String()),
    "consequences": pl.List(pl.String()),
}
