"""Trace-event JSON, for ui.perfetto.dev and chrome://tracing: the timeline of all processes.

A process is a track group with its threads; operations are complete slices, those in flight up to
the last sign of life of their process. Times are microseconds from the first begin (``otherData``
has its unix time): unix times would not fit into the doubles of JavaScript.

The format: "Trace Event Format", Duca and Sinclair, Google, 2016.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load import files
from disttrace_viewer.load.foreign.kineto import unpacked
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.clock import to_unix
from disttrace_viewer.trace.columns import STATUS
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.views.tables import shared
from disttrace_viewer.views.timeline.tracks import Tracks, placed, until
from disttrace_viewer.wording.names import duration, spans

_ROW = (
    "process", "number", "call", "track", "seq", "key", "source", "error", "bytes",
    "begin_ns", "issued_ns", "wait_begin_ns", "complete_ns", "until_ns", "status",
)  # fmt: skip
Event = dict[str, Any]
Clock = Callable[[int], float]
"""From unix nanoseconds to the format's microseconds."""


def pid(process: int) -> int:
    """Of a track group. Pids are no names: hosts and containers have the same ones."""
    return process + 1


def tid(track: int) -> int:
    """Of a track, unlike all others' and all pids: Perfetto knows threads by this number alone."""
    return 1_000_000 + track


class Slices:
    """Encodes operations; keeps the encoded part that all operations of a call share."""

    def __init__(self, trace: JobTrace, us: Clock) -> None:
        self._trace = trace
        self._us = us
        self._shared: dict[int, tuple[str, str, bytes]] = {}

    def of(self, rows: pl.DataFrame) -> Iterator[bytes]:
        """The slices of rows of the operations table with their ``track`` and ``until_ns``."""
        return map(self._one, rows.with_columns(STATUS).select(_ROW).iter_rows())

    def _one(self, row: tuple[Any, ...]) -> bytes:
        """The slice of an operation."""
        (
            process, number, call, track, seq, key, source, error, size,
            begin, issued, wait, complete, until, status,
        ) = row  # fmt: skip
        name, kind, shared = self._call(call)
        own = {
            "id": f"{self._trace.short_ids[process]}.{number}",
            "status": status,
            "error": None if error is None else self._trace.errors[error],
            "seq": seq,
            "bytes": size,
            "key": None if key is None else self._trace.full_key(call, key),
            "source": source,
            "issued_us": self._after(begin, issued),
            "wait_begin_us": self._after(begin, wait),
            "complete_us": self._after(begin, complete),
        }
        args = orjson.dumps({name: value for name, value in own.items() if value is not None})
        place = {"pid": pid(process), "tid": tid(track), "ts": self._us(begin)}
        if seq is not None:
            name = f"{name} #{seq}"
        event: Event = {"name": name, "cat": kind, **place, "ph": "X"}
        event["dur"] = (until - begin) / 1000
        if status == "in_flight":
            event |= {"name": f"{name} (in flight {duration(until - begin)})", "cname": "terrible"}
        joint = b"," if len(shared) > 2 else b""
        return orjson.dumps(event)[:-1] + b',"args":' + args[:-1] + joint + shared[1:] + b"}"

    def _call(self, number: int) -> tuple[str, str, bytes]:
        found = self._shared.get(number)
        if found is None:
            call = self._trace.call(number)
            kept = shared(self._trace, number)
            stack = [f"{file}:{line} {function}" for file, line, function in kept.pop("stack")]
            if stack:
                kept["stack"] = stack
            if "group_ranks" in kept:
                kept["group_ranks"] = spans(kept["group_ranks"])  # not one line for each
            if "args" in kept:
                kept["arguments"] = kept.pop("args")  # they stand in what the format calls "args"
            del kept["op"], kept["kind"]  # the name and the category of the slice
            name = call.name if call.op == "annotate" and call.name else call.op
            found = self._shared[number] = (name, call.kind, orjson.dumps(kept))
        return found

    def _after(self, begin: int, moment: int | None) -> float | None:
        return None if moment is None else (moment - begin) / 1000


CHUNK_ROWS = 50_000


def lines(trace: JobTrace, start: int | None = None) -> Iterator[bytes]:
    """The document in pieces, one event per line; its zero is the launch or ``start``."""
    start = trace.launch_ns if start is None else start
    yield _head(trace, start)
    separator = b"\n"
    for piece in _pieces(trace, lambda ns: (ns - start) / 1000):
        yield separator + piece
        separator = b",\n"
    yield b"\n]}\n"


OURS = "disttrace.json"


class _OtherProfile(NamedTuple):
    """A trace of another tool of one of our processes."""

    path: str
    name: str
    """In the archive."""
    machine: str
    zero_ns: int
    """When its own time was zero, by the clock of all processes."""
    first_ns: int


