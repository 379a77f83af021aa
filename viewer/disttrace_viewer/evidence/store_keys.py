"""The keys of a store: who sets them, and who must set what is awaited.

A key names no process (those of gloo's mesh do; they are part of the constructor that awaits them).
A setter is known only where exactly one process ever set this key, or a series of keys that differ
from it in numbers alone. That is habit and not proof, so it counts only where every client of the
store is traced, whole, and waits as well: then no other could set the key, whichever was meant to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence, Set
from functools import cached_property

from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.analysis.sample import SETTERS
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.recorded import ANNOTATION
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import dataclass, together

Key = tuple[str | None, str]
"""The place, and the key with every prefix."""

AWAITING = ("store.get", "store.wait", "store.multi_get", "store.queue_pop")
"""Store operations that last until another one has done something."""

ALIKE = 0.6
"""From this ratio of ``difflib`` on two keys look alike."""
NUMBER = re.compile(r"[0-9]{1,18}")
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
    for op in evidence.sample.pending:
        store = trace.store_of(op.call)
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
    """The keys of a trace, with the processes that set them."""

    evidence: Evidence

    @cached_property
    def set_by(self) -> Mapping[Key, Op]:
        """The operation that first set each key, or is about to."""
        return {key: ops[0] for key, ops in self._sets.items()}

    @cached_property
    def begun(self) -> Mapping[Key, int]:
        """Keys that a rank is setting and none has set: who awaits one waits for that call."""
        return {
            key: next(op.process for op in reversed(ops) if op.pending)
            for key, ops in self._sets.items()
            if all(op.end_ns is None for op in ops) and any(op.pending for op in ops)
        }

    def of_torch(self, op: Op) -> bool:
        """Whether it is torch's own: of C++, an agent, a rendezvous, or ``torch.distributed``."""
        around = self.evidence.sample.around(op)
        return (
            op.call.origin == "c++"
            or self.evidence.trace.processes[op.process].is_agent
            or (around is not None and around.call.op != ANNOTATION)
            or any("/torch/distributed/" in one.file for one in op.call.stack[:1])
        )

    def absent(self, key: Key) -> bool:
        """Whether a key was never set, or deleted since it was."""
        return key not in self._sets or key in self.deleted

    def drained(self, key: Key) -> bool:
        """Whether a queue was never filled, or as much was taken out of it as was put in."""
        if key not in self._sets:
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
        keyed.sort(key=lambda op: (op.begin_ns, op.id))
        return tuple((key, op) for op in keyed for key in keys_of(trace, op))

    @cached_property
    def _of_key(self) -> Mapping[Key, Sequence[Op]]:
        return together(self._events)

    @cached_property
    def _sets(self) -> Mapping[Key, Sequence[Op]]:
        """What set each key, or is about to, by begin."""
        taken = taken_connections(self.evidence)
        return together(
            (key, op)
            for key, op in self._events
            # Nothing sets the key that it stands behind.
            if op.call.op in SETTERS and not (op.id in taken and taken[op.id].key == op.key)
        )

    def expected(
        self, key: Key, waiter: int, waiting: Set[int], *, counted: bool = False
    ) -> frozenset[int]:
        """Who must set a key; none where that is not known. ``counted``: several count in it."""
        if not self.whole(key[0]) or not self.able(key[0]) - waiting <= {waiter}:
            return frozenset()  # a rank is left who could set it
        setter = self._habit(key)
        if setter is None:
            return (self._absent(key) & waiting) - {waiter} if counted else frozenset()
        return frozenset({setter}) & waiting - {waiter}

    def turns(self, key: Key) -> tuple[int, Mapping[int, tuple[int, ...]]] | None:
        """Who has to set ``key``, and by process the newest of its keys of this form and of those
        that it awaits, as numbers without its own: where each sets keys that bear one number of its
        own, as torch's C++ does for symmetric memory and NVSHMEM (``PREFIX/TURN/RANK``).
        """
        form = (key[0], NUMBER.sub("#", key[1]))
        series, wanted = self._forms.get(form, {}), NUMBER.findall(key[1])
        for at in range(len(wanted)) if len(series) > 1 else ():
            own = {p: {numbers[at] for numbers in of} for p, of in series.items()}
            single = {next(iter(one)) for one in own.values() if len(one) == 1}
            if len(single) == len(series) and wanted[at] in single and len(wanted) > 1:
                came = {p: [*of] for p, of in series.items()}
                for (place, name), op in self._events:  # another host's own keys may be unreadable
                    if op.pending and (place, NUMBER.sub("#", name)) == form and op.process in came:
                        came[op.process].append(NUMBER.findall(name))
                turns = {
                    p: [tuple(map(int, n[:at] + n[at + 1 :])) for n in of] for p, of in came.items()
                }
                goes_on = {(*n[:at], *n[at + 1 :]) for of in series.values() for n in of}
                if len(goes_on) > 1:
                    setter = next(p for p, one in own.items() if one == {wanted[at]})
                    return setter, {p: max(of) for p, of in turns.items()}
        return None

    def _absent(self, key: Key) -> frozenset[int]:
        """Those that have set every other key of a series that others set as well, but not this."""
        series = self._forms.get((key[0], NUMBER.sub("#", key[1])), {})
        wanted = NUMBER.findall(key[1])
        others = {tuple(n) for numbers in series.values() for n in numbers if n != wanted}
        return (
            frozenset(
                process
                for process, numbers in series.items()
                if wanted not in numbers and others <= {tuple(n) for n in numbers}
            )
            if len(series) > 1 and len(others) >= _SERIES  # of one setter ``_habit`` decides
            else frozenset()
        )

    @cached_property
    def deleted(self) -> Mapping[Key, Op]:
        """Keys that were deleted after they were last set, each with the call that did so."""
        found: dict[Key, Op] = {}
        for key, sets in self._sets.items():
            deletes = (op for op in self._of_key[key] if op.call.op == "store.delete_key")
            gone = [op for op in deletes if op.status == "ok"]
            last_ns = max(op.end_ns or 0 for op in sets)
            if all(op.status == "ok" for op in sets) and gone and gone[-1].begin_ns > last_ns:
                found[key] = gone[-1]
        return found

    def holder(self, key: Key) -> Op | None:
        """Who has a lock: the first to have come through a ``compare_set`` of the key since it was
        deleted last, where nothing else ever set it. Whether one succeeded is not on record, but
        the first that found no value did, and all others waited for that one to be gone.
        """
        deletes = [op for op in self._of_key.get(key, ()) if op.call.op == "store.delete_key"]
        begun, sets = max((op.end_ns or 0 for op in deletes), default=0), self._sets.get(key, ())
        if any(op.call.op != "store.compare_set" for op in sets):
            return None
        through = [op for op in sets if op.end_ns is not None and op.begin_ns >= begun]
        return min(through, key=lambda op: op.end_ns or 0, default=None)

    @cached_property
    def _forms(self) -> Mapping[tuple[str | None, str], Mapping[int, list[list[str]]]]:
        """By form: the numbers in the keys that each process set."""
        found: dict[tuple[str | None, str], dict[int, list[list[str]]]] = {}
        for (place, key), ops in self._sets.items():
            form = found.setdefault((place, NUMBER.sub("#", key)), {})
            for process in dict.fromkeys(op.process for op in ops):
                form.setdefault(process, []).append(NUMBER.findall(key))
        return found

    def _habit(self, key: Key) -> int | None:
        """The only process that ever set this key, or a series of keys in which it is the next."""
        if key in self._sets:
            setters = [op.process for op in self._sets[key]]
            was_once = key in self.deleted and len(setters) == 1  # none is about to set it anew
            return setters[0] if len({*setters}) == 1 and not was_once else None
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
        """Whether the last key that a process set looks like ``key``, in a form used only once."""
        last = next(
            (
                found
                for found, op in reversed(self._events)
                if op.process == process
                and found[0] == key[0]
                and op.call.op in SETTERS
                and op.parent is None  # to make a group sets keys too
            ),
            key,
        )
        form = NUMBER.sub("#", last[1])
        if form == NUMBER.sub("#", key[1]):
            return False
        used = len(self._forms[last[0], form].get(process, ()))
        close = difflib.SequenceMatcher(None, last[1].lower(), key[1].lower()).ratio() >= ALIKE
        return used == 1 < times and close

    def able(self, place: str | None) -> frozenset[int]:
        """Who may still set a key in a place: its clients that did not end as if all were well."""
        return self._clients.get(place, (False, frozenset[int]()))[1]

    def whole(self, place: str | None) -> bool:
        """Whether all clients of a place are known, with all that they did."""
        return self._clients.get(place, (False, ()))[0]

    @cached_property
    def _clients(self) -> Mapping[str | None, tuple[bool, frozenset[int]]]:
        """Whether the journals of all clients are there, with nothing dropped; and who is able."""
        trace, ends = self.evidence.trace, self.evidence.ends
        found: dict[str | None, tuple[bool, frozenset[int]]] = {}
        for place in trace.places:
            clients = [trace.processes[p] for p in place.processes]
            size = max((p.world_size for p in clients if p.world_size is not None), default=0)
            whole = {p.rank for p in clients} >= set(range(size))
            able = (p.index for p in clients if ends[p.index].how != CLEAN and not p.is_agent)
            lossy = any(p.dropped or p.damage for p in clients)
            found[place.id] = whole and not lossy, frozenset(able)
        return found


def keys_of(trace: JobTrace, op: Op) -> tuple[Key, ...]:
    """The keys that a store operation uses; none where that is not known."""
    full = trace.full_key(op.call.index, op.key)
    names = [full] if isinstance(full, str) else (full or ())
    return tuple((trace.place_of(op.call), name) for name in names)
