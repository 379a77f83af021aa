"""The timeline as one HTML file: a lane per process, arrows, findings on top; nothing is loaded.

The page (``timeline.html``) draws what stands in it as JSON. It holds the newest operations and all
that are in flight, up to a bound, and says when that is not everything.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from importlib import resources
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.diagnosis.diagnose import diagnose
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.diagnosis.report import state
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.trace.columns import IN_FLIGHT, STATUS
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.call_fields import shared
from disttrace_viewer.views.timeline.arrows import arrows
from disttrace_viewer.views.timeline.tracks import Tracks, placed

OPERATIONS = 5000
"""So many a browser draws and drags about without a pause."""
_DATA, _TITLE = "/*trace*/null", "<!--title-->"
_FIELDS = ("seq", "bytes", "issued_ns", "wait_begin_ns", "complete_ns")


def lines(trace: Trace) -> Iterator[bytes]:
    """The page in pieces."""
    page = resources.files(__package__).joinpath("timeline.html").read_text("utf-8")
    before, _, after = page.partition(_DATA)
    title = ", ".join(job.id for job in trace.jobs) or "disttrace"
    yield before.replace(_TITLE, html.escape(title)).encode()
    yield _embedded(_data(trace))
    yield after.encode()


def _embedded(data: dict[str, Any]) -> bytes:
    """JSON that cannot end the script it stands in, whatever a program put into its strings."""
    text = orjson.dumps(data)
    for character in (b"<", b">", b"&"):
        text = text.replace(character, b"\\u%04x" % ord(character))
    return text


def _data(trace: Trace) -> dict[str, Any]:
    case, findings = diagnose(trace)
    tracks = Tracks()
    rows = placed(trace, tracks, shown(trace))
    start = rows["begin_ns"].min() if rows.height else trace.end_ns
    assert isinstance(start, int)
    calls: dict[int, int] = {}
    operations = [
        _operation(trace, row, calls, start) for row in rows.with_columns(STATUS).to_dicts()
    ]
    return {
        "start": start,
        "end": (trace.end_ns - start) / 1000,
        "total": trace.operations.height,
        "processes": [
            {
                "label": process.label,
                "host": process.host,
                "pid": process.pid,
                "rank": process.rank,
                "state": state(case, process.index),
                "last": (process.last_ns - start) / 1000,
            }
            for process in trace.processes
        ],
        "tracks": [
            {"process": track.process, "name": _track_name(trace, track.process, track.thread)}
            for track in tracks.known
        ],
        "calls": [shared(trace, call) for call in calls],
        "operations": operations,
        "arrows": _arrows(trace, rows),
        "findings": [_finding(case, found, start) for found in findings],
    }


def shown(trace: Trace) -> pl.DataFrame:
    """The operations that the page holds, by begin: the newest, and all in flight."""
    table = trace.operations.with_row_index("_row")
    open_ = table.filter(IN_FLIGHT).tail(OPERATIONS)
    rest = table.join(open_.select("_row"), on="_row", how="anti")
    kept = pl.concat([open_, rest.tail(max(0, OPERATIONS - open_.height))])
    return kept.sort("_row").drop("_row")


def _operation(
    trace: Trace, row: dict[str, Any], calls: dict[int, int], start: int
) -> dict[str, Any]:
    """One operation; times in microseconds from the start of the page, others from its begin."""
    begin, end, process = row["begin_ns"], row["end_ns"], row["process"]
    found: dict[str, Any] = {
        "id": trace.operation_id(process, row["number"]),
        "process": process,
        "track": row["track"],
        "call": calls.setdefault(row["call"], len(calls)),
        "begin": (begin - start) / 1000,
        "duration": None if end is None else (end - begin) / 1000,
        "status": row["status"],
    }
    for name in _FIELDS:
        value = row[name]
        if value is not None:
            found[name] = value if not name.endswith("_ns") else value - begin
    if row["parent"] is not None:
        found["parent"] = trace.operation_id(process, row["parent"])
    if row["key"] is not None:
        found["key"] = trace.full_key(row["call"], row["key"])
    if row["error"] is not None:
        found["error"] = trace.errors[row["error"]]
    return found


def _track_name(trace: Trace, process: int, thread: int | None) -> str:
    if thread is None:
        return "asynchronous"
    known = trace.processes[process].threads.get(thread)
    return known.name if known is not None else f"thread {thread}"


def _arrows(trace: Trace, rows: pl.DataFrame) -> list[list[Any]]:
    """[index of an operation, index of another one, when it starts, when it ends]."""
    start = rows["begin_ns"].min()
    places = rows.select("process", "number").with_row_index("index")
    found = arrows(Exchanges(trace))
    for side in ("from", "to"):
        keys = [f"{side}_process", f"{side}_number"]
        names = dict(zip(places.columns, (f"{side}_index", *keys), strict=True))
        found = found.join(places.rename(names), on=keys, how="inner", maintain_order="left")
    times = [((pl.col(name) - start) / 1000).alias(name) for name in ("from_ns", "to_ns")]
    return [list(row) for row in found.select("from_index", "to_index", *times).iter_rows()]


def _finding(case: Case, found: Finding, start: int) -> dict[str, Any]:
    values = as_values(case, found)
    values["at"] = ((found.at_ns or case.evidence.trace.end_ns) - start) / 1000
    values["processes"] = sorted({*found.culprits, *found.waiting})
    return values