def archive(trace: JobTrace, paths: Sequence[str]) -> Iterator[bytes]:
    """A TAR of the document and of profiles, with the manifest by which Perfetto shows them on one
    time line. Raises ViewerError for a file that is no profile of one of the processes."""
    profiles = [_profile(trace, path, number) for number, path in enumerate(paths, 1)]
    # What is before zero Perfetto leaves out.
    start = min([trace.launch_ns, *(one.first_ns for one in profiles)])
    placed = [
        {
            "path": one.name,
            "machine": {"name": one.machine},
            "clocks": {"sync_to": {"file": OURS}, "offset_ns": one.zero_ns - start},
        }
        for one in profiles
    ]
    manifest = {"version": 1, "files": [{"path": OURS}, *placed]}
    yield from _member("perfetto_manifest.json", orjson.dumps({"perfetto_manifest": manifest}))
    yield from _member(OURS, b"".join(lines(trace, start)))
    for one in profiles:
        yield from _member(one.name, _content(one.path))
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, data: bytes) -> Iterator[bytes]:
    head = tarfile.TarInfo(name)
    head.size = len(data)
    yield from (head.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % tarfile.BLOCKSIZE))


def _content(path: str) -> bytes:
    """Of a profile, which may be a gzip."""
    try:
        data, beyond = files.read(path)
        data, more = unpacked(data, files.MOST_BYTES)
    except (OSError, zlib.error) as error:
        raise ViewerError(f"{plain(path)} cannot be read: {error}.") from error
    if beyond or more:
        raise ViewerError(f"{plain(path)} is too large: profile fewer steps.")
    return data


def _profile(trace: JobTrace, path: str, number: int) -> _OtherProfile:
    """One of ``torch.profiler`` (its rank is in it) or VizTracer (pids of one host are)."""
    try:
        value = orjson.loads(_content(path))
        events = [one for one in value["traceEvents"] if one.get("ph") != "M"]
        first = round(min(one["ts"] for one in events if "ts" in one) * 1000)
        of = value.get("viztracer_metadata", value).get("baseTimeNanoseconds", 0) + first
        rank = value.get("distributedInfo", {}).get("rank")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ViewerError(f"{plain(path)} is no profile: trace events have no times.") from error
    pids = {one.get("pid") for one in events}
    made = [p for p in trace.processes if p.pid in pids and rank in (None, p.rank)]
    clocks = {p.clock for p in made}
    if len(clocks) != 1:
        why = "processes of several hosts have its pids" if clocks else "no process has its pids"
        raise ViewerError(f"{plain(path)} cannot be placed: {why}.")
    clock = trace.clocks[clocks.pop()]
    at = to_unix(clock, of - clock.offset_ns + clock.moved_ns)  # it is a reading of the wall clock
    labels = ", ".join(p.label for p in made) if len(made) < _FEW else f"{len(made)} processes"
    file = os.path.basename(path)
    name = f"profile-{number}.json"  # its clock is the time line's if it is sorted before ours
    # One machine for two files would be one thread, in which slices must not cross.
    machine = f"{labels} of {made[0].host}, {number}: {plain(file)}"
    return _OtherProfile(path, name, machine, at - first, at)


_FEW = 4


def _head(trace: JobTrace, start: int) -> bytes:
    other = {
        "producer": "disttrace",
        "start_unix_ns": start,
        "jobs": [job.id for job in trace.jobs],
        "clock_error_ns": max((clock.error_ns for clock in trace.clocks), default=0),
    }
    head = {"displayTimeUnit": "ns", "otherData": other}
    return orjson.dumps(head)[:-1] + b',"traceEvents":['


def _pieces(trace: JobTrace, us: Clock) -> Iterator[bytes]:
    """Events, several to a piece, without a comma at the end."""
    tracks, slices = Tracks(), Slices(trace, us)
    exchanges = Exchanges(trace)
    found = verdict_on(trace, exchanges)
    where = []
    for chunk in trace.operations.iter_slices(CHUNK_ROWS):
        rows = placed(trace, tracks, chunk).with_columns(until_ns=until(trace))
        where.append(rows.select("process", "number", "track", "begin_ns", "until_ns"))
        yield b",\n".join(slices.of(rows))
    yield from map(orjson.dumps, (*_names(trace, tracks), *_ends(trace, us)))
    if where:
        yield from _flows(trace, exchanges, pl.concat(where), us)
    yield from map(orjson.dumps, _findings(found.case, found.findings, us))


_FINDINGS_TID = 999_999


def _names(trace: JobTrace, tracks: Tracks) -> Iterator[Event]:
    """What tracks are called, and their order: ranks first, in their order."""
    ordered = sorted(trace.processes, key=lambda p: (p.rank is None, p.rank or 0, p.start_ns))
    for place, process in enumerate(ordered):
        label = process.label if process.rank is not None else process.role
        again = f", attempt {process.attempt}" if process.attempt else ""
        name = f"{label} ({process.host}, {process.pid or '?'}{again})"
        yield from _named("process", process.index, name, place)
    for number, track in enumerate(tracks.known):
        if track.thread is None:
            name = "asynchronous" if track.lane == 1 else f"asynchronous {track.lane}"
            order = track.lane + 1000
        else:
            threads, order = trace.processes[track.process].threads, track.thread
            name = threads.get(track.thread, f"thread {track.thread}")
        yield from _named("thread", track.process, name, order, tid=tid(number))


