"""Segments into columns: whole chunks of lines at once, line by line only where one is damaged."""

from __future__ import annotations

import re
import string
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson
import polars as pl

import disttrace.journal.format as fmt
from disttrace_viewer.load.fates import MARKS, Signs
from disttrace_viewer.load.schema import Checker, json_object
from disttrace_viewer.load.text import Text
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.values import dataclass, field

CHUNK_BYTES = 4 << 20
"""Text that is parsed at once: small enough to be in the caches and to use every core."""
LIST_MARK = "\0"
"""Begins the text of a key that was a list, as JSON; a key that begins so is shown escaped."""

_I = pl.Int64()
_BEGIN: Mapping[str, pl.DataType] = dict.fromkeys(("b", "t", "s", "h", "q", "p", "n", "r"), _I)
_KEYED: Mapping[str, pl.DataType] = {**_BEGIN, "k": pl.String()}
_RICH: Mapping[str, pl.DataType] = {**_KEYED, "a": pl.String()}
_END: Mapping[str, pl.DataType] = dict.fromkeys(
    ("e", "d", "u", "v", "n", "q", "y", "x", "f", "r"), _I
)
_MARK: Mapping[str, pl.DataType] = dict.fromkeys(("i", "w", "c", "l", "d", "g", "z", "o"), _I)

_SHAPES = (
    (_BEGIN, (fmt.BEGIN,)),
    (_END, (fmt.END,)),
    (_MARK, tuple(MARKS)),
)
_FIELDS = {key: fields for fields, keys in _SHAPES for key in keys}
_BOUNDS: Mapping[str, tuple[int, int]] = {
    key: fmt.BOUNDS[type_]
    for _, kinds in _SHAPES
    for kind in kinds
    for key, type_ in fmt.FIELDS[kind].items()
    if type_ in fmt.BOUNDS
}
"""Smallest and largest value of a column; a key has one type in all of these records."""
_NEEDED = ("b", "t", "e", "d")
"""Keys that every record has whose fields name them."""

_PIECE = 2_000
"""Lines that are looked at one by one when one among them is damaged."""

_LINE = pl.col("l")
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
    signs: dict[int, Signs] = field(default_factory=dict)
    """What heartbeats, stack samples and heads of segments hold, by file."""
    bad: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Unreadable lines per file: how many, and the number of the first."""


def slices(texts: Iterable[tuple[int, Text]]) -> Iterator[list[Slice]]:
    """Groups of texts of about ``CHUNK_BYTES``; longer texts are cut between lines."""
    pending: list[Slice] = []
    size = 0
    for file, text in texts:
        for part in _parts(file, text):
            pending.append(part)
            size += len(part.text.data)
            if size >= CHUNK_BYTES:
                yield pending
                pending, size = [], 0
    if pending:
        yield pending


def _parts(file: int, text: Text) -> Iterator[Slice]:
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
    lines = _lines(data, parts)
    reader = _Reader(parts)
    begins: list[pl.DataFrame] = []
    ends: list[pl.DataFrame] = []
    marks: list[pl.DataFrame] = []
    shapes = shapes_of(data, lines.height)
    if shapes is not None:
        taken = []
        for shape, key, frame in plain_frames(data, lines, shapes, _FIELDS):
            taken.append(shape)
            kind = begins if key == fmt.BEGIN else ends if key == fmt.END else marks
            kind.append(reader.usable(frame))
        if taken:
            lines = lines.filter(~shapes.is_in(taken))
    found = lines.select(
        begin=_LINE.str.starts_with('{"b":'),
        end=_LINE.str.starts_with('{"e":'),
        mark=pl.any_horizontal(_LINE.str.starts_with(f'{{"{key}":') for key in MARKS),
        rich=_LINE.str.contains_any(['"a":', '"k":[']),
    )
    begin, end, mark, rich = found.iter_columns()
    begins += [
        reader.decode(lines.filter(begin & ~rich), _KEYED),
        reader.one_by_one(lines.filter(begin & rich), _RICH),
    ]
    ends.append(reader.decode(lines.filter(end), _END))
    marks.append(reader.decode(lines.filter(mark), _MARK))
    chunk = Chunk(
        begins=_begins([frame for frame in begins if frame.height]),
        ends=_in_order(ends),
        marks=_in_order(marks),
    )
    chunk.signs = reader.signs(lines.filter(~(begin | end | mark)))
    chunk.bad = reader.bad
    return chunk


def _in_order(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Frames of the same columns as one, in the order of the lines."""
    filled = [frame for frame in frames if frame.height] or frames[:1]
    return filled[0] if len(filled) == 1 else pl.concat(filled, how="vertical").sort("row")


