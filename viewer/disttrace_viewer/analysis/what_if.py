"""What a run would have taken without one rank's excess, one line's, one host's, or a slow group.

The *excess* is what a process did between two exchanges for longer than is usual there (see
``schedule``). It is left out, and the run's times are projected anew: what it would have gained is
less than what it waited, where another one is nearly as late. Of a group the exchanges themselves
are left out, as if they took no time once everybody needed had come. After What-if analysis of
stragglers (OSDI 2025).

Nothing is changed in what ranks do: no work is moved, and what overlapped goes on overlapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl

from disttrace_viewer.analysis.schedule import ALL, ARRIVAL, ROOT, Schedule
from disttrace_viewer.trace.values import dataclass

CANDIDATES = 5
"""Of each key, those of the largest excess are tried."""
LEAST = 0.005
"""A smaller part of the run is no gain that is worth a line."""


@dataclass(frozen=True, slots=True)
class Without:
    """What is left out: each field that is not None has to fit."""

    rank: int | None = None
    line: str | None = None
    host: str | None = None
    group: int | None = None
    """Index of the group."""


class WhatIfOutcome(NamedTuple):
    """What the run would have taken."""

    without: Without
    wall_ns: int
    saved_ns: int
    saved_share: float


@dataclass(frozen=True)
class WhatIf:
    """Projections of one schedule."""

    schedule: Schedule

    @cached_property
    def wall_ns(self) -> int:
        """From the first begin of a process that takes part to the last end; attempts summed."""
        spans = self._spans.group_by("attempt").agg(
            pl.col("to_ns").max() - pl.col("begin_ns").min()
        )
        return int(spans["to_ns"].sum())

    @cached_property
    def best(self) -> list[WhatIfOutcome]:
        """What would have gained something, largest first."""
        outcomes = [self.of(without) for without in self._candidates()]
        found = [one for one in outcomes if one.saved_share >= LEAST]
        return sorted(found, key=lambda one: -one.saved_ns)

    def of(self, without: Without) -> WhatIfOutcome:
        """The run without something; the whole run where nothing fits it."""
        # What follows the last event takes as long as it did.
        after = self.run(*self._cuts(without)) + (self._spans["to_ns"] - self._seen)
        gained = (
            self._spans.with_columns(_after=after)
            .group_by("attempt")
            .agg(pl.col("to_ns").max() - pl.col("_after").max())
        )
        saved = max(0, min(int(gained["to_ns"].sum()), self.wall_ns))
        return WhatIfOutcome(without, self.wall_ns - saved, saved, saved / max(1, self.wall_ns))

    @cached_property
    def excess(self) -> pl.DataFrame:
        """``process line excess_ns``: where the excess is, largest first."""
        return (
            self.schedule.events.group_by("process", "line")
            .agg(pl.col("excess_ns").sum())
            .filter(pl.col("excess_ns") > 0)
            .sort("excess_ns", "process", "line", descending=[True, False, False])
        )

    # -- what is tried -------------------------------------------------------------------------

    def _candidates(self) -> Iterator[Without]:
        owners = self.excess.join(self._lives, on="process", how="left", maintain_order="left")
        for key in ("rank", "line", "host"):
            found = _sums(owners, key)
            # What everybody shares tells nothing: a job on one host, a run of one rank.
            if key == "line" or self._lives[key].n_unique() > 1:
                for value in found:
                    yield Without(**{key: value})
        transfers = self.schedule.events.group_by("group").agg(
            excess_ns=pl.col("transfer_ns").sum()
        )
        for group in _sums(transfers, "group"):
            yield Without(group=group)

    def _cuts(self, without: Without) -> tuple[pl.Series, pl.Series]:
        """Of each event, what is left out of its gap and of its transfer."""
        fits = pl.lit(value=True)
        for key in ("rank", "host"):
            if (value := getattr(without, key)) is not None:
                chosen = self._lives.filter(pl.col(key) == value)["process"]
                fits &= pl.col("process").is_in(chosen.implode())
        if without.line is not None:
            fits &= pl.col("line").eq_missing(pl.lit(without.line))
        if without.group is not None:
            fits &= pl.col("group") == without.group
        none = without.group is not None
        cut = self.schedule.events.select(
            gap=pl.when(fits & (not none)).then("excess_ns").otherwise(0),
            transfer=pl.when(fits & none).then("transfer_ns").otherwise(0),
        )
        return cut["gap"], cut["transfer"]

    # -- the run -------------------------------------------------------------------------------

    @cached_property
    def _lives(self) -> pl.DataFrame:
        """``process rank host attempt from_ns to_ns`` of those that take part."""
        trace = self.schedule.waits.exchanges.trace
        about = pl.DataFrame(
            [(p.index, p.rank, p.host, p.attempt or 0) for p in trace.processes],
            schema={
                "process": pl.UInt32,
                "rank": pl.Int64,
                "host": pl.String,
                "attempt": pl.Int64,
            },
            orient="row",
        )
        active = self.schedule.events["process"].unique()
        lives = about.join(self.schedule.waits.lives, on="process")
        return lives.filter(pl.col("process").is_in(active.implode())).sort("process")

    def run(self, *cuts: pl.Series) -> pl.Series:
        """When each of ``_spans`` would have been through its last event, in ns: every event
        happens as soon as its process is ready for it and those have come which it needs, in the
        order of the run. With nothing left out each event falls on the time at which it was seen.

        ``cuts``: ns that are left out of each event's gap, and of its transfer.
        """
        gaps, transfers = self.schedule.events["gap_ns"], self.schedule.events["transfer_ns"]
        if cuts:
            gaps, transfers = gaps - cuts[0], transfers - cuts[1]
        known = dict(self._spans.select("process", "begin_ns").iter_rows())
        now = [known.get(index, 0) for index in range(1 + max(known, default=-1))]
        exchanges = 1 + max((row[2] for row in self._rows), default=0)
        last, root = [0] * exchanges, [0] * exchanges
        for (event, process, exchange, own, needs, is_root), gap, transfer in zip(
            self._rows, gaps.to_list(), transfers.to_list(), strict=True
        ):
            at = now[process] + gap
            if event == ARRIVAL:
                if at > last[exchange]:
                    last[exchange] = at
                if is_root:
                    root[exchange] = at
                now[process] = at + own
                continue
            at += own
            if needs == ALL:
                ready = last[exchange] + transfer
            elif needs == ROOT:
                ready = max(root[exchange], at) + transfer
            else:
                ready = 0
            now[process] = ready if ready > at else at
        return pl.Series([now[p] for p in known], dtype=pl.Int64)

    @cached_property
    def _rows(self) -> list[tuple[int, int, int, int, int, bool]]:
        """Event, process, exchange, own ns, needs, is root: of lists a loop reads fastest."""
        columns = ("event", "process", "exchange", "own_ns", "needs", "is_root")
        events = self.schedule.events
        return list(zip(*(events[name].to_list() for name in columns), strict=True))

    @cached_property
    def _seen(self) -> pl.Series:
        """When each was, with nothing left out."""
        return self.run()

    @cached_property
    def _spans(self) -> pl.DataFrame:
        """``process attempt begin_ns to_ns``."""
        begins = self.schedule.events.group_by("process").agg(begin_ns=pl.col("before_ns").first())
        return self._lives.join(begins, on="process").sort("process")


def _sums(rows: pl.DataFrame, key: str) -> list[Any]:
    """The values of ``key`` with the largest sums of excess."""
    sums = rows.filter(pl.col(key).is_not_null()).group_by(key).agg(pl.col("excess_ns").sum())
    return sums.sort("excess_ns", key, descending=[True, False])[key].head(CANDIDATES).to_list()
