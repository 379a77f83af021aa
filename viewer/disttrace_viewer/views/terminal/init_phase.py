"""Initialization: launch, meeting places, chains of prefixes, keys, until each group is ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Group, Member, Place, Store, Trace
from disttrace_viewer.views.terminal.init_setters import MAKERS
from disttrace_viewer.views.terminal.init_steps import KeyUse, keys_of, steps_of, until_ready
from disttrace_viewer.views.terminal.rows import Row
from disttrace_viewer.wording.names import Lane, Names


@dataclass(frozen=True, slots=True)
class Phase:
    """One line of the folded initialization."""

    name: str
    what: str
    at_ns: int
    took_ns: int | None
    """None: not over yet."""


@dataclass(frozen=True, slots=True)
class Client:
    """How processes reach a store."""

    processes: tuple[int, ...]
    address: str
    """As given, and what was really dialled where that differs."""
    took_ns: int | None


@dataclass(frozen=True, slots=True)
class StoreServer:
    """One meeting place: who serves it, who comes."""

    name: str
    kind: str
    server: int | None
    clients: tuple[Client, ...]


@dataclass(frozen=True, slots=True)
class Joining:
    """A member's way into one group."""

    process: int
    rank: int | None
    at_ns: int
    ready_ns: int | None
    """None: it never became ready."""