def _begins(frames: list[pl.DataFrame]) -> pl.DataFrame:
    if not frames:
        return pl.DataFrame(schema={"file": pl.UInt32, "row": pl.UInt32, **_RICH})
    frame = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal").sort("row")
    missing = [name for name in ("k", "a") if name not in frame.columns]
    return frame.with_columns(pl.lit(None, pl.String).alias(name) for name in missing)


def _unmarked(keyed: pl.DataFrame) -> pl.DataFrame:
    """Keys that are no lists bear no mark of one."""
    key = pl.col("k")
    shown = pl.concat_str(pl.lit(plain(LIST_MARK)), key.str.slice(1))
    return keyed.with_columns(k=pl.when(key.str.starts_with(LIST_MARK)).then(shown).otherwise(key))


def _rows(data: bytes, name: str) -> pl.DataFrame:
    schema = {name: pl.String}
    return pl.read_csv(data, separator="\x01", quote_char=None, has_header=False, schema=schema)


def _lines(data: bytes, parts: list[Slice]) -> pl.DataFrame:
    count = sum(part.text.lines for part in parts)
    try:
        lines = _rows(data, "l")
    except pl.exceptions.PolarsError:
        lines = pl.DataFrame(schema={"l": pl.String})
    if lines.height != count:
        texts = data.decode(errors="replace").split("\n")[:count]
        lines = pl.DataFrame({"l": texts}, schema={"l": pl.String})
    files = pl.concat(
        [
            pl.Series("file", [part.file], dtype=pl.UInt32).new_from_index(0, part.text.lines)
            for part in parts
        ]
    )
    return lines.with_columns(files, pl.int_range(count, dtype=pl.UInt32).alias("row"))


