"""Lines that hold nothing but whole numbers, into columns without a look at any one of them.

A line without its digits says which keys its record has, and a journal has a dozen such shapes. All
lines without everything else are rows of CSV, which is read five times as fast as JSON.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

_DIGITS = string.digits.encode()
_NAMES = b'{}":' + string.ascii_lowercase.encode()
_NUMBERS = re.compile(r'\{"[a-z]":(?:,"[a-z]":)*\}')
Fields = Mapping[str, pl.DataType]


def shapes(data: bytes, count: int) -> pl.Series | None:
    """Each of ``count`` lines without its digits; None where they are not as many."""
    try:
        found = pl.read_csv(
            data.translate(None, _DIGITS),
            separator="\x01",
            quote_char=None,
            has_header=False,
            schema={"shape": pl.String},
        )["shape"]
    except pl.exceptions.PolarsError:
        return None
    # A line of digits alone has no shape, which CSV reads as null.
    return found.fill_null("") if len(found) == count else None


def frames(
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
            ",".join(names).encode() + b"\n" + data.translate(None, _NAMES),
            quote_char=None,
            schema=dict.fromkeys(names, pl.Int64),
            truncate_ragged_lines=True,
            ignore_errors=True,
        )
    except pl.exceptions.PolarsError:
        return None
