"""Columns of numbers as bytes that a browser turns into typed arrays: deltas, little-endian.

What is packed here is unpacked by ``page/data.js``. A document is gzip of: the length of a JSON
head as a 32-bit number, that head, spaces up to a multiple of four, then the columns one behind the
other as 32-bit numbers. A ``wide`` column is two of them, all low halves before all high ones; a
``delta`` column holds differences to the number before.
"""

from __future__ import annotations

import base64
import gzip
import sys
from array import array
from collections.abc import Iterable
from typing import Any

import orjson
import polars as pl

NONE = (1 << 32) - 1
"""Null in a narrow column; in a wide one null is -1."""


class Columns:
    """The columns of a document under construction, by name."""

    def __init__(self) -> None:
        self._described: list[dict[str, Any]] = []
        self._data: list[bytes] = []

    def narrow(self, name: str, values: pl.Series, *, delta: bool = False) -> None:
        """Whole numbers below 2**32 - 1, or null."""
        self._add(name, values.cast(pl.Int64).fill_null(NONE), wide=False, delta=delta)

    def wide(self, name: str, values: pl.Series, *, delta: bool = False) -> None:
        """Whole numbers of 64 bits, or null, which is -1 here."""
        self._add(name, values.cast(pl.Int64).fill_null(-1), wide=True, delta=delta)

    def _add(self, name: str, values: pl.Series, *, wide: bool, delta: bool) -> None:
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
