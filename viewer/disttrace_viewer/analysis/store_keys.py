"""Who sets the keys of a store: what was set and is still there, and who must set what is awaited.

A key names nobody (those of gloo's mesh do; they are part of the constructor that awaits them). A
setter is known only where exactly one process ever set this key, or a series of keys that differ
from it in numbers alone. That is habit and not proof, so it counts only where every client of the
store is traced, whole, and waits as well: then nobody else could set the key, whoever was meant to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from disttrace_viewer.analysis.evidence import Evidence
from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.sample.sample import SETTERS
from disttrace_viewer.trace.model import Place

Key = tuple[str | None, str]
"""The place, and the key with every prefix."""

AWAITING = ("store.get", "store.wait", "store.multi_get", "store.queue_pop")
"""Store operations that last until somebody else has done something."""

ALIKE = 0.6
"""From this ratio of ``difflib`` on two keys look alike."""
NUMBER = re.compile(r"\d+")
"""What keys of one series differ in."""
_SERIES = 2
"""So many keys of one form make a series: one key could bear its setter's own rank."""


def taken_connections(evidence: Evidence) -> Mapping[tuple[int, int], Op]:
    """Store operations that cannot begin, with the wait of another thread that is before them.

    A TCPStore sends one request at a time, under a lock (``activeOpLock_`` of TCPStore.cpp): while
    one thread waits in it for a key, the others of the process wait for that thread.
    """
    trace = evidence.trace
    by_client: dict[tuple[int, int, int | None], list[Op]] = {}
    for op in evidence.pending:
        store = None if op.call.store is None else trace.stores[op.call.store]
        if op.call.kind != "store" or op.issued_ns is not None or store is None:
            continue
        if store.base is not None and trace.stores[store.base].type == "TCPStore":
            client = (op.process, store.base, store.connection)
            by_client.setdefault(client, []).append(op)
    found: dict[tuple[int, int], Op] = {}
    for pending in by_client.values():
        first = min(pending, key=lambda op: (op.begin_ns, op.number))
        if first.call.op in AWAITING:
            found |= {op.id: first for op in pending if op.thread != first.thread}
    return found


@dataclass(frozen=True)
class Setters:
    """The keys of a trace, with those who set them."""

    evidence: Evidence

    @cached_property
    def first(self) -> Mapping[Key, int]:
        """Keys that somebody has set or is about to, with the first who did."""
        return {key: processes[0] for key, processes in self._all.items()}

    @cached_property
    def begun(self) -> Mapping[Key, int]:
        """Keys that somebody is setting and nobody has set: who awaits one waits for that call."""
        done = {k for k, op in self._events if op.call.op in SETTERS and op.end_ns is not None}
        return {
            key: op.process
            for key, op in self._events
            if op.call.op in SETTERS and op.pending and key not in done
        }

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
        trace = self.evidence.trace
        found: dict[Key, tuple[int, int]] = {}
        for (_, number, name), (pushed, popped) in self.evidence.sample.queues.items():
            store = trace.stores[number]
            key = (store.place, store.lead + name)
            before = found.get(key, (0, 0))
            found[key] = (before[0] + pushed, before[1] + popped)
        return found

    @cached_property
    def _events(self) -> tuple[tuple[Key, Op], ...]:
        """Kept operations on each key, by begin."""
        trace = self.evidence.trace
        keyed = [op for op in self.evidence.sample.ops if op.key is not None]
        found: list[tuple[Key, Op]] = []
        for op in sorted(keyed, key=lambda op: (op.begin_ns, op.id)):
            full = trace.full_key(op.call.index, op.key)
            store = None if op.call.store is None else trace.stores[op.call.store]
            place = None if store is None else store.place
            keys = [full] if isinstance(full, str) else (full or ())
            found += [((place, key), op) for key in keys]
        return tuple(found)

    def expected(self, key: Key, waiter: int, waiting: Set[int]) -> int | None:
        """The process that must set a key; None where that is not known."""
        if not self._all_wait(key[0], waiter, waiting):
            return None
        setter = self._habit(key)
        return setter if setter in waiting and setter != waiter else None

    @cached_property
    def _all(self) -> Mapping[Key, tuple[int, ...]]:
        """Every process that set a key, in the order of their first time."""
        found: dict[Key, dict[int, None]] = {}
        taken = taken_connections(self.evidence)
        for key, op in self._events:
            awaits = op.id in taken and taken[op.id].key == op.key
            if op.call.op in SETTERS and not awaits:  # nothing sets the key that it stands behind
                found.setdefault(key, {})[op.process] = None
        return {key: tuple(processes) for key, processes in found.items()}

    @cached_property
    def deleted(self) -> frozenset[Key]:
        """Keys that were deleted after they had been set for the last time."""
        gone: dict[Key, int] = {}
        last: dict[Key, int] = {}
        unsure: set[Key] = set()
        for key, op in self._events:
            over = op.end_ns is not None and op.error is None
            if op.call.op == "store.delete_key" and over:
                gone[key] = max(op.begin_ns, gone.get(key, op.begin_ns))
            elif op.call.op in SETTERS:
                last[key] = max(op.end_ns or 0, last.get(key, 0))
                if not over:
                    unsure.add(key)
        return frozenset(
            key for key, ns in gone.items() if key in last and key not in unsure and ns > last[key]
        )

    @cached_property
    def _forms(self) -> Mapping[tuple[str | None, str], Mapping[int, list[list[str]]]]:
        """By form: the numbers in the keys that each process set."""
        found: dict[tuple[str | None, str], dict[int, list[list[str]]]] = {}
        for (place, key), processes in self._all.items():
            for process in processes:
                form = found.setdefault((place, NUMBER.sub("#", key)), {})
                form.setdefault(process, []).append(NUMBER.findall(key))
        return found

    def _habit(self, key: Key) -> int | None:
        """The only process that ever set this key, or a series of keys in which it is the next."""
        before = self._all.get(key)
        if before is not None:
            return before[0] if len(before) == 1 else None
        series = self._forms.get((key[0], NUMBER.sub("#", key[1])), {})
        if len(series) != 1:
            return None
        ((process, numbers),) = series.items()
        wanted = NUMBER.findall(key[1])
        if not wanted or len(numbers) < _SERIES:
            return None
        for place, number in enumerate(wanted):
            seen = {found[place] for found in numbers}
            if number in seen:
                continue
            values = [int(one) for one in seen]
            if len(seen) < _SERIES or min(values) < int(number) < max(values):
                return None  # it never varies, or this one was passed over
        return None if self._misspelt(key, process, len(numbers)) else process

    def _misspelt(self, key: Key, process: int, times: int) -> bool:
        """Whether the last key that a process set looks like ``key`` and is of a form that it used
        once only: then it has set that one instead, and is not about to set this one.
        """
        last = next(
            (
                found
                for found, op in reversed(self._events)
                if op.process == process and found[0] == key[0] and op.call.op in SETTERS
            ),
            key,
        )
        form = NUMBER.sub("#", last[1])
        if form == NUMBER.sub("#", key[1]):
            return False
        used = len(self._forms[last[0], form].get(process, ()))
        close = difflib.SequenceMatcher(None, last[1].lower(), key[1].lower()).ratio() >= ALIKE
        return used == 1 < times and close

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
