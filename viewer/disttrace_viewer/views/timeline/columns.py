"""Columns of numbers as bytes that a browser turns into typed arrays: deltas, little-endian.

What is packed here is unpacked by ``page/data.js``. A document is gzip of: the length of a JSON
head as a 32-bit number, that head, spaces up to a multiple of four, then the columns one behind the
other as 32-bit numbers. A ``wide`` column is two of them, all low halves before all high ones; a
``delta`` column holds differences to the number before.
"""

from __future__ import annotations

import base64
import gzip
import linecache
import os
import stat
import sys
from array import array
from collections.abc import Iterable
from typing import Any

import orjson
import polars as pl

from disttrace.journal.code_files import is_library
from disttrace.redact import Masker
from disttrace_viewer.analysis.schedule import Schedule, critical_path
from disttrace_viewer.analysis.wait_states import WaitStates
from disttrace_viewer.analysis.what_if import WhatIf
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.trace.values import asdict
from disttrace_viewer.views import tables
from disttrace_viewer.wording.differences import WHAT_IF, left_out, path_note, stretch

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
OPERATIONS = 500_000
"""Of more operations a page does not work this out, which takes longer than the page itself."""


def gains(trace: JobTrace, waits: WaitStates) -> dict[str, Any] | None:
    """``what_if`` and ``path``: a note, and rows, largest first; None where the run is too long."""
    if trace.operations.height > OPERATIONS:
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
