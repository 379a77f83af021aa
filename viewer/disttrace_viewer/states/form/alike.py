"""Processes that stand where another one stands: told by its state, and by who they are.

Of ranks that wait in one collective, or in collectives of groups of one kind, each differs from the
others in who it is, in when it came, and in which groups its numbers mean. One of them is told as a
whole then, and of the others only that: a thousand are some kilobytes. Whoever does, or lacks,
anything else is told as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from disttrace.journal.format import COLLECTIVE, COMPOSED, MESSAGE
from disttrace_viewer.states.form.hidden import hidden
from disttrace_viewer.states.form.journal import journal_of
from disttrace_viewer.states.form.state import Row, State

FEWEST = 64
"""Of jobs with fewer ranks all are told as a whole."""
_SHAPE = (Row.ISSUED, Row.WAIT, Row.COMPLETE, Row.END)
_ODD = (Row.ERROR, Row.REFUSED, Row.LOST, Row.ASKED)
_HARMLESS = frozenset(("clock", "rendezvous"))
"""Kinds of records by which nobody is unlike others."""
_OF_PROCESS = ("job", "run", "attempt", "settings", "python")
_OF_IDENTITY = ("run", "attempt", "world_size")
_OWN_OF_GROUP = ("t", "rank", "ranks", "name", "store")
_OWN_OF_CALL = ("stack", "store", "group")
_WORKER = "worker"


class Own(NamedTuple):
    """A group in which one waits that may be in no state: all that tells it from others."""

    id: str
    name: str
    prefix: Sequence[str]
    """Of its store, the words hidden."""
    ranks: Sequence[Any]
    """Numbers and ranges."""
    size: int | None
    nth: int | None

    @property
    def key(self) -> str:
        """What names it in all of its members (``names_of_groups``): a hash of what it is, so that
        nobody can tell anything else of the group that others mean by it.
        """
        return _hashed(self.prefix, self.ranks, self.size, self.nth)


@dataclass(frozen=True, slots=True)
class Like:
    """Who stands where another one does."""

    id: str
    host: str
    """As in the name of its journal."""
    pid: int
    rank: int
    local_rank: int | None
    parent: str | None
    groups: tuple[str, ...]
    """What names its groups (``names_of_groups``), in the order of the other one's."""
    own: tuple[tuple[int, Own], ...]
    """Those of them in which it waits, and others of which that was told, with their places."""
    partial: bool
    """Only a part of its journal was read."""
    sender: str = ""
    """Whose companion told of it; empty: whose word this is."""


@dataclass(frozen=True, slots=True)
class Position:
    """A state, and who else stands there."""

    state: State
    likes: tuple[Like, ...] = ()
    sender: str = ""

    def told_by(self, sender: str) -> Position:
        """The same, where somebody told of it who has not said whose word that is."""
        likes = tuple(one if one.sender else replace(one, sender=sender) for one in self.likes)
        return Position(self.state, likes, self.sender or sender)


def folded(positions: Iterable[Position], calm: Callable[[State], bool]) -> list[Position]:
    """The same, those that are alike in one; ``calm``: a process lives and nothing is wrong with
    it. As a whole that one is told which has waited the longest.
    """
    apart: list[Position] = []
    alike: dict[bytes, list[Position]] = {}
    for one in positions:
        key = likeness(one.state) if calm(one.state) else None
        if key is None:
            apart.append(one)
        else:
            alike.setdefault(key, []).append(one)
    for found in alike.values():
        if len(found) == 1:
            apart += found
            continue
        found.sort(key=lambda one: (began_ns(one.state), one.state.id))
        likes = [*found[0].likes]
        for other in found[1:]:
            likes += [like(other.state, other.sender), *other.likes]
        apart.append(Position(found[0].state, tuple(likes), found[0].sender))
    return apart


def like(state: State, sender: str = "") -> Like:
    """Who it is, of a state that has a likeness."""
    process, identity, named = state.process, state.identity, state.named
    return Like(
        id=state.id,
        host=named.get("host") or process.get("host") or "",
        pid=process.get("pid") or 0,
        rank=identity["rank"],
        local_rank=identity.get("local_rank"),
        parent=process.get("parent"),
        groups=tuple(name or "" for name in names_of_groups(state).values()),
        own=_own(state),
        partial=state.partial,
        sender=sender,
    )


