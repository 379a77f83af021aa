"""Initialization step by step: every operation in order, and every key with who touched it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views.terminal.init_setters import of_agents
from disttrace_viewer.views.terminal.rows import Row
from disttrace_viewer.views.terminal.sequence_rows import Maker
from disttrace_viewer.wording.names import Lane, Names, lanes_of
from disttrace_viewer.wording.store_keys import describe

STEPS = 400
"""More steps than these are not drawn one by one."""
_LOUD = pl.col("error").is_not_null() | IN_FLIGHT


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key and who touched it."""

    place: str
    key: str
    meaning: str | None
    """What the key holds, in words, where its form tells."""
    set_by: tuple[int, ...]
    read_by: tuple[int, ...]
    waiting: tuple[int, ...]


def steps_of(
    evidence: Evidence, names: Names, operations: pl.DataFrame, origin_ns: int
) -> tuple[tuple[Lane, ...], tuple[Row, ...], int]:
    """The steps until all is ready; the n-th time of all processes at one line is one row."""
    lanes = lanes_of(names, operations["process"].unique().sort().to_list())
    trace = names.trace
    maker = Maker(evidence, names, lanes, origin_ns)
    numbered = _unrepeated(trace, operations)
    order = numbered.group_by("item").agg(pl.col("begin_ns").min(), _LOUD.any().alias("loud"))
    order = order.sort("begin_ns", "item")
    kept = pl.concat([order.head(STEPS), order.slice(STEPS).filter(pl.col("loud")).head(STEPS)])
    made = maker.steps(numbered.filter(pl.col("item").is_in(kept["item"].implode())))
    rows = tuple(made[item] for item in kept["item"].to_list())
    return lanes, rows, operations.height - int(numbered["times"].sum() or 0)


def until_ready(trace: Trace, operations: pl.DataFrame, ready_ns: int) -> pl.DataFrame:
    """Without what agents did once all was ready, except for what failed or is in flight."""
    late = of_agents(trace) & (pl.col("begin_ns") > ready_ns)
    return operations.filter(_LOUD | ~late)


def _unrepeated(trace: Trace, operations: pl.DataFrame) -> pl.DataFrame:
    """With ``item`` and ``times``. Agents ask the store again and again: one row per key, except
    for what is still in flight or failed."""
    asked = of_agents(trace) & (pl.col("kind") == "store")
    again = ["process", "op", "stack", "key", "depth"]
    polled = operations.filter(asked & ~_LOUD)
    polled = polled.with_columns(times=pl.len().over(again)).unique(
        again, keep="first", maintain_order=True
    )
    others = operations.filter(~(asked & ~_LOUD)).with_columns(times=pl.lit(1, pl.UInt32))
    rows = pl.concat([polled, others]).sort("begin_ns", "process", "number")
    # Who listens and who connects do different things by the same call.
    site = ["op", "stack", "depth", "_agent", "_server"]
    serving = [s.index for s in trace.stores if s.server]
    return (
        rows.with_columns(
            _agent=of_agents(trace),
            _server=pl.col("store").is_in(serving).fill_null(value=False),
        )
        .with_columns(_nth=pl.int_range(pl.len()).over("process", *site))
        .with_columns(item=pl.struct(*site, "_nth").rank("dense").cast(pl.UInt32))
    )


def keys_of(trace: Trace, exchanges: Exchanges, operations: pl.DataFrame) -> tuple[KeyUse, ...]:
    """Keys touched during initialization, by first touch."""
    inside = operations.select("process", "number")
    events = exchanges.key_events.join(inside, on=["process", "number"], how="semi")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events.iter_rows(named=True):
        found.setdefault((event["place"], event["key"]), []).append(event)

    def who(touched: Sequence[Mapping[str, Any]], part: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(e["process"] for e in touched if e["part"] == part))

    return tuple(
        KeyUse(
            place=trace.place_by_id[place].name if place in trace.place_by_id else "?",
            key=key,
            meaning=describe(key, trace.groups),
            set_by=who(touched, "set"),
            read_by=who(touched, "wait"),
            waiting=tuple(
                e["process"] for e in touched if e["end_ns"] is None and e["part"] == "wait"
            ),
        )
        for (place, key), touched in found.items()
    )
