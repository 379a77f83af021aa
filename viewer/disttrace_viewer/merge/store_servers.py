"""Where processes meet: which store objects of different processes are clients of one server."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from disttrace_viewer.trace.model import Place, Store
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, replace, together

LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0", "[::1]", "::ffff:127.")
SLACK_NS = 5_000_000_000
"""Wall clocks of hosts and modification times of files are not exact."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Life:
    """When a process certainly or possibly lived, in unix nanoseconds."""

    start_ns: int
    end_ns: int
    boot: str | None = None
    ended: bool = False
    """Whether ``end_ns`` is when it ended; else it may have gone on."""
    launch: tuple[str, int] | None = None
    """Name of its job, and which launch of that name it is of; None where no name has it."""
    attempt: int | None = None
    """Which attempt of the launch it is of; None: it lived through all, and -1: unknown."""
    rank: int | None = None
    sign_ns: int = 0
    """When it gave the last sign of its own: it lived then, and perhaps no longer."""
    before_ns: int = sys.maxsize
    """When it had ended for certain, since its launcher began the next attempt then."""

    def with_(self, other: Life) -> bool | None:
        """Whether both are of one attempt of one launch, by its name; None: no name tells."""
        if self.launch is None or other.launch is None or self.launch[0] != other.launch[0]:
            return None
        if self.launch != other.launch:
            return False
        if -1 in (self.attempt, other.attempt):
            return None
        return None in (self.attempt, other.attempt) or self.attempt == other.attempt

    def overlaps(self, other: Life) -> bool:
        together = self.with_(other)
        if together is not None:
            return together
        return self.start_ns <= other.until(self.boot) and other.start_ns <= self.until(other.boot)

    def until(self, boot: str | None) -> int:
        exact = self.ended and boot == self.boot and boot is not None
        return min(self.end_ns + (0 if exact else SLACK_NS), self.before_ns)


def until_restarts(processes: Sequence[Process], lives: Sequence[Life]) -> list[Life]:
    """The lives, ended where their launcher reports it, or began the next attempt: all of the last
    one are gone by then."""
    anew = begun_anew(processes, [life.start_ns for life in lives])
    found = []
    for process, life in zip(processes, lives, strict=True):
        if process.reported is not None and not life.ended:
            life = replace(life, end_ns=max(life.start_ns, process.reported.t_ns), ended=True)
        if process.index in anew:
            before_ns = anew[process.index] - 1
            life = replace(life, end_ns=min(life.end_ns, before_ns), before_ns=before_ns)
        found.append(life)
    return found


def begun_anew(processes: Sequence[Process], starts_ns: Sequence[int]) -> Mapping[int, int]:
    """Of those whose launcher began a later attempt, by index, when the first of that started."""
    starts: dict[str, dict[int, int]] = {}
    for process, start_ns in zip(processes, starts_ns, strict=True):
        if process.parent is not None and process.attempt is not None:
            of_launcher = starts.setdefault(process.parent, {})
            known = of_launcher.get(process.attempt, start_ns)
            of_launcher[process.attempt] = min(known, start_ns)
    found = {}
    for process in processes:
        attempts, own = starts.get(process.parent or "", {}), process.attempt
        later = [t for n, t in attempts.items() if own is not None and n > own]
        if later:
            found[process.index] = min(later)
    return found


