"""The clocks of states brought together by the newest exchanges that these keep.

Of a journal all exchanges bound its clock, of a state the last few: that is when its clock counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import disttrace.journal.format as fmt
from disttrace_viewer.merge.clock import JOINING, Bounds, Point, Tree, place
from disttrace_viewer.trace.model import Group
from disttrace_viewer.trace.process import Clock, Process

Meeting = tuple[str | None, int, "str | int | None", "int | None"]
"""A stream of exchanges: of collectives (None, group, backend), else the side of a message, group,
peer and tag.
"""
Side = tuple[int, int]
"""Of one clock in an exchange the last begin and the first end, unix ns."""
Met = tuple[int, int, list[list[Any]]]
"""Process, what is to be added to its times, and the rows of its state."""


def meeting_of(call: Mapping[str, Any]) -> Meeting | None:
    """The stream of a call whose exchanges bound the clocks of their members; None for others."""
    group, op, backend = call.get("group"), call.get("op"), call.get("backend")
    if group is None:
        return None
    if call.get("kind") == fmt.COLLECTIVE:
        return (None, group, backend, None) if op in JOINING else None
    if call.get("kind") != fmt.MESSAGE or call.get("peer") is None:
        return None
    return (op, group, call["peer"], None if backend in fmt.ON_DEVICE else call.get("tag"))


def aligned(
    clocks: Sequence[Clock],
    processes: Sequence[Process],
    group_index: Mapping[tuple[int, int], int],
    groups: Sequence[Group],
    met: Iterable[Met],
) -> tuple[Clock, ...]:
    """The clocks of processes, set right by what their members met in."""
    met = tuple(met)
    if not met or len({process.clock for process in processes}) < 2:
        return tuple(clocks)
    rank_of = {
        (group.index, member.process): member.rank for group in groups for member in group.members
    }
    sides: dict[tuple[object, ...], dict[int, Side]] = {}
    sent: dict[tuple[object, ...], tuple[int, int]] = {}
    received: list[tuple[tuple[object, ...], int, int]] = []
    for process, zero, rows in met:
        clock = processes[process].clock
        for side, number, of, tag, exchanges in rows:
            group = group_index.get((process, number))
            own = rank_of.get((group, process)) if group is not None else None
            for seq, begin, end in exchanges if group is not None else ():
                begin, end = begin + zero, end + zero
                if side is None:
                    here = sides.setdefault((group, of, seq), {})
                    known = here.get(clock)
                    here[clock] = (
                        (begin, end)
                        if known is None
                        else (max(begin, known[0]), min(end, known[1]))
                    )
                elif side == "send":
                    sent[group, own, of, tag, seq] = (clock, begin)
                else:
                    received.append(((group, of, own, tag, seq), clock, end))
    between = {key: here for key, here in sides.items() if len(here) > 1}
    streams: dict[tuple[object, ...], set[int]] = {}
    for key, here in between.items():
        streams.setdefault(key[:2], set()).update(here)
    joined = {frozenset(of_stream) for of_stream in streams.values()}
    ways: dict[tuple[int, int], list[Point]] = {}
    for key, clock, end in received:
        first = sent.get(key)
        if first is not None and first[0] != clock:
            ways.setdefault((first[0], clock), []).append((float(first[1]), float(end - first[1])))
    joined |= {frozenset(way) for way in ways if way[::-1] in ways}

    def bounds_of(tree: Tree) -> dict[tuple[int, int], Bounds]:
        found = {}
        for above, clock in tree:
            upper = [(t + bound, bound) for t, bound in ways.get((above, clock), ())]
            lower = [(t, -bound) for t, bound in ways.get((clock, above), ())]
            for here in between.values():
                if above in here and clock in here:
                    (begin_above, end_above), (begin, end) = here[above], here[clock]
                    upper.append((float(end), float(end - begin_above)))
                    lower.append((float(begin), float(begin - end_above)))
            if upper and lower:
                origin = round(min(t for t, _ in (*upper, *lower)))
                found[above, clock] = Bounds(
                    origin,
                    tuple((t - origin, bound) for t, bound in upper),
                    tuple((t - origin, bound) for t, bound in lower),
                )
        return found

    order = sorted((one for one in joined if len(one) > 1), key=sorted)
    return place(clocks, processes, order, bounds_of)
