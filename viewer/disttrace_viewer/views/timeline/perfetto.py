"""Trace-event JSON, for ui.perfetto.dev and chrome://tracing: the timeline of all processes.

A process is a track group with its threads; operations are complete slices, those in flight have a
begin and no end, and a mark. Arrows lead from a send to its receive, and from the last to come to a
collective to the others. Findings are instants, on a track of their own and where they concern.
Times are microseconds from the first begin (``otherData`` has its unix time): unix times would not
fit into the doubles of JavaScript to the nanosecond.

The format: "Trace Event Format", Duca and Sinclair, Google, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.diagnosis.diagnose import diagnose
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.trace.model import Process, Trace
from disttrace_viewer.views.timeline.arrows import arrows
from disttrace_viewer.views.timeline.slices import Clock, Event, Slices, pid, tid
from disttrace_viewer.views.timeline.tracks import Track, Tracks, placed

CHUNK_ROWS = 50_000


def lines(trace: Trace) -> Iterator[bytes]:
    """The document in pieces, one event per line."""
    start = trace.operations["begin_ns"].min() if trace.operations.height else trace.end_ns
    assert isinstance(start, int)
    yield _head(trace, start)
    separator = b"\n"
    for piece in _pieces(trace, _clock(start)):
        yield separator + piece
        separator = b",\n"
    yield b"\n]}\n"


def _head(trace: Trace, start: int) -> bytes:
    other = {
        "producer": "disttrace",
        "start_unix_ns": start,
        "jobs": [job.id for job in trace.jobs],
        "clock_error_ns": max((clock.error_ns for clock in trace.clocks), default=0),
    }
    head = {"displayTimeUnit": "ns", "otherData": other}
    return orjson.dumps(head)[:-1] + b',"traceEvents":['


def _clock(start: int) -> Clock:
    return lambda ns: (ns - start) / 1000


def _pieces(trace: Trace, us: Clock) -> Iterator[bytes]:
    """Events, several to a piece, without a comma at the end."""
    tracks, slices = Tracks(), Slices(trace, us)
    where = []
    for first in range(0, trace.operations.height, CHUNK_ROWS):
        chunk = trace.operations.slice(first, CHUNK_ROWS)
        rows = placed(trace, tracks, chunk)
        where.append(rows.select("process", "number", "track", "begin_ns", "end_ns"))
        yield b",\n".join(slices.of(rows))
    for event in _names(trace, tracks):
        yield orjson.dumps(event)
    for event in _ends(trace, us):
        yield orjson.dumps(event)
    if where:
        yield from _flows(trace, pl.concat(where), us)
    for event in _findings(*diagnose(trace), us):
        yield orjson.dumps(event)


_FINDINGS_TID = 999_999


def _names(trace: Trace, tracks: Tracks) -> Iterator[Event]:
    """What tracks are called, and their order: ranks first, in their order."""
    ordered = sorted(trace.processes, key=lambda p: (p.rank is None, p.rank or 0, p.start_ns))
    for place, process in enumerate(ordered):
        yield _meta("process_name", process.index, name=_process_name(process))
        yield _meta("process_sort_index", process.index, sort_index=place)
    for number, track in enumerate(tracks.known):
        yield _meta("thread_name", track.process, number, name=_track_name(trace, track))
        order = track.lane + 1000 if track.thread is None else track.thread
        yield _meta("thread_sort_index", track.process, number, sort_index=order)


def _meta(what: str, process: int, track: int | None = None, **args: Any) -> Event:
    event: Event = {"name": what, "ph": "M", "pid": pid(process), "args": args}
    return event if track is None else {**event, "tid": tid(track)}


def _process_name(process: Process) -> str:
    label = process.label if process.rank is not None else process.role
    again = f", attempt {process.attempt}" if process.attempt else ""
    return f"{label} ({process.host}, {process.pid or '?'}{again})"


def _track_name(trace: Trace, track: Track) -> str:
    if track.thread is None:
        return "asynchronous" if track.lane == 1 else f"asynchronous {track.lane}"
    thread = trace.processes[track.process].threads.get(track.thread)
    return thread.name if thread is not None else f"thread {track.thread}"


def _ends(trace: Trace, us: Clock) -> Iterator[Event]:
    """How processes ended: their uncaught exceptions and their last words."""
    for process in trace.processes:
        for failure in process.failures:
            said = f"{failure.type}: {failure.text}"
            stack = [f"{f}:{line} {name}" for f, line, name in failure.stack]
            yield _instant(said, "end", us(failure.t_ns), process.index, stack=stack)
        if process.exit is not None:
            said = f"end ({process.exit.how})"
            yield _instant(said, "end", us(process.exit.t_ns), process.index, **_code(process))


def _code(process: Process) -> Mapping[str, Any]:
    code = None if process.exit is None else process.exit.code
    return {} if code is None else {"code": code}


def _instant(name: str, kind: str, ts: float, process: int, /, **args: Any) -> Event:
    """A mark over all tracks of a process."""
    at: Event = {"ts": ts, "pid": pid(process), "tid": _FINDINGS_TID, "args": args}
    return {"name": name, "cat": kind, "ph": "i", "s": "p", **at}


def _flows(trace: Trace, where: pl.DataFrame, us: Clock) -> Iterator[bytes]:
    """Arrows as pairs of flow events; each must lie on the slice that it belongs to.

    Perfetto lets an arrow lead to the start of a slice, and turns one around whose slice started
    first. So where somebody came late, what had waited gets a slice inside that starts then.
    """
    labels = [p.label for p in trace.processes]
    for number, row in enumerate(_arrows(trace, where).iter_rows(), start=1):
        what, source, start, came, target, end, begin, until, crowded = row
        shared = {"name": what, "cat": what, "id": number}
        leaves = {**shared, "ph": "s", "pid": pid(source), "tid": tid(start), "ts": us(came)}
        place = {"pid": pid(target), "tid": tid(end)}
        arrives = {**shared, "ph": "f", "bp": "e", **place, "ts": us(max(begin, came))}
        if begin < came < until and not crowded:
            there = {"name": f"{labels[source]} is there", "cat": "exchange", "ph": "X", **place}
            there |= {"ts": us(came), "dur": (until - came) / 1000}
            yield orjson.dumps(there)
        yield orjson.dumps(leaves) + b",\n" + orjson.dumps(arrives)


def _arrows(trace: Trace, where: pl.DataFrame) -> pl.DataFrame:
    """Arrows with the tracks of both ends, and whether something else is inside the target."""
    following = pl.col("begin_ns").shift(-1).over("track", order_by="begin_ns")
    places = where.with_columns((following < pl.col("end_ns")).fill_null(False).alias("crowded"))
    found = arrows(Exchanges(trace))
    for side in ("from", "to"):
        kept = ("process", "number", "track", "begin_ns", "crowded")
        names = {name: f"{side}_{name}" for name in kept}
        found = found.join(
            places.select(*kept).rename(names),
            on=[f"{side}_process", f"{side}_number"],
            how="left",
            maintain_order="left",
        )
    return found.select(
        "what", "from_process", "from_track", "from_ns", "to_process", "to_track",
        "to_begin_ns", "to_ns", "to_crowded",
    )  # fmt: skip


def _findings(case: Case, findings: tuple[Finding, ...], us: Clock) -> Iterator[Event]:
    """Each finding once in full above everything, and by its kind on those whom it concerns."""
    trace = case.evidence.trace
    own = len(trace.processes)
    if findings:
        yield _meta("process_name", own, name="findings")
        yield _meta("process_sort_index", own, sort_index=-1)
    for found in findings:
        at = us(found.at_ns or trace.end_ns)
        values = as_values(case, found)
        args = {name: value for name, value in values.items() if value not in (None, [])}
        yield _instant(f"{found.kind}: {found.summary}", found.severity, at, own, **args)
        for process in sorted({*found.culprits, *found.waiting}):
            part = "culprit" if process in found.culprits else "waits"
            yield _instant(
                f"{found.kind} ({part})", found.severity, at, process, summary=found.summary
            )
