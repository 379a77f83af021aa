"""One JSON object per operation, ordered by begin: the export that other tools read.

The fields and their meaning are a contract; every key is always there,
null where it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import polars as pl

from disttrace_viewer.trace.columns import STATUS, WAIT_END
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.call_fields import FIELDS, OF_A_CALL, VARYING, values

CHUNK_ROWS = 5_000
_ENCODED = (*OF_A_CALL, "bytes")


def lines(trace: Trace) -> Iterator[bytes]:
    """The export in pieces of whole lines.

    A line is put together in the columnar engine: what all operations of a call share is encoded
    once, in the gaps between the fields that differ.
    """
    encoder = _Encoder(trace)
    for chunk in trace.operations.iter_slices(CHUNK_ROWS):
        text = encoder.encode(chunk.with_columns(STATUS, WAIT_END)).str.join("\n").item()
        yield text.encode() + b"\n"


class _Encoder:
    """Encodes operations as lines; keeps the encoded gaps of every call it met."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._gaps: dict[int, list[str]] = {}
        self._errors = pl.Series("error", [_json(e) for e in trace.errors], dtype=pl.String)

    def encode(self, chunk: pl.DataFrame) -> pl.Series:
        """One line per row, without the newline."""
        calls = chunk["call"].unique()
        names = [f"gap{number}" for number in range(len(VARYING) + 1)]
        gaps = pl.DataFrame(
            [[call, *self._of(call)] for call in calls.to_list()],
            schema={"call": pl.UInt32, **dict.fromkeys(["short", "size", *names], pl.String)},
            orient="row",
        )
        values = (
            chunk.lazy()
            .with_columns(pl.Series("error", self._errors.gather(chunk["error"])))
            .join(self._keys(chunk), on=["call", "key"], how="left", maintain_order="left")
            .join(
                self._peers(chunk),
                on=["call", "source"],
                how="left",
                nulls_equal=True,
                maintain_order="left",
            )
            .join(gaps.lazy(), on="call", how="left", maintain_order="left")
        )
        return values.select(_line(names).alias("line")).collect().to_series()

    def _of(self, call: int) -> list[str]:
        found = self._gaps.get(call)
        if found is None:
            shared = values(self._trace, call, _ENCODED)
            short = self._trace.short_ids[self._trace.call(call).process]
            found = self._gaps[call] = [short, _json(shared["bytes"]), *_split(shared)]
        return found

    def _keys(self, chunk: pl.DataFrame) -> pl.LazyFrame:
        pairs = chunk.select("call", "key").drop_nulls().unique()
        texts = [_json(self._trace.full_key(call, key)) for call, key in pairs.iter_rows()]
        return pairs.lazy().with_columns(pl.Series("_key", texts, dtype=pl.String))

    def _peers(self, chunk: pl.DataFrame) -> pl.LazyFrame:
        """Peers by call and source: the call's own, or of a receive from any source."""
        pairs = chunk.select("call", "source").unique()
        ranks, texts = [], []
        for number, source in pairs.iter_rows():
            call = self._trace.call(number)
            rank = call.peer if source is None else source
            group = self._trace.group_of(call)
            ranks.append(_json(rank))
            texts.append(_json(group.global_rank(rank) if group else None))
        named = {"_rank": ranks, "_peer": texts}
        columns = [pl.Series(name, values, dtype=pl.String) for name, values in named.items()]
        return pairs.lazy().with_columns(columns)


def _line(gaps: list[str]) -> pl.Expr:
    """The gaps with the varying fields between them."""
    null = pl.lit("null")
    parent = pl.concat_str(pl.lit('"'), "short", pl.lit("."), "parent", pl.lit('"'))
    special = {
        "id": pl.concat_str(pl.lit('"'), "short", pl.lit("."), "number", pl.lit('"')),
        "parent": parent.fill_null(null),
        "status": pl.concat_str(pl.lit('"'), "status", pl.lit('"')),
        "error": pl.col("error").fill_null(null),
        "key": pl.col("_key").fill_null(null),
        "peer": pl.col("_peer"),
        "peer_group_rank": pl.col("_rank"),
        "bytes": pl.coalesce(pl.col("bytes").cast(pl.String), "size"),
    }
    parts: list[pl.Expr] = []
    for gap, name in zip(gaps, VARYING, strict=False):
        number = pl.col(name).cast(pl.String).fill_null(null)
        parts += [pl.col(gap), special.get(name, number)]
    return pl.concat_str(*parts, pl.col(gaps[-1]))


def _split(shared: Mapping[str, Any]) -> list[str]:
    """The encoded object, cut open where the varying fields have their values."""
    gaps, text = [], "{"
    for name in FIELDS:
        text += f'"{name}":'
        if name in VARYING:
            gaps.append(text)
            text = ","
        else:
            text += _json(shared[name]) + ","
    return [*gaps, text[:-1] + "}"]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
