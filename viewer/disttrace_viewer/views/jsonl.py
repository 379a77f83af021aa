"""One JSON object per operation, ordered by begin: the export that other tools read.

The fields and their meaning are a contract; every key is always there,
null where it does not apply.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import polars as pl

from disttrace_viewer.trace.columns import STATUS, WAIT_END
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.views.tables import FIELDS, VARYING, values

CHUNK_ROWS = 5_000
_RANKS = "group_ranks"
_GAPS, _OF_CALLS = VARYING | {_RANKS}, tuple(FIELDS.keys() - {_RANKS})
_NUMBERS = ("thread", "seq", "begin_ns", "issued_ns", "wait_begin_ns", "wait_end_ns")
_ROW = (
    pl.col(*_NUMBERS, "complete_ns", "end_ns").cast(pl.String).fill_null("null"),
    pl.format('"{}"', "status").alias("status"),
    pl.col("call", "number", "parent", "bytes", "error", "key", "source"),
)


def lines(trace: JobTrace) -> Iterator[bytes]:
    """The export line by line; what all operations of a call share is encoded once, and the ranks
    of a group, which may be many, are held once."""
    templates: dict[int, tuple[str, str, dict[str, str]]] = {}
    errors = [_json(error) for error in trace.errors]
    ranks = [_json(None if group.ranks is None else [*group.ranks]) for group in trace.groups]
    for chunk in trace.operations.iter_slices(CHUNK_ROWS):
        for row in chunk.with_columns(STATUS, WAIT_END).select(_ROW).iter_rows(named=True):
            call, parent, source = row["call"], row["parent"], row["source"]
            if call not in templates:
                templates[call] = _template(trace, call)
            template, short, own = templates[call]
            row["id"] = f'"{short}.{row["number"]}"'
            row["parent"] = "null" if parent is None else f'"{short}.{parent}"'
            row["error"] = "null" if row["error"] is None else errors[row["error"]]
            row["key"] = "null" if row["key"] is None else _json(trace.full_key(call, row["key"]))
            row["bytes"] = own["bytes"] if row["bytes"] is None else row["bytes"]
            row["peer"], row["peer_group_rank"] = own["peer"], own["peer_group_rank"]
            if source is not None:  # of a receive from any source
                group = trace.group_of(trace.call(call))
                row["peer"] = _json(group.global_rank(source) if group else None)
                row["peer_group_rank"] = source
            row[_RANKS] = "null" if (of := trace.call(call).group) is None else ranks[of]
            yield (template % row).encode()


def _template(trace: JobTrace, call: int) -> tuple[str, str, dict[str, str]]:
    """The line of a call with gaps for what varies, how ids of its process begin, and what fills
    a gap where the operation says nothing else.
    """
    own = {name: _json(value) for name, value in values(trace, call, _OF_CALLS).items()}
    fields = (
        f'"{name}":' + (f"%({name})s" if name in _GAPS else own[name].replace("%", "%%"))
        for name in FIELDS
    )
    return f"{{{','.join(fields)}}}\n", trace.short_ids[trace.call(call).process], own


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