@dataclass(frozen=True, slots=True)
class Made:
    """How one group came to be."""

    group: int
    name: str
    by: str
    """The operation that made it."""
    place: str | None
    prefixes: tuple[str, ...]
    """From the store server inwards."""
    backends: tuple[str, ...]
    """What each backend of the group adds to them."""
    joined: tuple[Joining, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Initialization:
    """Everything until the groups are ready."""

    phases: tuple[Phase, ...]
    servers: tuple[StoreServer, ...]
    groups: tuple[Made, ...]
    keys: tuple[KeyUse, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[Row, ...]
    left_out: int
    """Steps after everything was ready, or beyond ``STEPS``."""


def initialization(
    evidence: Evidence,
    exchanges: Exchanges,
    names: Names,
    inside: pl.DataFrame,
    *,
    origin_ns: int,
    full: bool = False,
) -> Initialization:
    """``inside``: what ``initialization_of`` found. Steps and keys are computed if ``full``."""
    trace = exchanges.trace
    calls = trace.calls.lazy().with_row_index("call")
    operations = (
        trace.operations.lazy()
        .join(inside.lazy(), on=["process", "number"], how="inner", maintain_order="left")
        .join(
            calls.select("call", "op", "kind", "store", "stack"), on="call", maintain_order="left"
        )
        .collect()
    )
    rows = operations.filter(pl.col("kind").is_in(["composed", "constructor"])).to_dicts()
    constructed = {r["store"]: r for r in rows if r["kind"] == "constructor" and "Store" in r["op"]}
    made_by: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["op"] in MAKERS or row["op"].startswith("ProcessGroup"):
            made_by.setdefault(row["process"], []).append(row)
    first = {r["store"]: r["begin_ns"] for r in reversed(rows) if r["kind"] == "constructor"}
    opened: dict[str, int] = {}
    for store in trace.stores:
        begin = first.get(store.index, trace.end_ns)
        opened[store.place] = min(begin, opened.get(store.place, begin))
    places = sorted(trace.places, key=lambda p: opened.get(p.id, 0))
    servers = tuple(_store_server(trace, place, constructed) for place in places)
    groups = tuple(_made(trace, names, group, made_by, origin_ns) for group in trace.groups)
    lanes: tuple[Lane, ...] = ()
    steps: tuple[Row, ...] = ()
    left_out, inner = 0, operations
    if full:
        ready = [j.ready_ns for made in groups for j in made.joined if j.ready_ns is not None]
        until = origin_ns + max(ready) if ready else trace.end_ns
        inner = until_ready(trace, operations, until)
        lanes, steps, left_out = steps_of(evidence, names, inner, origin_ns)
        left_out += operations.height - inner.height
    return Initialization(
        phases=tuple(_phases(trace, names, operations, servers, groups, rows, origin_ns)),
        servers=tuple(m for m in servers if m.clients or m.server is not None),
        groups=tuple(sorted(groups, key=lambda g: min((j.at_ns for j in g.joined), default=0))),
        keys=keys_of(trace, exchanges, inner) if full else (),
        lanes=lanes,
        steps=steps,
        left_out=left_out,
    )


def _store_server(
    trace: Trace, place: Place, constructed: Mapping[int, Mapping[str, Any]]
) -> StoreServer:
    """Processes that reach it by one address are one line."""
    stores = {s.index: s for s in trace.stores if s.place == place.id and s.base == s.index}
    found: dict[str, list[tuple[Store, Mapping[str, Any] | None]]] = {}
    for index, store in stores.items():
        if place.server is not None and store.server:
            continue
        found.setdefault(_dialled(store), []).append((store, constructed.get(index)))
    clients = []
    for address, users in found.items():
        begins = [m["begin_ns"] for _, m in users if m is not None]
        ends = [m["end_ns"] for _, m in users if m is not None]
        over = bool(ends) and None not in ends
        clients.append(
            Client(
                processes=tuple(dict.fromkeys(s.process for s, _ in users)),
                address=address,
                took_ns=max(ends) - min(begins) if over else None,
            )
        )
    return StoreServer(place.name, place.kind, place.server, tuple(clients))


def _dialled(store: Store) -> str:
    given = f"{store.host}:{store.port}" if store.host else store.path or store.name or store.type
    if store.address and store.address != given:
        return f"{given} ({store.address})"
    return given


def _made(
    trace: Trace,
    names: Names,
    group: Group,
    made_by: Mapping[int, Sequence[Mapping[str, Any]]],
    origin_ns: int,
) -> Made:
    joined, by = [], ""
    for member in group.members:
        maker = _maker(member, made_by.get(member.process, ()))
        if maker is not None:
            by = by or _called(trace, maker)
        begin = maker["begin_ns"] if maker is not None else member.t_ns
        end = maker["end_ns"] if maker is not None else member.t_ns
        if begin is not None:
            joined.append(
                Joining(
                    member.process,
                    member.rank,
                    begin - origin_ns,
                    None
                    if end is None or (maker and maker["error"] is not None)
                    else end - origin_ns,
                )
            )
    place = trace.place_by_id.get(group.place or "")
    return Made(
        group=group.index,
        name=names.group(group.index),
        by=by or (group.type or "?"),
        place=place.name if place is not None else None,
        prefixes=tuple("?" if part is None else part for part in group.prefix),
        backends=_backend_prefixes(trace, group, made_by),
        joined=tuple(joined),
        missing=group.missing,
    )


def _backend_prefixes(
    trace: Trace, group: Group, made_by: Mapping[int, Sequence[Mapping[str, Any]]]
) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for member in group.members[:1]:
        for row in made_by.get(member.process, ()):
            if row["kind"] == "constructor" and row["store"] is not None:
                *outer, own = trace.stores[row["store"]].prefix or (None,)
                if outer and tuple(outer) == group.prefix:
                    found[own or "?"] = None
    return tuple(found)


def _maker(member: Member, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The outermost operation inside which a process came to hold a group."""
    if member.t_ns is None:
        return None
    around = [
        row
        for row in rows
        if row["begin_ns"] - 1_000_000 <= member.t_ns
        and (row["end_ns"] is None or member.t_ns <= row["end_ns"] + 1_000_000)
    ]
    around.sort(key=lambda row: (row["op"] not in MAKERS, abs(row["begin_ns"] - member.t_ns)))
    return around[0] if around else None


def _called(trace: Trace, maker: Mapping[str, Any]) -> str:
    op = str(maker["op"])
    if op != "init_process_group":
        return op
    given = trace.call(maker["call"]).args.get("init_method")
    return f"{op}, {str(given).split('://')[0] if given else 'env'}://"


def _phases(
    trace: Trace,
    names: Names,
    operations: pl.DataFrame,
    servers: Sequence[StoreServer],
    groups: Sequence[Made],
    rows: Sequence[Mapping[str, Any]],
    origin_ns: int,
) -> list[Phase]:
    found = []
    for process in trace.processes:
        if not process.is_agent:
            continue
        own = operations.filter(pl.col("process") == process.index)
        workers = [p for p in trace.processes if p.parent == process.id]
        first = min((p.start_ns for p in workers), default=process.last_ns)
        at = process.start_ns - origin_ns
        served = [m.name for m in servers if m.server == process.index]
        what = f"{names.process(process.index)}"
        if served:
            what += f" serves {' and '.join(served)}"
        waiting = own.filter(IN_FLIGHT).height and not workers
        if workers:
            what += f", starts {len(workers)} worker{'s' if len(workers) != 1 else ''}"
        found.append(Phase("launch", what, at, None if waiting else first - process.start_ns))
    server = {m.name: m.server for m in servers}
    found.extend(_ready(names, made, server) for made in groups)
    ready = {j.process for made in groups for j in made.joined}
    for row in rows:
        if row["op"] == "init_process_group" and row["process"] not in ready:
            how = "failed in" if row["error"] is not None else "is still in"
            what = f"{names.process(row['process'])} {how} {row['op']}"
            found.append(Phase("not ready", what, row["begin_ns"] - origin_ns, None))
    return sorted(found, key=lambda phase: phase.at_ns)


def _ready(names: Names, made: Made, server: Mapping[str, int | None]) -> Phase:
    count, size = len(made.joined), len(made.joined) + len(made.missing)
    what = names.processes(j.process for j in made.joined) + f" by {made.by}"
    if made.missing:
        what += f" ({count} of {size} seen)"
    if made.place is not None:
        host = server.get(made.place)
        what += f" in {made.place}"
        what += f" of {names.process(host)}" if host is not None else ""
    ready = [j.ready_ns for j in made.joined if j.ready_ns is not None]
    begin = min((j.at_ns for j in made.joined), default=0)
    over = ready and len(ready) == count and not made.missing
    return Phase(made.name, what, begin, max(ready) - begin if over else None)
