"""Which group an object is: members, backends, meeting place, and its sequence counters."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from disttrace import foreign
from disttrace.capture.objects.registry import GONE, Registry
from disttrace.capture.objects.stores import StoreEntry, Stores
from disttrace.journal import format as fmt
from disttrace.recording.operation import Counter
from disttrace.recording.recorder import Recorder


@dataclass(slots=True, eq=False)
class GroupEntry:
    """A group as defined, with its counters; ``n`` is negative beyond the bound of definitions."""

    n: int
    keys: dict[str, Any]
    backends: dict[str, str] = field(default_factory=dict)  # device type -> backend
    counters: dict[Hashable, Counter] = field(default_factory=dict)
    reference: Callable[[], Any] = lambda: None  # a weak one, to the group
    store: StoreEntry | None = None
    new_counter: Callable[[], Counter] = Counter  # the core's own

    def backend(self, device: str | None) -> str | None:
        """The backend that runs operations on tensors of this device type."""
        if device is not None and device in self.backends:
            return self.backends[device]
        names = set(self.backends.values())
        return next(iter(names)) if len(names) == 1 else None

    @property
    def on_device(self) -> bool:
        """Whether a device ends operations of any of its backends."""
        return _on_device(tuple(self.backends.items()))

    def barrier_device(self) -> str | None:
        """Device type on which a barrier without a device runs, as torch chooses it."""
        preferred = ("cuda", "xpu", "cpu", *self.backends)
        return next((device for device in preferred if device in self.backends), None)

    def shared_key(self, backend: str | None) -> list[object]:
        """What is equal for all members of this group, and for no other group of theirs."""
        told = (self.keys.get(key) for key in ("name", "nth", "ranks", "size"))
        return [backend, None if self.store is None else self.store.prefix, *told]

    def stream_counter(
        self, direction: str, peer: int, tag: int | None, backend: str | None, *, new: bool
    ) -> Counter | None:
        """Counts messages with ``peer`` (group rank); only known streams without ``new``."""
        key = (direction, peer, None if backend in fmt.ON_DEVICE else tag)
        return self.counter(key) if new else self.counters.get(key)

    def counter(self, key: Hashable) -> Counter:
        """Of a backend's collectives (each backend may order its own), or a stream of messages."""
        known = self.counters.get(key)
        return known if known is not None else self.counters.setdefault(key, self.new_counter())


@functools.lru_cache(maxsize=64)
def _on_device(backends: tuple[tuple[str, str], ...]) -> bool:
    """Asked at every call on a torch with hooks."""
    return any(fmt.ends_on_device(name, device) for device, name in backends)


_TELLING = ("type", "name", "rank", "size")  # a group from another that went away