def identifier(*parts: object) -> str:
    """A short stable id for something described by ``parts``."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def is_loopback(host: str | None) -> bool:
    """Whether an address stands for the host on which it is used."""
    return host is None or host == "" or host.lower().startswith(LOOPBACK)


def places_of(
    processes: Sequence[Process], stores: Sequence[Store], lives: Sequence[Life]
) -> tuple[tuple[Place, ...], Mapping[int, str]]:
    """The places, and for every base store (by index) the id of its place.

    A TCP store belongs to the process that listens on its port: on the host it names, at a time
    when both lived, and for a loopback address on the same boot. Clients whose server is not
    traced are together when they name the same host and port (on the same boot if that is
    loopback) and lived at one time; file stores when they name one path and lived at one time.
    """
    bases = [s for s in stores if s.base in (None, s.index)]
    servers = _servers(bases, processes, lives)
    begun: dict[tuple[str | None, int | None], int] = {}
    for life in lives:
        key = (life.boot, life.rank)
        begun[key] = max(life.start_ns, begun.get(key, life.start_ns))
    keys: dict[int, Hashable] = {}
    pending: dict[tuple[Hashable, ...], list[Store]] = {}
    for store in bases:
        process = processes[store.process]
        life = lives[store.process]
        again_ns = None if None in (life.boot, life.rank) else begun[life.boot, life.rank]
        server = _server(store, servers, processes, lives, again_ns)
        if server is not None:
            keys[store.index] = ("tcp", processes[server.process].id, server.port)
        elif _kind(store) == "hash" or (_kind(store) == "unknown" and not store.name):
            keys[store.index] = ("hash", process.id, store.number)
        else:
            pending.setdefault(scope(store, process), []).append(store)
    for where, waiting in pending.items():
        for cluster in clusters(waiting, lambda s: lives[s.process]):
            first = min(processes[s.process].id for s in cluster)
            keys.update((s.index, (*where, first)) for s in cluster)
    ids = {index: identifier(key) for index, key in keys.items()}
    members = together((ids[store.index], store) for store in bases)
    return tuple(_place(key, found) for key, found in members.items()), ids


def clusters(items: Iterable[T], life: Callable[[T], Life]) -> list[list[T]]:
    """Items whose lives overlap, directly or through others; of one name those of one launch."""
    found: list[list[T]] = []
    spans: list[_Span] = []
    of_launch: dict[object, int] = {}
    for item in sorted(items, key=lambda i: life(i).start_ns):
        one = life(item)
        named = None if one.launch is None or one.attempt == -1 else (one.launch, one.attempt)
        place = None if named is None else of_launch.get(named)
        if place is None:
            if not spans or not spans[-1].takes(one):
                found.append([])
                spans.append(_Span())
            place = len(found) - 1
        found[place].append(item)
        spans[place].add(one)
        if named is not None:
            of_launch[named] = place
    return found


class _Span:
    """The lives of a cluster so far."""

    def __init__(self) -> None:
        self._until: dict[str | None, int] = {}
        self._names: dict[str, Life] = {}
        self._signs: dict[str | None, int] = {}
        self._ranks: set[tuple[str | None, int | None]] = set()

    def takes(self, life: Life) -> bool:
        """Whether a life that began after all of these overlaps with one of them."""
        known = None if life.launch is None else self._names.get(life.launch[0])
        if known is not None and (together := known.with_(life)) is not None:
            return together
        silent = self._signs.get(life.boot, life.start_ns) < life.start_ns
        if silent and life.rank is not None and (life.boot, life.rank) in self._ranks:
            return False  # a rank begins again after the last sign of all, and all are gone
        elsewhere = (end + SLACK_NS for boot, end in self._until.items() if boot != life.boot)
        here = self._until.get(life.boot, 0)
        return life.start_ns <= here or any(life.start_ns <= end for end in elsewhere)

    def add(self, life: Life) -> None:
        self._until[life.boot] = max(self._until.get(life.boot, 0), life.until(life.boot))
        sign_ns = life.sign_ns if life.ended else sys.maxsize
        self._signs[life.boot] = max(self._signs.get(life.boot, 0), sign_ns)
        self._ranks.add((life.boot, life.rank))
        if life.launch is not None:
            self._names[life.launch[0]] = life


def _kind(store: Store) -> str:
    kinds = {"TCPStore": "tcp", "FileStore": "file", "HashStore": "hash"}
    scheme = (store.name or "").split("://")[0]
    return kinds.get(store.type) or (scheme if scheme in kinds.values() else "unknown")


def scope(store: Store, process: Process) -> tuple[Hashable, ...]:
    """What makes two stores meet: port and host (the boot for a loopback address), or a path."""
    kind = _kind(store)
    if kind == "tcp":
        host = f"boot:{process.boot_id}" if is_loopback(store.host) else str(store.host).lower()
        return ("tcp", host, store.port)
    return (kind, store.path or store.name)


def _servers(
    bases: Sequence[Store], processes: Sequence[Process], lives: Sequence[Life]
) -> Mapping[int, Sequence[Store]]:
    """By port the stores that listen. Of several agents on a host each tries to listen first, and
    dials where the port is taken: that one does not. Nor does a forked child, without the thread
    that serves."""
    listening = {(processes[s.process].id, s.port, s.number) for s in bases if s.server}
    claims: dict[int, list[Store]] = {}
    for store in bases:
        one = processes[store.process]
        copied = one.role == "child" and (one.parent, store.port, store.number) in listening
        if store.server and store.port is not None and not copied:
            claims.setdefault(store.port, []).append(store)
    dials = {(s.process, s.port): s.number for s in bases if not s.server}

    def refused(store: Store) -> bool:
        boot, life = processes[store.process].boot_id, lives[store.process]
        rivals = [
            other
            for other in claims[store.port or 0]
            if other.process != store.process
            and processes[other.process].boot_id == boot
            and lives[other.process].overlaps(life)
        ]
        return bool(rivals) and dials.get((store.process, store.port), 0) > store.number

    return {port: [s for s in found if not refused(s)] for port, found in claims.items()}


def _server(
    client: Store,
    servers: Mapping[int, Sequence[Store]],
    processes: Sequence[Process],
    lives: Sequence[Life],
    again_ns: int | None,
) -> Store | None:
    """The listening store a TCP store talks to, itself included; None if it is not traced.
    ``again_ns``: when its rank last began; one silent since before meets no server that began
    later."""
    if client.server and client in servers.get(client.port or 0, ()):
        return client
    if _kind(client) != "tcp":
        return None
    told = whole((client.address or "").rpartition(":")[2])
    port = client.port if told is None else told
    life = lives[client.process]
    rated = []
    for server in servers.get(port, ()) if port is not None else ():
        other, likeness = lives[server.process], _likeness(client, server, processes)
        anew_ns = 0 if again_ns is None else min(again_ns, other.start_ns)
        gave_way = life.boot == other.boot and life.sign_ns < anew_ns
        if likeness and other.overlaps(life) and not gave_way:
            surely = life.start_ns <= other.sign_ns and other.start_ns <= life.sign_ns
            rated.append((likeness, surely, server.index, server))
    return max(rated)[3] if rated else None


def _likeness(client: Store, server: Store, processes: Sequence[Process]) -> int:
    """How well a client's address fits a server; 0: it cannot be this one."""
    here, there = processes[client.process], processes[server.process]
    same_boot = here.boot_id is not None and here.boot_id == there.boot_id
    peer = (client.address or "").rpartition(":")[0]
    if is_loopback(client.host) and (client.host or is_loopback(peer)):
        return 3 if same_boot else 0
    names = {there.host.lower(), there.host.lower().split(".")[0], (server.host or "").lower()}
    host = (client.host or "").lower()
    if not is_loopback(host) and (host in names or host.split(".")[0] in names):
        return 4 if same_boot else 3
    return 2 if same_boot else 1


def _place(key: str, stores: Sequence[Store]) -> Place:
    server = next((s for s in stores if s.server), None)
    named = server or stores[0]
    names = [s.name for s in ([server] if server else stores) if s.name]
    return Place(
        id=key,
        kind=_kind(named),
        name=max(set(names), key=names.count) if names else named.type,
        server=server.process if server else None,
        processes=tuple(dict.fromkeys(s.process for s in stores)),
    )
