"""The timeline as one HTML page: operations as columns, and all that they refer to as JSON.

Operations are ordered by process, then begin. Times are nanoseconds from the launch.

A document, which ``page/data.js`` reads, is gzip of: the length of a JSON head as a 32-bit number,
that head, spaces up to a multiple of four, then the columns as 32-bit numbers, little-endian. A
``wide`` column is two of them, all low halves before all high ones; a ``delta`` column holds
differences to the number before.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import linecache
import os
import stat
import sys
from array import array
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

import orjson
import polars as pl

from disttrace.journal.code_files import is_library
from disttrace.journal.format import ON_DEVICE
from disttrace.redact import Masker
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.analysis.schedule import Schedule, critical_path
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.analysis.what_if import WhatIf
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import RuleFinding
from disttrace_viewer.load.announcements import SHOWN
from disttrace_viewer.trace import operation
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Call, JobTrace
from disttrace_viewer.trace.process import Frame, Stack
from disttrace_viewer.trace.values import asdict
from disttrace_viewer.views import tables
from disttrace_viewer.views.tables import shared
from disttrace_viewer.views.timeline.tracks import Tracks, placed, waits
from disttrace_viewer.wording.differences import WHAT_IF, left_out, path_note, stretch
from disttrace_viewer.wording.sentences import group as group_words
from disttrace_viewer.wording.sentences import state

OPERATIONS = 1_000_000
"""So many a browser holds; beyond, the page has the newest and all in flight, with a note."""


def shown(trace: JobTrace) -> pl.DataFrame:
    """The operations that the page holds, by begin: the newest, and all in flight."""
    table = trace.operations
    if table.height <= OPERATIONS:
        return table
    table = table.with_row_index("_row")
    open_ = table.filter(IN_FLIGHT).tail(OPERATIONS)
    rest = table.join(open_.select("_row"), on="_row", how="anti")
    kept = pl.concat([open_, rest.tail(max(0, OPERATIONS - open_.height))])
    return kept.sort("_row").drop("_row")


_Numbered = dict[bytes, int]
"""Values that many refer to, each once, as JSON with its number."""


def _number(known: _Numbered, value: Any) -> int:
    return known.setdefault(orjson.dumps(value), len(known))


class _Content:
    def __init__(self, trace: JobTrace, *, source: bool) -> None:
        self._trace = trace
        begun = max((one.start_ns for one in trace.processes), default=0)
        self._sources = Sources(begun) if source else None
        self._exchanges = Exchanges(trace)
        found = verdict_on(trace, self._exchanges)
        self._case, self._findings = found.case, found.findings
        self._waits = WaitStates(self._exchanges, blame=found.blame)
        self._tracks = Tracks()
        rows = placed(trace, self._tracks, shown(trace))
        self._start = trace.launch_ns
        self._rows = rows.sort("process", "begin_ns", "number").with_row_index("index")
        self._calls: _Numbered = {}
        self._stacks: _Numbered = {}
        self._keys: _Numbered = {}

    def pack(self) -> bytes:
        """For the page, in letters that HTML leaves as they are."""
        columns = Columns()
        self._operations(columns)
        self._collectives(columns)
        self._messages(columns)
        return columns.document(self._head())

    def _head(self) -> dict[str, Any]:
        trace = self._trace
        return {
            "start_ns": str(self._start),
            "total": trace.operations.height,
            "processes": [self._process(index) for index in range(len(trace.processes))],
            "tracks": [
                {"process": one.process, "name": self._track(one.process, one.thread)}
                for one in self._tracks.known
            ],
            "findings": [self._finding(one) for one in self._findings],
            "groups": [
                {
                    "kind": one.described,
                    "name": one.name,
                    "label": group_words(one, trace),
                    "ranks": one.ranks,
                }
                for one in trace.groups
            ],
            "said": [
                {"at": one["at"], "summary": one["summary"]} for one in self._case.said[-SHOWN:]
            ],
            "run": gains(trace, self._waits),
            "errors": trace.errors,
            "calls": [*map(orjson.loads, self._calls)],
            "keys": [*map(orjson.loads, self._keys)],
            "stacks": [*map(orjson.loads, self._stacks)],
        }

    def _process(self, index: int) -> dict[str, Any]:
        one, end = self._trace.processes[index], self._case.evidence.ends[index]
        names = ("label", "rank", "role", "host", "pid", "attempt")
        return {
            **{name: getattr(one, name) for name in names},
            "id": self._trace.short_ids[index],
            "state": end.state,
            "word": state(end),
            "first": one.start_ns - self._start,
            "last": one.last_ns - self._start,
            "samples": [
                [sample.t_ns - self._start, self._stack(sample.stack)] for sample in one.samples
            ],
        }

    def _stack(self, stack: Stack) -> int:
        """Frames, with their text where it is known; which is the innermost of the user's."""
        mine = innermost(stack)
        frames = [[*frame, *self._text(frame)] for frame in stack]
        return _number(self._stacks, [frames, -1 if mine is None else stack.index(mine)])

    def _text(self, frame: Frame) -> Iterator[str]:
        text = self._sources and self._sources.text(frame)
        if text:
            yield text

    def _track(self, process: int, thread: int | None) -> str:
        if thread is None:
            return "asynchronous"
        return self._trace.processes[process].threads.get(thread, f"thread {thread}")

    # -- columns -----------------------------------------------------------------------------

    def _operations(self, columns: Columns) -> None:
        trace = self._trace
        waited = waits(self._waits).select("process", "number", "until_ns", "for_process")
        waited = waited.with_columns(waits=True)
        rows = self._rows.join(waited, on=["process", "number"], how="left", maintain_order="left")
        after = {
            name: (pl.col(f"{name}_ns") - pl.col("begin_ns")).alias(name)
            for name in ("end", "issued", "wait_begin", "complete")
        }
        begin, lasts = pl.col("begin_ns"), pl.col("end_ns") - pl.col("begin_ns")
        rows = rows.with_columns(
            (begin - self._start).alias("begin"),
            # As long as it lasts where what it waited for has not come.
            until=pl.when(pl.col("waits").is_null())
            .then(0)
            .when(pl.col("until_ns").is_null())
            .then(lasts)
            .otherwise((pl.col("until_ns") - begin).clip(0, lasts.fill_null(1 << 62))),
            **after,
        )
        alike = self._first_of_equal(rows["call"])
        rows = rows.join(alike, on="call", how="left", maintain_order="left")
        keys = [
            None if key is None else _number(self._keys, trace.full_key(call, key))
            for call, key in rows.select("first", "key").iter_rows()
        ]
        columns.add("process", rows["process"], delta=True)
        columns.add("number", rows["number"], delta=True)
        columns.add("track", rows["track"])
        columns.add("call", rows["kept"])
        columns.add("seq", rows["seq"])
        columns.add("begin", rows["begin"], delta=True, wide=True)
        for name in ("end", "until", "issued", "wait_begin", "complete", "bytes"):
            columns.add(name, rows[name], wide=True)
        columns.add("for", rows["for_process"])
        columns.add("error", rows["error"])
        columns.add("key", pl.Series(keys, dtype=pl.UInt32))

    def _first_of_equal(self, calls: pl.Series) -> pl.DataFrame:
        """``call first kept``: of those that differ in nothing that the page has, the first one and
        its number there."""
        # Of the rank in its group only whether it is the root (see _on_bus).
        about = self._trace.calls.with_row_index("call").drop("process")
        about = about.with_columns(group_rank=pl.col("root") == pl.col("group_rank"))
        used = calls.unique(maintain_order=True).to_frame()
        used = used.join(about, on="call", maintain_order="left")
        found = used.group_by(pl.exclude("call"), maintain_order=True).agg(pl.col("call"))
        found = found.select("call", first=pl.col("call").list.first())
        kept = [self._call(number) for number in found["first"].to_list()]
        return found.with_columns(kept=pl.Series(kept, dtype=pl.UInt32)).explode("call")

    def _call(self, number: int) -> int:
        call = self._trace.call(number)
        kept = shared(self._trace, number)
        kept.pop("group_ranks", None)  # of the group
        kept["stack"] = self._stack(self._trace.call(number).stack)
        kept["in"] = call.group
        kept["bus"] = _on_bus(self._trace, call)
        kept["unseen"] = call.origin == "c++" or call.backend in ON_DEVICE or None
        return _number(self._calls, {name: v for name, v in kept.items() if v is not None})

    def _collectives(self, columns: Columns) -> None:
        """Collectives with a member here: one band each; and their members, as indices."""
        table = self._exchanges.collectives
        members = (
            self._exchanges.participants()
            .select("exchange", "process", "number")
            .join(self._places("index"), on=["process", "number"], maintain_order="left")
        )
        rows = table.join(members.select("exchange").unique(), on="exchange", how="semi").sort(
            "exchange"
        )
        numbered = rows.select("exchange", place=pl.int_range(pl.len()))
        again = members.join(numbered, on="exchange", maintain_order="left")
        columns.add("ex_expected", rows["expected"])
        columns.add("ex_arrived", rows["arrived"])
        columns.add("ex_last", rows["last_process"])
        columns.add("ex_last_begin", rows["last_ns"] - self._start, delta=True, wide=True)
        columns.add("member_ex", again["place"], delta=True)
        columns.add("member_op", again["index"])

    def _messages(self, columns: Columns) -> None:
        """Matched messages with both ends here: one arrow each."""
        rows = self._exchanges.messages
        for side in ("send", "recv"):
            names = {"process": f"{side}_process", "number": f"{side}_number"}
            places = self._places(f"{side}_index").rename(names)
            rows = rows.join(places, on=list(names.values()), maintain_order="left")
        columns.add("msg_send", rows["send_index"])
        columns.add("msg_recv", rows["recv_index"])

    def _places(self, name: str) -> pl.DataFrame:
        return self._rows.select("process", "number", pl.col("index").alias(name))

    # -- findings ----------------------------------------------------------------------------

    def _finding(self, found: RuleFinding) -> dict[str, Any]:
        """As ``diagnose --json`` has it, with who and what to look at."""
        case: Case = self._case
        return {
            **as_values(case, found),
            "at": (found.at_ns or self._trace.end_ns) - self._start,
            "processes": sorted({*found.culprits, *found.waiting}),
            "culprit_processes": list(found.culprits),
            **self._focus(found),
        }

    def _focus(self, found: RuleFinding) -> dict[str, Any]:
        """The collective that shows it best: when it was, and the culprit's part."""
        table = self._exchanges.collectives
        groups = [one.index for one in self._trace.groups if one.id == found.group]
        if groups:
            table = table.filter(pl.col("group").is_in(groups))
        if found.seq is not None:
            table = table.filter(pl.col("seq") == found.seq)
        elif found.culprits:
            table = table.filter(pl.col("last_process").is_in(list(found.culprits)))
        table = table.with_columns(late=pl.col("last_ns") - pl.col("first_ns")).sort("late")
        if found.seq is None and table.height:
            at = [f"{where.file}:{where.line}" for where in found.locations]
            lines = tables.calls(self._trace, {"line"}).filter(pl.col("line").is_in(at))
            here = self._exchanges.participants(table["exchange"])
            here = here.join(lines, on="call", how="semi")
            table = table.join(here, on="exchange", how="semi", maintain_order="left")
        # Of many late ones neither the worst, which is often the first, nor one that hardly was.
        usual = table.slice(3 * (table.height - 1) // 4, 1)
        exchanges = usual["exchange"].to_list() if groups and found.op else []
        if not exchanges:
            return {"from": None, "to": None, "operation": None}
        members = self._exchanges.participants(exchanges)
        ends = members["end_ns"].max() if members["end_ns"].null_count() == 0 else None
        begins: Iterable[int] = members["begin_ns"].to_list()
        mine = members.filter(pl.col("process").is_in(list(found.culprits))).join(
            self._places("index"), on=["process", "number"]
        )
        return {
            "from": min(begins) - self._start,
            "to": self._trace.end_ns - self._start if ends is None else int(ends) - self._start,  # type: ignore[arg-type]
            "operation": mine["index"].to_list()[-1] if mine.height else None,
        }


def _on_bus(trace: JobTrace, call: Call) -> float | None:
    """Bytes on the bus for each byte of a collective; None where no bus bandwidth is defined."""
    members = None if call.group is None else trace.groups[call.group].size
    root = call.root is not None and call.root == call.group_rank
    shape = operation.on_bus(call.op, members, root=root)
    return None if shape is None else shape[0] * shape[1]


NONE = (1 << 32) - 1
"""Null in a narrow column; in a wide one null is -1."""


class Columns:
    """The columns of a document under construction, by name."""

    def __init__(self) -> None:
        self._described: list[dict[str, Any]] = []
        self._data: list[bytes] = []

    def add(self, name: str, values: pl.Series, *, wide: bool = False, delta: bool = False) -> None:
        """Whole numbers below 2**32 - 1, or null; ``wide``: of 64 bits, where null is -1."""
        values = values.cast(pl.Int64).fill_null(-1 if wide else NONE)
        self._described.append({"name": name, "rows": values.len(), "wide": wide, "delta": delta})
        number = pl.col("number").diff().fill_null(pl.col("number")) if delta else pl.col("number")
        halves = values.to_frame("number").select(
            low=number & NONE, high=number.floordiv(1 << 32) & NONE
        )
        self._data.append(_bytes(halves["low"].to_list()))
        if wide:
            self._data.append(_bytes(halves["high"].to_list()))

    def document(self, head: dict[str, Any]) -> bytes:
        """Head and columns in letters that HTML leaves as they are."""
        text = orjson.dumps({**head, "columns": self._described})
        text += b" " * (-len(text) % 4)
        packed = gzip.compress(b"".join([_bytes([len(text)]), text, *self._data]), 6, mtime=0)
        return base64.b64encode(packed)


def _bytes(values: Iterable[int]) -> bytes:
    numbers = array("I", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


STRETCHES = 100
"""Of the critical path; the rest is one row."""
_MOST_OF_GAINS = 500_000
"""Of more operations a page does not work this out, which takes longer than the page itself."""


def gains(trace: JobTrace, waits: WaitStates) -> dict[str, Any] | None:
    """``what_if`` and ``path``: a note, and rows, largest first; None where the run is too long."""
    if trace.operations.height > _MOST_OF_GAINS:
        return None
    lines = tables.calls(trace, {"line"}).select("call", "line")
    schedule = Schedule(waits, lines)
    what_if = WhatIf(schedule)
    path = critical_path(schedule)
    whole = int(path["time_ns"].sum())
    gained = [
        {**one._asdict(), "without": asdict(one.without), "text": left_out(what_if, one, trace)}
        for one in what_if.best
    ]
    stretches = [
        {**row, "text": stretch(row), "share": row["time_ns"] / whole}
        for row in path.head(STRETCHES).to_dicts()
    ]
    rest = int(path.slice(STRETCHES)["time_ns"].sum())
    return {
        "what_if": {"note": WHAT_IF, "rows": gained},
        "path": {"note": path_note(whole), "rows": stretches, "rest": rest},
    }


LONGEST = 160
"""Characters of a line that are shown."""
LARGEST = 4_000_000
"""Bytes of a file that is read: none that a person wrote is larger."""


class Sources:
    """Lines of files. ``before_ns``: what was written later is not what ran."""

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns
        self._masked = Masker()

    def text(self, frame: Frame) -> str | None:
        """The line of a frame of the program, masked as journals are; None where it is not known.

        A journal may come from anywhere and name any file, so only Python's are looked at.
        """
        if not self._readable(frame.file):
            return None
        line = linecache.getline(frame.file, frame.line).strip()
        return self._masked.text(line[:LONGEST]) or None

    def _readable(self, path: str) -> bool:
        if not path.endswith(".py") or not os.path.isabs(path) or is_library(path):
            return False
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return False
        fits = stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST
        return fits and about.st_mtime_ns <= self._before_ns


SCRIPTS = (
    *("data", "words", "lanes", "find", "paint", "bands", "map", "sums", "inspect", "grid"),
    *("tables", "move", "start"),
)
"""The page's program, in the order in which it stands there."""


def lines(trace: JobTrace, *, source: bool = True) -> Iterator[bytes]:
    """The page in pieces; ``source``: with the text of the program's lines, where it is here."""
    style = _part("page.css")
    script = '"use strict";\n' + "".join(_part(f"{name}.js") for name in SCRIPTS)
    title = ", ".join(job.id for job in trace.jobs) or "disttrace"
    page = _part("page.html")
    for mark, text in {
        "script-digest": _digest(script),
        "style-digest": _digest(style),
        "/*style*/": style,
        "/*script*/": script,
        "<!--title-->": html.escape(title),
    }.items():
        page = page.replace(mark, text)
    before, _, after = page.partition("<!--trace-->")
    yield before.encode()
    yield _Content(trace, source=source).pack()
    yield after.encode()


def _part(name: str) -> str:
    return resources.files(__package__).joinpath("page").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
