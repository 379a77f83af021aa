"""Gives matched operations their global numbers and unix times: the narrow table itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import polars as pl

from disttrace.journal.format import LONGEST, ends_on_device
from disttrace_viewer.load.columns import segments
from disttrace_viewer.load.problems import plural
from disttrace_viewer.merge.surveying import Survey
from disttrace_viewer.merge.tables import Calls
from disttrace_viewer.trace.columns import COMPLETIONS, OPERATIONS
from disttrace_viewer.trace.model import Key
from disttrace_viewer.trace.plain_text import plain, shortened


@dataclass(slots=True)
class Narrowing:
    """Numbers calls, keys and errors over all journals while operations come in."""

    survey: Survey
    calls: Calls = field(init=False)
    errors: dict[str, int] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    """By their text in the journal; their order is their number."""
    _key_index: dict[str, int] = field(default_factory=dict)
    _index: pl.DataFrame = field(init=False)
    """Rows of calls by process and number, the same for every batch."""

    def __post_init__(self) -> None:
        part = self.survey
        self.calls = Calls(
            journals=part.journals,
            stores={(s.process, s.number): s.index for s in part.stores},
            groups=part.group_index,
            group_values=part.groups,
        )
        self.calls.collect()
        self._index = pl.DataFrame(
            [(p, n, row) for (p, n), row in self.calls.index.items()],
            schema={"process": pl.UInt32, "s": pl.Int64, "call": pl.UInt32},
            orient="row",
        )

    def narrow(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Raw matched rows under global numbers and unix times."""
        processes, clocks = self.survey.processes, self.survey.clocks
        bases = pl.Series([p.t0 + clocks[p.clock].offset_ns for p in processes], dtype=pl.Int64)
        frame = raw.with_columns(
            begin_ns=pl.col("t") + bases.gather(raw["process"]),
            call=self._call_rows(raw),
            key=self._key_numbers(raw["k"]),
            error=self._error_numbers(raw),
        )
        begin = pl.col("begin_ns")
        refused = pl.col("f").fill_null(0) != 0
        waited = pl.col("wait").is_not_null()
        # A wait for what a device ends orders streams: it is over when it was seen to be complete.
        on_device = pl.Series(
            [ends_on_device(row["backend"], row["device"]) for row in self.calls.rows],
            dtype=pl.Boolean,
        ).gather(frame["call"])
        frame = frame.with_columns(_on_device=on_device)
        seen = ~waited | pl.col("_on_device")
        frame = frame.with_columns(
            thread=pl.col("h").fill_null(0),
            parent=pl.col("p"),
            seq=pl.when(~refused).then(pl.coalesce("q_end", "q")),
            source=pl.col("y"),
            refused=refused,
            lost=pl.col("lost").is_not_null(),
            asked=pl.col("asked").is_not_null(),
            bytes=pl.coalesce("n_end", "n"),
            issued_ns=begin + pl.col("issued"),
            wait_begin_ns=begin + pl.col("wait"),
            complete_ns=begin
            + pl.coalesce("complete", pl.when(waited & pl.col("x").is_null()).then(pl.col("end"))),
            end_ns=begin + pl.coalesce("end", pl.when(seen).then(pl.col("complete"))),
        )
        return frame.select(
            pl.col(name).cast(kind, strict=False) for name, kind in OPERATIONS.items()
        )

    def _call_rows(self, raw: pl.DataFrame) -> pl.Series:
        """Rows of the calls table; ``unknown`` ones where no definition is there."""
        calls = raw.select("process", "s").join(
            self._index, on=["process", "s"], how="left", maintain_order="left"
        )["call"]
        rich = (
            raw.select("process", "s", "a").with_row_index("row").filter(pl.col("a").is_not_null())
        )
        if rich.height:
            rows = [
                self.calls.completed(process, call, override)
                for process, call, override in rich.select("process", "s", "a").iter_rows()
            ]
            calls = calls.scatter(rich["row"], pl.Series(rows, dtype=pl.UInt32))
        if calls.null_count():
            missing = calls.is_null()
            processes = raw["process"].filter(missing)
            rows = [self.calls.unknown(p) for p in processes.to_list()]
            calls = calls.scatter(missing.arg_true(), pl.Series(rows, dtype=pl.UInt32))
            for process, count in processes.value_counts(sort=True).iter_rows():
                if self.survey.journals[process].definitions.process:
                    self.survey.problems.add(
                        self.survey.journals[process].files.paths[0],
                        "undefined call",
                        f"{plural(count, 'operation')} of calls that are not defined: shown"
                        " without name and place.",
                    )
        return calls.alias("call")

    def _key_numbers(self, keys: pl.Series) -> pl.Series:
        distinct = keys.drop_nulls().unique(maintain_order=True)
        for key in distinct.to_list():
            if key not in self._key_index:
                self._key_index[key] = len(self._key_index)
                self.keys[key] = _key(key)
        if not len(distinct):
            return _nulls("key", len(keys))
        numbers = pl.Series([self._key_index[key] for key in distinct.to_list()], dtype=pl.UInt32)
        table = pl.DataFrame({"k": distinct, "key": numbers})
        return keys.to_frame("k").join(table, on="k", how="left", maintain_order="left")["key"]

    def _error_numbers(self, raw: pl.DataFrame) -> pl.Series:
        failed = raw.select("process", "x").with_row_index("row").filter(pl.col("x").is_not_null())
        numbers = []
        for process, string in failed.select("process", "x").iter_rows():
            text = self.survey.journals[process].definitions.string(string) or "?"
            numbers.append(self.errors.setdefault(text, len(self.errors)))
        found = _nulls("error", raw.height)
        if numbers:
            found = found.scatter(failed["row"], pl.Series(numbers, dtype=pl.UInt32))
        return found.alias("error")


def completions(raw: pl.DataFrame) -> pl.DataFrame:
    """What is known of the completion of some operations beyond its time."""
    some = raw.filter(pl.col("g").is_not_null() | pl.col("z").is_not_null())
    named = some.select(
        "process", "number", pl.col("g").alias("slack_ns"), pl.col("z").alias("device_ns")
    )
    return named.select(pl.col(name).cast(kind) for name, kind in COMPLETIONS.items())


def _nulls(name: str, count: int) -> pl.Series:
    return pl.select(pl.repeat(None, count, dtype=pl.UInt32).alias(name)).to_series()


def _key(text: str) -> Key:
    many = text.startswith(segments.LIST_MARK)
    parts = orjson.loads(text[len(segments.LIST_MARK) :]) if many else (text,)
    return Key(tuple(plain(shortened(part, LONGEST["key"])) for part in parts), many=many)
