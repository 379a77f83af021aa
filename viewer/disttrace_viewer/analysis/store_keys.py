"""Who sets the keys of a store: what was set and is still there, and who must set what is awaited.

A key names nobody (those of gloo's mesh do; they are part of the constructor that awaits them). A
setter is known only where exactly one process ever set this key, or a series of keys that differ
from it in numbers alone. That is habit and not proof, so it counts only where every client of the
store is traced, whole, and waits as well: then nobody else could set the key, whoever was meant to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from disttrace_viewer.analysis.evidence import Evidence
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.trace.model import Place

Key = tuple[str | None, str]
"""The place, and the key with every prefix."""

_NUMBER = re.compile(r"\d+")
_SERIES = 2
"""So many keys of one form make a series: one key could bear its setter's own rank."""


@dataclass(frozen=True)
class Setters:
    """The keys of a trace, with those who set them."""

    evidence: Evidence

    @cached_property
    def first(self) -> Mapping[Key, int]:
        """Keys that somebody has set or is about to, with the first who did."""
        return {key: processes[0] for key, processes in self._all.items()}

    def absent(self, key: Key) -> bool:
        """Whether a key was never set, or deleted since it was."""
        return key not in self._all or key in self.deleted

    def drained(self, key: Key) -> bool:
        """Whether a queue was never filled, or as much was taken out of it as was put in."""
        if key not in self._all:
            return True
        known = self.evidence.trace.place_by_id.get(key[0] or "")
        clients = [] if known is None else known.processes
        if any(self.evidence.trace.processes[p].dropped for p in clients):
            return False  # what was put in may be among what is gone
        pushed, popped = self.queues.get(key, (0, 0))
        return pushed <= popped

    @cached_property
    def queues(self) -> Mapping[Key, tuple[int, int]]:
        """How much was put into each queue, or is about to be, and how much was taken out."""
        done = pl.col("end_ns").is_not_null() & pl.col("error").is_null()
        rows = (
            self.evidence.exchanges.key_events.lazy()
            .filter(pl.col("op").is_in(["store.queue_push", "store.queue_pop"]))
            .group_by("place", "key")
            .agg(
                (pl.col("op") == "store.queue_push").sum().alias("pushed"),
                ((pl.col("op") == "store.queue_pop") & done).sum().alias("popped"),
            )
            .collect()
        )
        return {(place, key): (pushed, popped) for place, key, pushed, popped in rows.iter_rows()}

    def expected(self, key: Key, waiter: int, waiting: Set[int]) -> int | None:
        """The process that must set a key; None where that is not known."""
        if not self._all_wait(key[0], waiter, waiting):
            return None
        setter = self._habit(key)
        return setter if setter in waiting and setter != waiter else None

    @cached_property
    def _all(self) -> Mapping[Key, tuple[int, ...]]:
        """Every process that set a key, in the order of their first time."""
        rows = self.evidence.exchanges.key_events.filter(pl.col("part") == "set")
        found: dict[Key, dict[int, None]] = {}
        for place, key, process in rows.select("place", "key", "process").iter_rows():
            found.setdefault((place, key), {})[process] = None
        return {key: tuple(processes) for key, processes in found.items()}

    @cached_property
    def deleted(self) -> frozenset[Key]:
        """Keys that were deleted after they had been set for the last time."""
        events = self.evidence.exchanges.key_events
        gone = (
            events.lazy()
            .filter((pl.col("op") == "store.delete_key") & pl.col("error").is_null())
            .group_by("place", "key")
            .agg(pl.col("begin_ns").filter(pl.col("end_ns").is_not_null()).max().alias("gone_ns"))
        )
        last = (
            events.lazy()
            .filter(pl.col("part") == "set")
            .group_by("place", "key")
            .agg(
                pl.col("end_ns").max().alias("set_ns"),
                (pl.col("end_ns").is_null() | pl.col("error").is_not_null()).any().alias("open"),
            )
        )
        rows = gone.join(last, on=["place", "key"], nulls_equal=True)
        rows = rows.filter(~pl.col("open") & (pl.col("gone_ns") > pl.col("set_ns")))
        return frozenset(rows.select("place", "key").collect().iter_rows())

    @cached_property
    def _forms(self) -> Mapping[tuple[str | None, str], Mapping[int, list[list[str]]]]:
        """By form: the numbers in the keys that each process set."""
        found: dict[tuple[str | None, str], dict[int, list[list[str]]]] = {}
        for (place, key), processes in self._all.items():
            for process in processes:
                form = found.setdefault((place, _NUMBER.sub("#", key)), {})
                form.setdefault(process, []).append(_NUMBER.findall(key))
        return found

    def _habit(self, key: Key) -> int | None:
        """The only process that ever set this key, or a series of keys in which it is the next."""
        before = self._all.get(key)
        if before is not None:
            return before[0] if len(before) == 1 else None
        series = self._forms.get((key[0], _NUMBER.sub("#", key[1])), {})
        if len(series) != 1:
            return None
        ((process, numbers),) = series.items()
        wanted = _NUMBER.findall(key[1])
        if not wanted or len(numbers) < _SERIES:
            return None
        for place, number in enumerate(wanted):
            seen = {found[place] for found in numbers}
            if number not in seen and len(seen) < _SERIES:
                return None
        return process

    def _all_wait(self, place: str | None, waiter: int, waiting: Set[int]) -> bool:
        """Whether nobody is left who could set a key in a place."""
        trace, ends = self.evidence.trace, self.evidence.ends
        known = trace.place_by_id.get(place or "")
        if known is None or not self._whole(known):
            return False
        return all(
            client == waiter
            or client in waiting
            or ends[client].how == CLEAN
            or trace.processes[client].role == "agent"
            for client in known.processes
        )

    def _whole(self, place: Place) -> bool:
        """Whether the journals of all clients are there, and nothing of them was dropped."""
        clients = [self.evidence.trace.processes[p] for p in place.processes]
        sizes = [p.world_size for p in clients if p.world_size is not None]
        here = {p.rank for p in clients}
        return not any(p.dropped or p.damage for p in clients) and here >= set(
            range(max(sizes, default=0))
        )