class _Reader:
    """Decodes lines of one record shape and counts those that cannot be."""

    def __init__(self, parts: list[Slice]) -> None:
        self._parts = parts
        self._checker = Checker()
        self._starts = list(accumulate((part.text.lines for part in parts), initial=0))
        self.bad: dict[int, tuple[int, int]] = {}

    def decode(self, lines: pl.DataFrame, fields: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """The fields of all lines; pieces around a damaged line are read one by one."""
        try:
            values = lines["l"].str.json_decode(pl.Struct(dict(fields)))
        except pl.exceptions.PolarsError:
            values = None
        if values is not None and len(values) == lines.height:
            found = lines.select("file", "row").hstack(values.struct.unnest())
            return self.usable(_unmarked(found) if "k" in fields else found)
        if lines.height <= _PIECE:
            return self.one_by_one(lines, fields)
        step = max(_PIECE, lines.height // 16)
        return pl.concat(
            [self.decode(piece, fields) for piece in lines.iter_slices(step)], how="vertical"
        )

    def one_by_one(self, lines: pl.DataFrame, fields: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """As ``decode``, in Python: for damaged lines, and for values that are no numbers."""
        columns: dict[str, list[Any]] = {name: [] for name in ("file", "row", *fields)}
        for text, file, row in lines.iter_rows():
            values = self._values(text, fields)
            if values is None:
                self._count(row, file)
                continue
            columns["file"].append(file)
            columns["row"].append(row)
            for name, value in zip(fields, values, strict=True):
                columns[name].append(value)
        frame = pl.DataFrame(columns, schema={"file": pl.UInt32, "row": pl.UInt32, **fields})
        return self.usable(frame)

    def usable(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Without the rows that lack what every record of their kind has."""
        needed = [name for name in _NEEDED if name in frame.columns]
        bounds = {name: _BOUNDS[name] for name in frame.columns if name in _BOUNDS}
        if not any(frame[name].null_count() for name in needed) and not _exceeded(frame, bounds):
            return frame
        whole = pl.all_horizontal(
            *(pl.col(name).is_not_null() for name in needed),
            *(
                pl.col(name).is_between(low, high).fill_null(True)
                for name, (low, high) in bounds.items()
            ),
        )
        for row, file in frame.filter(~whole).select("row", "file").iter_rows():
            self._count(row, file)
        return frame.filter(whole)

    def signs(self, lines: pl.DataFrame) -> dict[int, Signs]:
        """What the lines of other kinds hold; those of unknown kinds are passed over."""
        found: dict[int, Signs] = {}
        for text, file, row in lines.iter_rows():
            line = json_object(text)
            kind = next(iter(line), "") if line is not None else ""
            if line is None:
                self._count(row, file)
            elif kind in _SIGNS:
                record = self._checker.record(kind, line)
                if record is None:
                    self._count(row, file)
                else:
                    found.setdefault(file, Signs()).take(kind, record)
        return found

    def _values(self, text: str, fields: Mapping[str, pl.DataType]) -> list[Any] | None:
        """The record's values by field; None if one is not what the format has."""
        line = json_object(text)
        kind = next(iter(line), "") if line is not None else ""
        record = self._checker.record(kind, line) if line and kind in fmt.FIELDS else None
        if record is None:
            return None
        if isinstance(record.get("k"), list):
            record["k"] = LIST_MARK + orjson.dumps(record["k"]).decode()
        elif isinstance(record.get("k"), str) and record["k"].startswith(LIST_MARK):
            record["k"] = plain(LIST_MARK) + record["k"][len(LIST_MARK) :]
        if "a" in record:
            record["a"] = orjson.dumps(record["a"], option=orjson.OPT_SORT_KEYS).decode()
        return [record.get(name) for name in fields]

    def _count(self, row: int, file: int) -> None:
        part = bisect_right(self._starts, row) - 1
        number = row - self._starts[part] + self._parts[part].first
        count, first = self.bad.get(file, (0, number))
        self.bad[file] = (count + 1, min(first, number))


def _exceeded(frame: pl.DataFrame, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a value lies outside of the bounds of its column."""
    if not frame.height:
        return False
    for name, (low, high) in bounds.items():
        least, most = frame[name].min(), frame[name].max()
        if isinstance(least, int) and isinstance(most, int) and not low <= least <= most <= high:
            return True
    return False


# A line without its digits shows which keys its record has, and a journal has a dozen such shapes.
# All lines that hold nothing but whole numbers are, without everything else, rows of CSV, which is
# read five times as fast as JSON.
_DIGITS = string.digits.encode()
_NAMES = b'{}":' + string.ascii_lowercase.encode()
_NUMBERS = re.compile(r'\{"[a-z]":(?:,"[a-z]":)*\}')
Fields = Mapping[str, pl.DataType]


def shapes_of(data: bytes, count: int) -> pl.Series | None:
    """Each of ``count`` lines without its digits; None where they are not as many."""
    try:
        found = _rows(data.translate(None, _DIGITS), "shape")["shape"]
    except pl.exceptions.PolarsError:
        return None
    # A line of digits alone has no shape, which CSV reads as null.
    return found.fill_null("") if len(found) == count else None


def plain_frames(
    data: bytes, lines: pl.DataFrame, found: pl.Series, fields: Mapping[str, Fields]
) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """By shape of lines: the shape, its first key, and a frame of ``file``, ``row`` and all fields
    of records that begin with that key.

    ``lines`` have ``file`` and ``row``, ``found`` are their shapes, ``fields`` are by first key.
    What is no number of 64 bits, and what has other keys, is left to others.
    """
    known = {shape: keys for shape in found.unique() if (keys := _keys(shape, fields)) is not None}
    if not known:
        return
    numbers = _numbers(data, max(map(len, known.values())))
    if numbers is None or numbers.height != lines.height:
        return
    for shape, keys in known.items():
        frame = (
            pl.concat((lines.select("file", "row"), numbers), how="horizontal")
            .filter(found == shape)
            .rename({f"column_{place}": key for place, key in enumerate(keys)})
        )
        if not any(frame[key].null_count() for key in keys):
            yield (
                shape,
                keys[0],
                frame.select(
                    "file",
                    "row",
                    *(
                        pl.col(name) if name in keys else pl.lit(None, type_).alias(name)
                        for name, type_ in fields[keys[0]].items()
                    ),
                ),
            )


def _keys(shape: str, fields: Mapping[str, Fields]) -> Sequence[str] | None:
    """The keys of a shape, if all are fields of one kind of record."""
    if _NUMBERS.fullmatch(shape) is None:
        return None
    keys = shape[2::5]
    known = fields.get(keys[0], {})
    return keys if len({*keys}) == len(keys) and all(key in known for key in keys) else None


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
