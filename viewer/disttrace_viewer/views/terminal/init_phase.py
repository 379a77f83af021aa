"""Initialization, a line each: launches, how each group came to be, and other stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.model import Group, Member, Place, Trace, lead_of
from disttrace_viewer.wording.names import Names

_MAKERS = ("init_process_group", "new_group", "new_subgroups", "split_group", "shrink_group")
"""What a group is said to be made by."""
_JOINING = (*_MAKERS, "new_subgroups_by_enumeration", "rendezvous")
"""Composed operations that make groups, with all that they issue in stores."""
_LISTENING = ("tcp", "file")
"""Kinds of stores in which several processes can meet."""

Operation = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Phase:
    """One line; ``at_ns`` counts from the start of the job."""

    name: str
    what: str
    at_ns: int
    took_ns: int | None
    """None: not over yet, or failed."""


def initialization_of(trace: Trace) -> pl.DataFrame:
    """Columns ``process``, ``number``: agents' operations, constructors, and what makes groups with
    everything inside it except collectives and messages.
    """
    calls = trace.calls.lazy().with_row_index("call").select("call", "op", "kind", "origin")
    ours = trace.operations.lazy().select("process", "number", "call", "parent")
    ours = ours.join(calls, on="call")
    agents = pl.col("process").is_in([p.index for p in trace.processes if p.is_agent])
    talk = pl.col("kind").is_in(["collective", "message"])
    inner = ours.filter(pl.col("parent").is_not_null() & ~talk).collect()
    roots = ours.filter(
        pl.col("op").is_in(_JOINING)
        | (pl.col("kind") == "constructor")
        | (agents & ~talk)
        | ((pl.col("kind") == "store") & (pl.col("origin") == "c++"))
    ).collect()
    found = level = roots.select("process", "number")
    while level.height:
        above = level.select("process", pl.col("number").alias("parent"))
        level = inner.join(above, on=["process", "parent"], how="semi").select("process", "number")
        found = pl.concat([found, level])
    return found.unique(maintain_order=True)


def initialization(names: Names, inside: pl.DataFrame, *, origin_ns: int) -> tuple[Phase, ...]:
    """``inside``: what ``initialization_of`` found."""
    trace = names.trace
    calls = trace.calls.lazy().with_row_index("call").select("call", "op", "kind", "store")
    operations = (
        trace.operations.lazy()
        .join(inside.lazy(), on=["process", "number"], how="semi", maintain_order="left")
        .join(calls, on="call", maintain_order="left")
        .collect()
    )
    rows = operations.filter(pl.col("kind").is_in(["composed", "constructor"])).to_dicts()
    made: dict[int, list[Operation]] = {}
    for row in rows:
        if row["op"] in _MAKERS or row["op"].startswith("ProcessGroup"):
            made.setdefault(row["process"], []).append(row)
    busy = set(operations.filter(IN_FLIGHT)["process"].to_list())
    members = {member.process for group in trace.groups for member in group.members}
    found = [
        *_launches(names, busy, origin_ns),
        *(_group(names, group, made, origin_ns) for group in trace.groups),
        *_other_stores(names, rows, origin_ns),
    ]
    for row in rows:
        if row["op"] == "init_process_group" and row["process"] not in members:
            how = "failed in" if row["error"] is not None else "is still in"
            what = f"{names.process(row['process'])} {how} {row['op']}"
            found.append(Phase("not ready", what, row["begin_ns"] - origin_ns, None))
    return tuple(sorted(found, key=lambda phase: phase.at_ns))


def _launches(names: Names, busy: set[int], origin_ns: int) -> Iterator[Phase]:
    """Of each launcher what it serves and starts."""
    for process in names.trace.processes:
        if not process.is_agent:
            continue
        workers = [p for p in names.trace.processes if p.parent == process.id]
        first = min((p.start_ns for p in workers), default=process.last_ns)
        served = [place.name for place in names.trace.places if place.server == process.index]
        what = names.process(process.index)
        if served:
            what += f" serves {' and '.join(served)}"
        if workers:
            what += f", starts {len(workers)} worker{'s' if len(workers) != 1 else ''}"
        waiting = process.index in busy and not workers
        took_ns = None if waiting else first - process.start_ns
        yield Phase("launch", what, process.start_ns - origin_ns, took_ns)


def _group(
    names: Names, group: Group, made: Mapping[int, Sequence[Operation]], origin_ns: int
) -> Phase:
    """Who joined by which call, in which store; until the last of them is ready."""
    joined, begins, ends, by = [], [], [], ""
    for member in group.members:
        maker = _maker(member, made.get(member.process, ()))
        if maker is not None:
            by = by or _called(names.trace, maker)
        begin = maker["begin_ns"] if maker is not None else member.t_ns
        end = maker["end_ns"] if maker is not None else member.t_ns
        if begin is not None:
            joined.append(member.process)
            begins.append(begin)
            if end is not None and (maker is None or maker["error"] is None):
                ends.append(end)
    by = by or group.type or "?"
    what = f"{names.processes(joined)} by {by}"
    if group.missing:
        what += f" ({len(joined)} of {len(joined) + len(group.missing)} seen)"
    place = names.trace.place_by_id.get(group.place or "")
    if place is not None:
        what += f" in {_served(names, place)}"
        if group.prefix and not by.startswith(_MAKERS):  # else it is torch's own
            what += f" under {lead_of(group.prefix)}"
    begin = min(begins, default=origin_ns)
    over = ends and len(ends) == len(joined) and not group.missing
    name = names.group(group.index)
    return Phase(name, what, begin - origin_ns, max(ends) - begin if over else None)


def _maker(member: Member, rows: Sequence[Operation]) -> Operation | None:
    """The outermost operation inside which a process came to hold a group."""
    if member.t_ns is None:
        return None
    around = [
        row
        for row in rows
        if row["begin_ns"] - 1_000_000 <= member.t_ns
        and (row["end_ns"] is None or member.t_ns <= row["end_ns"] + 1_000_000)
    ]
    around.sort(key=lambda row: (row["op"] not in _MAKERS, abs(row["begin_ns"] - member.t_ns)))
    return around[0] if around else None


def _called(trace: Trace, maker: Operation) -> str:
    op = str(maker["op"])
    if op != "init_process_group":
        return op
    given = trace.call(maker["call"]).args.get("init_method")
    return f"{op}, {str(given).split('://')[0] if given else 'env'}://"


def _served(names: Names, place: Place) -> str:
    return place.name + (f" of {names.process(place.server)}" if place.server is not None else "")


def _other_stores(names: Names, rows: Sequence[Operation], origin_ns: int) -> Iterator[Phase]:
    """Stores that no launcher serves and in which no group met: their servers and clients."""
    trace = names.trace
    met = {group.place for group in trace.groups}
    made: dict[str, list[Operation]] = {}
    for row in rows:
        if row["kind"] == "constructor" and row["store"] is not None:
            made.setdefault(trace.stores[row["store"]].place, []).append(row)
    for place in trace.places:
        opened = made.get(place.id)
        launched = place.server is not None and trace.processes[place.server].is_agent
        if not opened or launched or place.id in met or place.kind not in _LISTENING:
            continue
        clients = dict.fromkeys(row["process"] for row in opened if row["process"] != place.server)
        joined = names.processes(clients) if clients else "none"
        what = f"{_served(names, place)}, joined by {joined}"
        begin = min(row["begin_ns"] for row in opened)
        over = all(row["end_ns"] is not None and row["error"] is None for row in opened)
        took_ns = max(row["end_ns"] for row in opened) - begin if over else None
        yield Phase("store", what, begin - origin_ns, took_ns)
