"""Segments into columns: lines of numbers alone at once, all others one by one."""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson
import polars as pl

import disttrace.journal.format as fmt
from disttrace_viewer.load.fates import MARKS, Signs
from disttrace_viewer.load.schema import Checker, Record, json_object
from disttrace_viewer.load.text import Text
from disttrace_viewer.trace.values import dataclass

CHUNK_BYTES = 4 << 20
"""Text that is parsed at once: small enough to be in the caches and to use every core."""
LIST_MARK = "\0"
"""Begins the text of a key that was a list, as JSON; a key that begins so is shown escaped."""

Fields = Mapping[str, pl.DataType]
_I = pl.Int64()
_COLUMNS: Sequence[Fields] = (
    {**dict.fromkeys("btshqpnr", _I), "k": pl.String(), "a": pl.String()},
    dict.fromkeys("eduvnqyxfr", _I),
    dict.fromkeys("iwcldgzo", _I),
)
"""Of the tables of begins, ends and marks."""
_TABLES = {fmt.BEGIN: 0, fmt.END: 1, **dict.fromkeys(MARKS, 2)}
"""By a record's first key."""
_SIGNS = (fmt.HEARTBEAT, fmt.STANDS_AT, fmt.SEGMENT)


@dataclass(frozen=True, slots=True)
class Slice:
    """Lines of one file: ``file`` is the caller's number for it, ``first`` its line number."""

    file: int
    text: Text
    first: int


@dataclass(slots=True)
class Chunk:
    """What a chunk of lines held. The frames bear ``file`` and the record's own keys."""

    begins: pl.DataFrame
    ends: pl.DataFrame
    marks: pl.DataFrame
    signs: dict[int, Signs]
    """What heartbeats, stack samples and heads of segments hold, by file."""
    bad: dict[int, tuple[int, int]]
    """Unreadable lines per file: how many, and the number of the first."""


def slices(file: int, text: Text) -> Iterator[Slice]:
    """A text in pieces of at most about ``CHUNK_BYTES``, cut between lines."""
    start, first = 0, 1
    while len(text.data) - start > CHUNK_BYTES:
        end = text.data.rfind(b"\n", start, start + CHUNK_BYTES) + 1
        if end <= start:
            end = text.data.find(b"\n", start) + 1
        data = text.data[start:end]
        yield Slice(file, Text(text.path, data, lines := data.count(b"\n")), first)
        start, first = end, first + lines
    rest = text.data[start:] if start else text.data
    if rest or not start:  # also of an empty text, which may be all that there is
        yield Slice(file, Text(text.path, rest, rest.count(b"\n")), first)


def parse(parts: list[Slice]) -> Chunk:
    """The records in some slices."""
    data = b"".join(part.text.data for part in parts)
    places = _places(parts)
    tables: Sequence[list[pl.DataFrame]] = [[] for _ in _COLUMNS]
    shapes = shapes_of(data, places.height)
    if shapes is not None:
        taken = []
        for shape, key, frame in plain_frames(data, places, shapes):
            taken.append(shape)
            tables[_TABLES[key]].append(frame)
        places = places.filter(~shapes.is_in(taken))
    reader = _Reader(parts)
    reader.take(data.split(b"\n"), places)
    for frames, rows, columns in zip(tables, reader.rows, _COLUMNS, strict=True):
        schema = {"file": pl.UInt32(), "row": pl.UInt32(), **columns}
        frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    begins, ends, marks = map(_in_order, tables)
    return Chunk(begins, ends, marks, reader.signs, reader.bad)


