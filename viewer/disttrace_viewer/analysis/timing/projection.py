"""The times of a schedule once more, with some of what was done between left out.

Every event happens as soon as its process is ready for it and those have come whom it needs, in the
order of the run. With nothing left out each event falls on the time at which it was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from disttrace_viewer.analysis.timing.schedule import ALL, ARRIVAL, ROOT


@dataclass(frozen=True)
class Projection:
    """Columns of ``Schedule.events`` as Python lists, which a loop reads fastest."""

    events: list[tuple[int, int, int, int, int, bool]]
    """Event, process, exchange, own ns, needs, is root."""
    gaps: pl.Series
    transfers: pl.Series
    exchanges: int

    @classmethod
    def of(cls, events: pl.DataFrame) -> Projection:
        """The projection of a table as ``Schedule.events`` has it."""
        columns = ("event", "process", "exchange", "own_ns", "needs", "is_root")
        return cls(
            list(zip(*(events[name].to_list() for name in columns), strict=True)),
            events["gap_ns"],
            events["transfer_ns"],
            1 + _largest(events["exchange"]),
        )

    def run(
        self,
        begins: Sequence[int],
        gap_cut: pl.Series | None = None,
        transfer_cut: pl.Series | None = None,
    ) -> list[int]:
        """When each process would have been through its last event, in ns.

        ``begins``: when each process began (by its index), in ns; the cuts: ns that are left out
        of each event's gap, or of its transfer (None: nothing).
        """
        gaps = self.gaps if gap_cut is None else self.gaps - gap_cut
        transfers = self.transfers if transfer_cut is None else self.transfers - transfer_cut
        now = list(begins)
        last, root = [0] * self.exchanges, [0] * self.exchanges
        for (event, process, exchange, own, needs, is_root), gap, transfer in zip(
            self.events, gaps.to_list(), transfers.to_list(), strict=True
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
        return now


def _largest(numbers: pl.Series) -> int:
    found = numbers.max()
    return found if isinstance(found, int) else -1