def _named(what: str, process: int, name: str, order: int, **at: int) -> Iterator[Event]:
    for part, value in (("name", name), ("sort_index", order)):
        where = {"pid": pid(process), **at, "args": {part: value}}
        yield {"name": f"{what}_{part}", "ph": "M", **where}


def _ends(trace: JobTrace, us: Clock) -> Iterator[Event]:
    """How processes ended: their uncaught exceptions and their last words."""
    for process in trace.processes:
        for failure in process.failures:
            text = f"{failure.type}: {failure.text}"
            stack = [f"{f}:{line} {name}" for f, line, name in failure.stack]
            yield _instant(text, "end", us(failure.t_ns), process.index, stack=stack)
        if process.exit is not None:
            end, text = process.exit, f"end ({process.exit.how})"
            code = {} if end.code is None else {"code": end.code}
            yield _instant(text, "end", us(end.t_ns), process.index, **code)


def _instant(name: str, kind: str, ts: float, process: int, /, **args: Any) -> Event:
    """A mark over all tracks of a process."""
    at: Event = {"ts": ts, "pid": pid(process), "tid": _FINDINGS_TID, "args": args}
    return {"name": name, "cat": kind, "ph": "i", "s": "p", **at}


def _flows(
    trace: JobTrace, exchanges: Exchanges, where: pl.DataFrame, us: Clock
) -> Iterator[bytes]:
    """Arrows as flow events, of one id per message and per collective; each must lie on a slice.

    Perfetto turns an arrow around whose slice started first. So where a rank arrived late, what had
    waited gets a slice inside that starts then.
    """
    labels = [p.label for p in trace.processes]
    for row in _arrows(exchanges, where).iter_rows():
        what, number, leaves, source, target, place, came, begin, until, crowded = row
        event = {"name": what, "cat": what, "id": number, "pid": pid(target), "tid": tid(place)}
        if leaves:
            yield orjson.dumps({**event, "ph": "s", "ts": us(came)})
            continue
        arrives = {**event, "ph": "f", "bp": "e", "ts": us(max(begin, came))}
        if begin < came < until and not crowded:
            part = {"name": f"{labels[source]} arrived", "cat": "exchange", "ph": "X"}
            at = {"pid": pid(target), "tid": tid(place), "ts": us(came)}
            yield orjson.dumps({**part, **at, "dur": (until - came) / 1000})
        yield orjson.dumps(arrives)


def _arrows(exchanges: Exchanges, where: pl.DataFrame) -> pl.DataFrame:
    """Starts and ends of arrows, a start before its ends, with their tracks, and whether something
    else is inside: from a send to its receive, from the last to arrive to all others."""
    sends = pl.col("side") == "send"
    sent = (
        exchanges.message_ends()
        .filter(pl.col("other_ns").is_not_null())
        .select(
            (pl.col("exchange") + 1).alias("id"),
            "process",
            "number",
            what=pl.lit("message"),
            leaves=sends,
            from_process=pl.when(sends).then("process").otherwise("other"),
            came_ns=pl.when(sends).then("begin_ns").otherwise("other_ns"),
        )
        .collect()
    )
    joined = exchanges.participants().select(
        (pl.col("exchange") + exchanges.messages.height + 1).alias("id"),
        "process",
        "number",
        what=pl.lit("collective"),
        leaves=(pl.int_range(pl.len()) == pl.len() - 1).over("exchange"),
        from_process=pl.col("process").last().over("exchange"),
        came_ns=pl.col("begin_ns").last().over("exchange"),
    )
    following = pl.col("begin_ns").shift(-1).over("track", order_by="begin_ns")
    places = where.with_columns((following < pl.col("until_ns")).fill_null(False).alias("crowded"))
    return (
        pl.concat([sent, joined], how="vertical_relaxed")
        .sort("id", ~pl.col("leaves"), maintain_order=True)
        .join(places, on=["process", "number"], maintain_order="left")
        .select(
            "what", "id", "leaves", "from_process", "process", "track", "came_ns", "begin_ns",
            "until_ns", "crowded",
        )
    )  # fmt: skip


def _findings(case: Case, findings: tuple[RuleFinding, ...], us: Clock) -> Iterator[Event]:
    """Each finding once in full above everything, and by its kind on the ranks that it concerns."""
    own = len(case.trace.processes)
    if findings:
        yield from _named("process", own, "findings", -2)
    for found in findings:
        at = us(found.at_ns or case.trace.end_ns)
        values = as_values(case, found)
        args = {name: value for name, value in values.items() if value not in (None, [])}
        yield _instant(f"{found.kind}: {found.summary}", found.severity, at, own, **args)
        for process in sorted({*found.culprits, *found.waiting}):
            part = "culprit" if process in found.culprits else "waits"
            yield _instant(
                f"{found.kind} ({part})", found.severity, at, process, summary=found.summary
            )