class Groups:
    """Numbers the groups of this process."""

    def __init__(self, recorder: Recorder, stores: Stores) -> None:
        self._recorder = recorder
        self._stores = stores
        self._registry: Registry[GroupEntry] = Registry()
        self._unclaimed: Registry[dict[str, Any]] = Registry()  # backends in no ProcessGroup yet
        self._definitions: dict[int, GroupEntry] = {}
        self._numbers = itertools.count(1)
        self._beyond = itertools.count(-1, -1)
        self._forget_at = 2 * GONE
        self._made: dict[tuple[str, str], int] = {}  # groups made so far, by meeting place
        self.get, self.numbers = self._registry.get, self._registry.numbers
        self.by_number: Callable[[Any], GroupEntry | None] = self._definitions.get
        self.shortest_limit_ns: int | None = None  # after which a group gives an operation up
        # Called with each object that becomes known as a group or as a backend used directly.
        self.on_new: list[Callable[[Any, GroupEntry], None]] = []

    def of(self, group: Any) -> GroupEntry:
        """The entry of a ProcessGroup or Backend, registered if it was never seen."""
        entry = self._registry.get(id(group))
        return entry if entry is not None else self._register(group)

    def passed(self, group: Any) -> GroupEntry | None:
        """The entry of a ``group`` argument, where None is the default group; None without any."""
        from torch.distributed import distributed_c10d as c10d

        group = c10d._world.default_pg if group is None else group
        return self.of(group) if foreign.is_a(group, c10d.ProcessGroup) else None

    def group_made(self, group: Any, store: Any, rank: int | None, size: int | None) -> GroupEntry:
        return self._add(group, self._group_keys(group, store, rank, size))

    def backend_made(
        self, backend: Any, store: Any, rank: int | None, size: int | None, *, by_hand: bool
    ) -> None:
        """A Backend was constructed: a group by itself if it is used before one claims it, or if
        the program made it ``by_hand``. A member that never uses it has to be known as one then.
        """
        keys = self._group_keys(backend, store, rank, size)
        name = backend_name(backend)
        if name:
            keys["backends"] = {"*": name}
        if by_hand:
            self._add(backend, keys)
        else:
            self._unclaimed.add(backend, keys)

    def backend_registered(self, group: Any, device: str, name: str, backend: Any) -> None:
        """``backend`` serves ``device`` in ``group``: called directly, it is that group."""
        entry = self.of(group)
        entry.backends[device] = name
        if backend is not None:
            self._registry.add(backend, entry)
        self.update(entry, backends=dict(entry.backends))
        self.limited(backend, _limit_ns(backend))

    def limited(self, group: Any, limit_ns: int | None) -> None:
        """A group, or a backend of one, gives an operation up after this time from now on."""
        if limit_ns is not None and (entry := self.get(id(group)) or self._served_by(group)):
            self.shortest_limit_ns = min(limit_ns, self.shortest_limit_ns or limit_ns)
            self.update(entry, timeout=limit_ns)

    def stands_for(self, other: Any, group: Any) -> None:
        """What is issued on ``other`` is issued on ``group``."""
        self._registry.add(other, self.of(group))

    def default_rank(self) -> int | None:
        """This process's rank in the first default group that it joined."""
        joined = (e.keys.get("rank") for e in self._definitions.values() if e.keys.get("default"))
        return next(joined, None)

    def update(self, entry: GroupEntry, **keys: Any) -> None:
        """Complete a group's definition; says nothing where nothing is new."""
        new = {k: v for k, v in keys.items() if v is not None and entry.keys.get(k) != v}
        if new:
            entry.keys.update(new)
            if entry.n > 0 and not self._recorder.exhausted:
                self._recorder.define("group", n=entry.n, **new)

    def definitions(self) -> list[dict[str, Any]]:
        """Definitions of stores and groups, for the journal of a forked child."""
        entries = list(self._definitions.values())
        stores = self._stores.definitions(e.store for e in entries if e.store is not None)
        return stores + [{fmt.DEF: "group", "n": e.n, **_record_keys(e)} for e in entries]

    def in_child(self) -> None:
        """After a fork: the child has its parent's groups since then, by its own clock."""
        for entry in self._definitions.values():
            if "t" in entry.keys:
                entry.keys["t"] = self._recorder.now()

    def refresh(self, group: Any, entry: GroupEntry) -> None:
        """Ask torch again for what it registers only after a group's construction."""
        keys = described(group)
        entry.backends.update(keys.get("backends") or {})
        keys["backends"] = dict(entry.backends) or None
        self.update(entry, **keys)

    def _group_keys(
        self, group: Any, store: Any, rank: int | None, size: int | None
    ) -> dict[str, Any]:
        """Where the members of a group that is being made meet."""
        keys: dict[str, Any] = {"type": foreign.type_name(group), "rank": rank, "size": size}
        if store is not None:
            place = self._stores.of(store)
            prefix = "/".join(fmt.UNKNOWN_PREFIX if p is None else p for p in place.prefix)
            nth = self._made.get((place.name, prefix), 0) + 1
            keys["nth"], keys["store"] = nth, place
            if not self._recorder.exhausted:
                self._made[place.name, prefix] = nth
        return keys

    def _add(self, group: Any, keys: dict[str, Any]) -> GroupEntry:
        n = next(self._beyond if self._recorder.exhausted else self._numbers)
        store, backends = keys.pop("store", None), dict(keys.get("backends") or {})
        entry = GroupEntry(n, keys, backends, store=store)
        entry.new_counter = self._recorder.core.new_counter
        entry.reference = weakref.ref(group)
        self._recorder.core.groups += 1
        keys.setdefault("t", self._recorder.now())
        if n > 0:
            self._forget()
            self._definitions[entry.n] = entry
            self._recorder.define("group", n=entry.n, **_record_keys(entry))
        self._registry.add(group, entry)
        for tell in self.on_new:
            tell(group, entry)
        return entry

    def _forget(self) -> None:
        """A program may make groups for ever: of those that went away, keep the last."""
        if len(self._definitions) < self._forget_at:
            return
        gone = [n for n, e in list(self._definitions.items()) if e.reference() is None]
        for n in gone[:-GONE]:
            del self._definitions[n]
        self._forget_at = 2 * len(self._definitions) + GONE
        self._recorder.forget_calls("group", self._definitions)

    def _register(self, group: Any) -> GroupEntry:
        """A group made before tracing started, by C++, or whose Python wrapper was made anew."""
        unclaimed = self._unclaimed.get(id(group))
        if unclaimed is None and (served := self._served_by(group)) is not None:
            return served
        keys = unclaimed if unclaimed is not None else described(group)
        for entry in self._definitions.values() if unclaimed is None else ():
            same = all(entry.keys.get(key) == keys.get(key) for key in _TELLING)
            if same and keys.get("name") and entry.reference() is None:
                entry.reference = weakref.ref(group)
                return self._registry.add(group, entry)
        return self._add(group, keys)

    def _served_by(self, backend: Any) -> GroupEntry | None:
        """The group of a backend that C++ handed out anew, known from now on."""
        from torch._C._distributed_c10d import Backend, ProcessGroup
        from torch.distributed import distributed_c10d as c10d

        if not foreign.is_a(backend, Backend):
            return None
        known = [entry.reference() for entry in list(self._definitions.values())]
        for group in (*known, *getattr(c10d._world, "pg_map", ())):
            if foreign.is_a(group, ProcessGroup):
                devices = foreign.attempt(getattr, group, "_device_types") or ()
                if any(backend_for(group, device) is backend for device in devices):
                    return self._registry.add(backend, self.of(group))
        return None


