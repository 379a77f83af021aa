"""The bytes of a journal's file as clean JSON lines: no NULs, no torn end, UTF-8."""

from __future__ import annotations

import codecs
import re

from disttrace.journal.format import DEF, DEFS_SUFFIX
from disttrace_viewer.load import files
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.trace.values import dataclass

TORN_LIMIT = 1 << 20
"""An unfinished last line is normal; one longer than this is none that disttrace writes."""

LONGEST_LINE = 8 << 20
"""Bytes of a line that is read: a group of a million ranks has room."""

_LARGEST = 1 << 61
"""Of numbers in a segment: times of it add up to less than 64 bits."""

_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else byte for byte in range(256))
_BLANK = re.compile(rb"\n[ \t\r]*(?=\n)")


@dataclass(frozen=True, slots=True)
class Text:
    """Whole lines, each ended by a newline."""

    path: str
    data: bytes
    lines: int


def read(path: str, problems: Problems, most: int = files.MOST_BYTES) -> Text:
    """The usable lines of a file; unreadable files give none and a sentence."""
    try:
        data, beyond = files.read(path, most)
    except OSError as error:
        advice = "check its permissions" if isinstance(error, PermissionError) else "try again"
        problems.add(path, "unreadable", f"cannot be read ({error.strerror}); {advice}.")
        return Text(path, b"", 0)
    if beyond:
        problems.add(
            path,
            "too large",
            f"is larger than {most >> 20:,} MB; what is beyond that ({beyond:,} bytes) was not"
            " read.",
        )
    return clean(path, data, problems)


def segment(path: str, problems: Problems) -> Text:
    """The lines of a segment, which has at least one when nothing is lost of it."""
    found = read(path, problems)
    if not found.data and not problems.of([path]):
        problems.add(path, "empty", "is empty: nothing was written to it, or all of it is lost.")
    return found


def clean(path: str, data: bytes, problems: Problems) -> Text:
    """As ``read``, from bytes."""
    if data.startswith(b"\x1f\x8b"):
        problems.add(path, "compressed", "is compressed and was not read; unpack it (gunzip).")
        return Text(path, b"", 0)
    reserved = data.endswith(b"\0")
    # As an editor or a copy may have left it; polars refuses a file for one wrong byte. A hole: a
    # thread had reserved its place and was killed before it wrote.
    whole = data.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"")
    whole = whole if whole.isascii() else whole.decode(errors="replace").encode()
    data = _cut_end(path, whole, problems)
    # A record is written at once; stacks without the GIL are in pieces, and a kill comes between.
    if whole.startswith(b"{", len(data)) and not reserved:
        problems.cut_off[path] = None
    if _has_giant(data) or (not path.endswith(DEFS_SUFFIX) and has_long_number(data)):
        # Lines keep their numbers, and the reader counts it; fields of definitions have bounds.
        data = b"\n".join(b"?" if _is_beyond(line) else line for line in data.split(b"\n"))
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\n\n" in data or data.startswith(b"\n"):
        data = _BLANK.sub(b"", data).lstrip(b"\n")
    return Text(path, data, data.count(b"\n"))


def _has_giant(data: bytes) -> bool:
    """Whether a line is longer than any that a recorder writes."""
    start = 0
    while len(data) - start > LONGEST_LINE:
        # All lines up to the last end within reach are short enough.
        start = data.rfind(b"\n", start, start + LONGEST_LINE + 1) + 1
        if not start:
            return True
    return False


def has_long_number(data: bytes) -> bool:
    """Of 19 digits or more; to look for them by a pattern takes ten times as long."""
    return b"0" * 19 in data.translate(_DIGITS)


def _is_beyond(line: bytes) -> bool:
    """Whether a line is too long, or has a number that no recorder writes into a segment."""
    if len(line) > LONGEST_LINE:
        return True
    record = json_object(line) if has_long_number(line) else None
    return (
        record is not None
        and DEF not in record
        and any(type(v) in (int, float) and abs(v) >= _LARGEST for v in record.values())
    )


def _cut_end(path: str, data: bytes, problems: Problems) -> bytes:
    """Without an unfinished last line: a process was killed in it or is writing it now."""
    if not data or data.endswith(b"\n"):
        return data
    end = data.rfind(b"\n") + 1
    if json_object(data[end:]) is not None:
        return data + b"\n"
    if len(data) - end > TORN_LIMIT:
        size = f"{(len(data) - end) / 1e6:,.0f} MB"
        problems.add(
            path,
            "noise",
            f"ends in {size} that are no line of a journal; everything before them was read.",
        )
    return data[:end]