def likeness(state: State) -> bytes | None:
    """What two processes that stand alike have in common; None: it is to be told as a whole."""
    if not _is_plain(state) or (state.identity.get("world_size") or 0) < FEWEST:
        return None
    calls, stacks = state.numbered["call"], state.numbered["stack"]
    groups = names_of_groups(state)
    defined = dict(sorted(state.numbered["group"].items()))
    order = {number: place for place, number in enumerate(groups)}
    rows, met = [], []
    for row in state.ops:
        call = calls.get(row[Row.CALL], {})
        waits = is_pending(row)
        is_odd = any(Row.value(row, place) for place in _ODD)
        if is_odd or (waits and call.get("kind") not in _WAITED):
            return None
        if call.get("kind") in _KEPT or waits:
            own = defined.get(call.get("group", -1), {}).get("rank")
            rows.append(_row(row, _moved(call, own), stacks, order, own, waits=waits))
        if waits and call.get("kind") != COMPOSED:
            met.append(groups.get(call.get("group", -1)))
    if not met or None in met:
        return None
    since = min(row[Row.T] for row in state.ops if is_pending(row))
    stood = [
        stacks.get(stack)
        for thread, t, stack in state.stands
        if thread == 0 and t >= since  # where it stood before it waited is over
    ][-1:]
    told = [
        only(state.process, _OF_PROCESS),
        only(state.identity, _OF_IDENTITY),
        state.versions,
        [state.state, state.format, state.made, state.partial],
        [_without(group, _OWN_OF_GROUP) for group in defined.values()],
        rows,
        sorted([order.get(n, -1), str(backend), *rest] for n, backend, *rest in state.courses),
        stood,
    ]
    return hashlib.sha256(orjson.dumps(told, option=_OPTIONS)).digest()[:16]


def _own(state: State) -> tuple[tuple[int, Own], ...]:
    calls, stores, groups = (state.numbered[kind] for kind in ("call", "store", "group"))
    waited = {
        call.get("group")
        for row in state.ops
        if is_pending(row) and (call := calls.get(row[Row.CALL], {})).get("kind") != COMPOSED
    }
    definitions = journal_of(state, ("store", "group")).definitions
    found = []
    for place, (number, key) in enumerate(names_of_groups(state).items()):
        if number in waited and key is not None:
            group = groups[number]
            prefix = [hidden(word) for word in stores[group["store"]].get("prefix", [])]
            size, nth = group.get("size"), group.get("nth")
            name, one = group.get("name") or "", definitions.group_id(number) or ""
            found.append((place, Own(one, name, prefix, group["ranks"], size, nth)))
    return tuple(found)


def names_of_groups(state: State) -> dict[int, str | None]:
    """By its number what names each group in all of its members; None where that is not known."""
    stores = state.numbered["store"]
    return {
        number: _name(group, stores.get(group.get("store", -1)))
        for number, group in sorted(state.numbered["group"].items())
    }


def is_pending(row: Sequence[Any]) -> bool:
    """Whether a row of a state is of an operation that is not over."""
    of = Row.value
    return of(row, Row.END) is None and of(row, Row.ERROR) is None and not of(row, Row.LOST)


def pending(state: State) -> tuple[int, ...]:
    """The numbers of its operations that are not over."""
    return tuple(row[Row.NUMBER] for row in state.ops if is_pending(row))


def began_ns(state: State) -> int:
    """When its oldest operation that is not over began, by the clock of its host."""
    first = min((row[Row.T] for row in state.ops if is_pending(row)), default=0)
    return int((state.process.get("unix_ns") or 0) + first)


_WAITED = (COLLECTIVE, MESSAGE, COMPOSED)
_KEPT = (COLLECTIVE, MESSAGE)
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS


def _is_plain(state: State) -> bool:
    return (
        state.role == _WORKER
        and type(state.identity.get("rank")) is int
        and bool(state.process.get("pid"))
        and not (state.unsettled or state.problems or state.source)
        and not {kind for kind, found in state.listed.items() if found} - _HARMLESS
    )


def _row(
    row: Sequence[Any],
    call: dict[str, Any],
    stacks: dict[int, Any],
    order: dict[int, int],
    own: int | None,
    *,
    waits: bool,
) -> list[Any]:
    shape = [Row.value(row, place) is None for place in _SHAPE] if waits else []
    return [
        _without(call, _OWN_OF_CALL),
        stacks.get(call.get("stack", -1)),
        order.get(call.get("group", -1)),
        Row.value(row, Row.THREAD),
        Row.value(row, Row.SEQ),
        _beside(Row.value(row, Row.SOURCE), own),
        shape,
    ]


def _moved(call: dict[str, Any], own: int | None) -> dict[str, Any]:
    """The call with its peer as a distance: neighbours of a pipeline are alike."""
    return {**call, "peer": _beside(call["peer"], own)} if "peer" in call else call


def _beside(peer: int | None, own: int | None) -> int | None:
    return peer if peer is None or own is None else peer - own


def _name(group: dict[str, Any], store: dict[str, Any] | None) -> str | None:
    prefix = None if store is None else store.get("prefix", [])
    ranks = group.get("ranks")
    if prefix is None or None in prefix or not ranks or group.get("rank") is None:
        return None
    return _hashed([hidden(w) for w in prefix], ranks, group.get("size"), group.get("nth"))


def _hashed(prefix: Sequence[str], ranks: Sequence[Any], size: int | None, nth: int | None) -> str:
    told = orjson.dumps([prefix, ranks, size, nth], option=_OPTIONS)
    return hashlib.sha256(told).hexdigest()[:16]


def only(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """So much of a record."""
    return {name: record[name] for name in names if name in record}


def _without(record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}
