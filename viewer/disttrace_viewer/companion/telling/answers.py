"""An answer as bytes: states, who else stands where these processes do, and who lives.

``states``; ``seen``: by process what its kernel says; ``alike``: by process rows of those that are
like it (``disttrace_viewer.states.form.alike``), with groups as places in ``groups``; ``own``: of
those in which they wait what these are; ``told``: by process whose companion told of it, where this
is the answer of several, as a place in ``senders``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from disttrace_viewer.analysis.liveness import Seen
from disttrace_viewer.companion.telling.sound import ranges, sound
from disttrace_viewer.load.schema import Checker, Wrong
from disttrace_viewer.states.form.alike import Like, Own, Position, folded
from disttrace_viewer.states.form.state import State, StateError, inflated

MOST_STATES, MOST_LIKES = 1 << 14, 1 << 18
"""Told as a whole, and of whom it is told whom they are like, in one answer."""
MOST_GROUPS = 64
"""Of one process."""
_STOPPED = frozenset("Tt")
WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""StateError and what reading JSON of anybody's may raise."""


def packed(positions: Iterable[Position], seen: Mapping[str, Seen], *, folds: bool = True) -> bytes:
    """An answer; ``folds``: those that are alike are told together."""

    told = alike(positions, seen) if folds else [*positions]
    places: dict[str, int] = {}
    own: dict[int, Own] = {}
    by: dict[str, int] = {}
    likes = {
        one.state.id: [_row(like, places, own, by) for like in one.likes]
        for one in told
        if one.likes
    }
    senders = {one.state.id: by.setdefault(one.sender, len(by)) for one in told if one.sender}
    found: dict[str, Any] = {
        "states": [one.state.values() for one in told],
        "seen": {
            one.state.id: (kernel.alive, kernel.code, kernel.state)
            for one in told
            if (kernel := seen.get(one.state.id)) is not None
        },
    }
    if likes:
        found |= {"alike": likes, "groups": [*places]}
        found["own"] = [[place, *one] for place, one in own.items()]
    if by:
        found |= {"told": senders, "senders": [*by]}
    return zlib.compress(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS), 6)


def alike(positions: Iterable[Position], seen: Mapping[str, Seen]) -> list[Position]:
    """The positions, those that are alike in one where their kernels say that they live."""

    def calm(state: State) -> bool:
        kernel = seen.get(state.id)
        return kernel is not None and kernel.alive is True and kernel.state not in _STOPPED

    return folded(positions, calm)


def unpacked(data: bytes) -> tuple[list[Position], dict[str, Seen]]:
    """What was packed. Raises one of ``WRONG``."""
    if not data:
        return [], {}
    told = orjson.loads(inflated(data))
    if len(told["states"]) > MOST_STATES:
        raise StateError("is of more processes than there are")
    states = [sound(state) for state in told["states"]]
    checker = Checker()
    senders = [checker.value("name", name) for name in told.get("senders", [])]
    likes = _likes(told, states, senders, checker)
    by = {one: senders[_number(place)] for one, place in told.get("told", {}).items()}
    seen = {s.id: _seen(word) for s in states if (word := told["seen"].get(s.id)) is not None}
    one = ((s, s.id) for s in states)
    return [Position(s, likes.get(i, ()), by.get(i, "")) for s, i in one], seen


def _row(like: Like, places: dict[str, int], own: dict[int, Own], by: dict[str, int]) -> list[Any]:
    groups = [places.setdefault(name, len(places)) for name in like.groups]
    for place, one in like.own:
        own.setdefault(groups[place], one)
    sender = by.setdefault(like.sender, len(by)) if like.sender else None
    who = [like.id, like.host, like.pid, like.rank, like.local_rank, like.parent]
    return [*who, groups, *([] if sender is None else [sender])]


def _likes(
    told: Mapping[str, Any], states: Sequence[State], senders: Sequence[str], checker: Checker
) -> dict[str, tuple[Like, ...]]:
    rows = told.get("alike", {})
    if sum(map(len, rows.values())) > MOST_LIKES:
        raise StateError("is of more processes than there are")
    names = [checker.value("name", name) for name in told.get("groups", [])]
    own = {}
    for place, *told_of in told.get("own", []):
        group = _own(told_of, checker)
        if group.key == names[_number(place)]:
            own[place] = group
    partial = {state.id: state.partial for state in states}
    return {
        one: tuple(_like(row, names, own, senders, checker, partial=partial[one]) for row in of)
        for one, of in rows.items()
    }


def _own(told: Sequence[Any], checker: Checker) -> Own:
    one, name, prefix, ranks, size, nth = told
    checker.value("ranks", ranks)
    return Own(
        id=checker.value("id", one),
        name=checker.value("name", name),
        prefix=[checker.value("name", word) for word in prefix],
        ranks=ranges(ranks),
        size=None if size is None else _number(size),
        nth=None if nth is None else _number(nth),
    )


def _like(
    row: Sequence[Any],
    names: Sequence[str],
    own: Mapping[int, Own],
    senders: Sequence[str],
    checker: Checker,
    *,
    partial: bool,
) -> Like:
    one, host, pid, rank, local_rank, parent, groups, *sender = row
    if len(groups) > MOST_GROUPS:
        raise Wrong("groups")
    return Like(
        id=checker.value("id", one),
        host=checker.value("name", host),
        pid=_number(pid),
        rank=_number(rank),
        local_rank=None if local_rank is None else _number(local_rank),
        parent=None if parent is None else checker.value("id", parent),
        groups=tuple([names[_number(place)] for place in groups]),
        own=tuple([(at, own[place]) for at, place in enumerate(groups) if place in own]),
        partial=partial,
        sender=senders[_number(sender[0])] if sender else "",
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise Wrong("a number")
    return value


def _seen(word: Any) -> Seen:
    alive, code, letter = word
    fits = (type(alive) in (bool, type(None)), type(code) in (int, type(None)))
    if not all(fits) or not (letter is None or (type(letter) is str and len(letter) < 64)):
        raise StateError("says nothing of a process that a kernel says")
    return Seen(alive, code, letter)