def _record_keys(entry: GroupEntry) -> dict[str, Any]:
    """The keys of a group's record: the store by its number."""
    store = entry.store
    return entry.keys if store is None or store.n < 0 else {**entry.keys, "store": store.n}


_ASKED = {"rank": "rank", "size": "size", "name": "group_name", "desc": "group_desc"}


def described(group: Any) -> dict[str, Any]:
    """What a live group says of itself, with torch's registry of groups where it is in there."""
    keys: dict[str, Any] = {"type": foreign.type_name(group)}
    for key, name in _ASKED.items():
        try:
            value = foreign.of_torch(group, name)
            keys[key] = value() if callable(value) else value
        except foreign.ours(Exception):
            pass  # a backend without the attribute, a subclass with its own

    keys.update(registered(group))
    backend = backend_name(group)
    if "backends" not in keys and backend is not None:
        keys["backends"] = {"*": backend}
    limits = (_limit_ns(backend_for(group, device)) for device in keys.get("backends") or {})
    timeout_ns = next((limit for limit in limits if limit is not None), None)
    if timeout_ns is not None:
        keys["timeout"] = timeout_ns
    return keys


def backend_for(group: Any, device: str) -> Any:
    """The backend of a type of device in a live group; the group itself where it has none."""
    import torch

    backend = foreign.attempt(lambda: group._get_backend(torch.device(device)))
    return group if backend is None else backend


def _limit_ns(backend: Any) -> int | None:
    """The time limit of a backend's operations; None where it does not say."""
    return nanoseconds(foreign.attempt(lambda: backend.options._timeout))


def nanoseconds(limit: Any) -> int | None:
    """A ``timedelta`` in nanoseconds; None for anything else, and beyond 64 bits."""
    seconds = foreign.plain(limit)
    return round(seconds * 1e9) if type(seconds) is float and abs(seconds) < 9e9 else None


def extend(minutes: float, group: Any) -> float:
    """See ``disttrace.allow``."""
    from torch.distributed import distributed_c10d as c10d

    group = c10d._get_default_group() if group is None else group
    change = getattr(c10d, "set_timeout", None) or getattr(c10d, "_set_pg_timeout", None)
    if not isinstance(group, c10d.ProcessGroup):
        raise ValueError(  # noqa: TRY004 - as torch does
            "Invalid process group specified: this process is no member of it"
        )
    # Of the devices that torch changes it for.
    backends = [group._get_backend(d) for d in group._device_types if d.type in ("cpu", "cuda")]
    limited = [b for b in backends if changes_limit(type(b))]
    if change is None or not limited:
        raise RuntimeError(
            "this torch, or the backend of this group, has no way to change its time limit:"
            " pass timeout= to init_process_group or new_group"
        )
    now = max(backend.options._timeout for backend in limited)
    limit = now + timedelta(minutes=minutes)
    if limit <= timedelta(0):
        raise ValueError(f"{minutes:g} minutes leave nothing of the group's limit, {now}")
    change(limit, group)
    return float(limit / timedelta(minutes=1))


def changes_limit(backend: type) -> bool:
    """Whether torch can change its time limit; before torch 2.9 gloo keeps the old one."""
    before = backend.__name__ == "ProcessGroupGloo" and not hasattr(backend, "set_timeout")
    return hasattr(backend, "_set_default_timeout") and not before


def registered(group: Any) -> dict[str, Any]:
    """Members and backends as ``torch.distributed`` has them, empty for a group unknown to it."""
    from torch.distributed import distributed_c10d as c10d

    keys: dict[str, Any] = {}
    try:
        world = c10d._world
        members = world.pg_group_ranks.get(group)  # ranks in the group by global ones
        if members is not None:
            keys["ranks"] = sorted(members, key=members.__getitem__)
        config = world.pg_backend_config.get(group)
        if config is not None:
            pairs = (item.partition(":") for item in str(config).split(","))  # cpu:gloo,cuda:nccl
            keys["backends"] = {device: name for device, colon, name in pairs if colon}
        if world.default_pg is group:
            keys["default"] = True
    except foreign.ours(Exception):
        pass  # the registry has another shape in this torch: the name must do
    return keys


def backend_name(group: Any) -> str | None:
    """Name of the backend that a Backend object is (``gloo``), null for a ProcessGroup."""
    from torch._C._distributed_c10d import Backend

    if not foreign.is_a(group, Backend):
        return None
    name = foreign.attempt(lambda: str(foreign.of_torch(group, "name")()))
    if name is None:  # Python subclasses need not define it
        name = foreign.type_name(group).removeprefix("ProcessGroup")
    return name.lower() or None