def _in_order(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Frames of the same columns as one, in the order of the lines."""
    filled = [frame for frame in frames if frame.height] or frames[:1]
    return filled[0] if len(filled) == 1 else pl.concat(filled, how="vertical").sort("row")


def _places(parts: list[Slice]) -> pl.DataFrame:
    """The file of each line, and its number among all."""
    files = [pl.Series("file", [part.file], dtype=pl.UInt32) for part in parts]
    counted = zip(files, parts, strict=True)
    column = pl.concat([one.new_from_index(0, part.text.lines) for one, part in counted])
    found = pl.DataFrame({"file": column}).with_row_index("row")
    return found.select("file", "row")


class _Reader:
    """Reads lines one by one, and counts those that are no records."""

    def __init__(self, parts: list[Slice]) -> None:
        self._parts = parts
        self._checker = Checker()
        self._starts = list(accumulate((part.text.lines for part in parts), initial=0))
        self.rows: Sequence[list[tuple[Any, ...]]] = [[] for _ in _COLUMNS]
        self.signs: dict[int, Signs] = {}
        self.bad: dict[int, tuple[int, int]] = {}

    def take(self, lines: Sequence[bytes], places: pl.DataFrame) -> None:
        """Take the lines in these places; those of unknown kinds are passed over."""
        for file, row in places.iter_rows():
            line = json_object(lines[row])
            kind = next(iter(line), "") if line is not None else ""
            table = _TABLES.get(kind)
            if line is not None and table is None and kind not in _SIGNS:
                continue
            record = None if line is None else self._checker.record(kind, line)
            if record is None:
                self._count(row, file)
            elif table is None:
                self.signs.setdefault(file, Signs()).take(kind, record)
            else:
                if kind == fmt.BEGIN:
                    _as_text(record)
                self.rows[table].append((file, row, *map(record.get, _COLUMNS[table])))

    def _count(self, row: int, file: int) -> None:
        part = bisect_right(self._starts, row) - 1
        number = row - self._starts[part] + self._parts[part].first
        count, first = self.bad.get(file, (0, number))
        self.bad[file] = (count + 1, min(first, number))


def _as_text(record: Record) -> None:
    """Have the fields of a begin that are no numbers as a column can hold them."""
    if isinstance(record.get("k"), list):
        record["k"] = LIST_MARK + orjson.dumps(record["k"]).decode()
    if "a" in record:
        record["a"] = orjson.dumps(record["a"], option=orjson.OPT_SORT_KEYS).decode()


# A line without its digits shows which keys its record has, and a journal has a dozen such shapes.
# All lines that hold nothing but whole numbers are, without everything else, rows of CSV, which is
# read five times as fast as JSON.
_DIGITS = string.digits.encode()
_NAMES = b'{}":' + string.ascii_lowercase.encode()
_NUMBERS = re.compile(r'\{"[a-z]":(?:,"[a-z]":)*\}')


def shapes_of(data: bytes, count: int) -> pl.Series | None:
    """Each of ``count`` lines without its digits; None where they are not as many."""
    try:
        found = pl.read_csv(
            data.translate(None, _DIGITS), separator="\x01", quote_char=None, has_header=False,
            schema={"shape": pl.String},
        )["shape"]  # fmt: skip
    except pl.exceptions.PolarsError:
        return None
    # A line of digits alone has no shape, which CSV reads as null.
    return found.fill_null("") if len(found) == count else None


def plain_frames(
    data: bytes, places: pl.DataFrame, found: pl.Series
) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """By shape of lines: the shape, its first key, and a frame of ``file``, ``row`` (as in
    ``places``) and all fields. A shape of which one record is out of bounds is left to others."""
    known = {shape: keys for shape in found.unique() if (keys := _keys(shape)) is not None}
    if not known:
        return
    numbers = _numbers(data, max(map(len, known.values())))
    if numbers is None or numbers.height != places.height:
        return
    for shape, keys in known.items():
        frame = (
            pl.concat((places, numbers), how="horizontal")
            .filter(found == shape)
            .rename({f"column_{place}": key for place, key in enumerate(keys)})
        )
        if all(_within(frame[key], fmt.FIELDS[keys[0]][key]) for key in keys):
            columns = (
                pl.col(name) if name in keys else pl.lit(None, type_).alias(name)
                for name, type_ in _COLUMNS[_TABLES[keys[0]]].items()
            )
            yield shape, keys[0], frame.select("file", "row", *columns)


def _within(column: pl.Series, type_: str) -> bool:
    """Whether all of a column are numbers of a type of the format."""
    low, high = fmt.BOUNDS[type_]
    least, most = column.min(), column.max()
    if column.null_count() or not isinstance(least, int) or not isinstance(most, int):
        return False
    return low <= least <= most <= high


def _keys(shape: str) -> Sequence[str] | None:
    """The keys of a shape, if all are numbers of one kind of record, and it has what it needs."""
    keys = shape[2::5]
    if _NUMBERS.fullmatch(shape) is None or keys[0] not in _TABLES:
        return None
    known = fmt.FIELDS[keys[0]]
    whole = {*fmt.NEEDED[keys[0]]} <= {*keys} and len({*keys}) == len(keys)
    return keys if whole and all(known.get(key) in fmt.BOUNDS for key in keys) else None


def _numbers(data: bytes, most: int) -> pl.DataFrame | None:
    """The first ``most`` numbers of each line, or null where there is none."""
    names = [f"column_{place}" for place in range(most)]
    try:
        return pl.read_csv(
            ",".join(names).encode() + b"\n" + data.translate(None, _NAMES), quote_char=None,
            schema=dict.fromkeys(names, pl.Int64), truncate_ragged_lines=True, ignore_errors=True,
        )  # fmt: skip
    except pl.exceptions.PolarsError:
        return None
