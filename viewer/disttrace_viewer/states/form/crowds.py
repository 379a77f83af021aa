"""Who of many that stand alike is looked at by himself: what a verdict costs is by these.

In a job of 100,000 ranks nearly all wait in a few ways. Whoever waits in the same groups as others
that are like it says what these say; and so do whole groups of the same make: of a thousand
tensor-parallel groups that all wait for the same data-parallel ones two say it all. Of what make a
group is, is told by who its members are, and by what other groups these are in (refinement of
colours, Weisfeiler and Leman 1968). Where the members of a group contradict each other, no other
group tells of it: how many of its own say what decides who of them is odd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from disttrace_viewer.states.form.alike import Like

MOST_BY_THEMSELVES = 1_024
"""Of no more than these that are like others each is looked at."""
TELLERS = 2
"""So many tell of others, so that nobody's word is the only one; of groups of one make as many."""
_FEWEST = 4
"""Of whom not all are worth it."""
_MOST_ROUNDS = 32
_HASH = (1 << 61) - 1

Names = tuple[str, ...]
Key = tuple[int, Names]
"""Whom they are like, and the groups they are in of those in which anybody waits."""


class CrowdOfLikes(NamedTuple):
    """Some of whom others tell; in the trace they are a ``Crowd``."""

    tellers: Sequence[Like]
    likes: Sequence[Like]
    shared: frozenset[str]
    """Groups (names) that they are in together."""
    whole: bool
    """These are all of theirs in which anybody waits."""


class Parted(NamedTuple):
    """Who is looked at by himself, with whom each is like, and of whom these tell."""

    kept: Sequence[tuple[int, Sequence[Like]]]
    crowds: Mapping[Key, Sequence[CrowdOfLikes]]


@dataclass
class Question:
    """What is asked of those that are like others."""

    waits: Mapping[str, Collection[object]]
    """By group (name) what somebody waits in there."""
    disputed: Set[str]
    """Groups whose members contradict each other."""
    wanted: Collection[int]
    """Ranks that exchange messages with somebody who waits for one."""
    known: Collection[str]
    """Groups of those that were told as a whole."""


def parted(likes: Sequence[Sequence[Like]], asked: Question) -> Parted:
    """``likes``: by the number of whom they are like."""
    keys: dict[Key, list[Like]] = {}
    alone: dict[Key, list[Like]] = {}
    for number, of in enumerate(likes):
        for one in of:
            names = tuple([name for name in one.groups if name in asked.waits])
            at = alone if one.rank in asked.wanted else keys
            at.setdefault((number, names), []).append(one)
    kept = [(number, of) for (number, _), of in alone.items()]
    here = {*asked.known, *asked.disputed, *(name for _, names in alone for name in names)}
    coloured = _coloured(keys, here)
    if coloured is None:
        return Parted([*kept, *((number, of) for (number, _), of in keys.items())], {})
    colours, makes = coloured
    of_make: dict[int, list[str]] = {}
    for name, make in makes.items():
        of_make.setdefault(make, []).append(name)
    here.update(name for of in of_make.values() for name in of[:TELLERS])
    rows = _told(keys, colours, here)
    crowds: dict[Key, list[CrowdOfLikes]] = {}
    for key, likes_of in keys.items():
        if rows.get(key, key) == key:
            few = len(likes_of) < _FEWEST
            own = likes_of if few else likes_of[:TELLERS]
            kept.append((key[0], own))
            if not few:
                crowd = CrowdOfLikes(own, likes_of[TELLERS:], frozenset(key[1]), whole=True)
                crowds.setdefault(key, []).append(crowd)
    apart: dict[tuple[Key, frozenset[str]], list[Like]] = {}
    for key, teller in rows.items():
        if teller != key:
            shared = frozenset(here.intersection(key[1]))
            apart.setdefault((teller, shared), []).extend(keys[key])
    for (teller, shared), of in apart.items():
        crowd = CrowdOfLikes(keys[teller][:TELLERS], of, shared, whole=False)
        crowds.setdefault(teller, []).append(crowd)
    return Parted(kept, crowds)


def _coloured(
    keys: Mapping[Key, Sequence[Like]], here: Collection[str]
) -> tuple[dict[Key, int], dict[str, int]] | None:
    """By key its colour, and by group its make: the sum of what its members are. Who is ``here``
    for another reason is like no other one. None where they do not settle, in long rows of groups:
    by colours that have not settled those at its middle would seem to wait for one another.
    """
    colours = {key: key[0] for key in keys}
    single = {name: hash(name) for name in here}
    count = 0
    for _ in range(_MOST_ROUNDS):
        makes = dict(single)
        for key, of in keys.items():
            part = hash((colours[key], "member")) * len(of)
            for place, name in enumerate(key[1]):
                makes[name] = (makes.get(name, 0) + part * (2 * place + 1)) % _HASH
        numbers: dict[tuple[int, ...], int] = {}
        for key in keys:
            seen = (colours[key], *[makes[name] for name in key[1]])
            colours[key] = numbers.setdefault(seen, len(numbers))
        if len(numbers) == count:
            return colours, makes
        count = len(numbers)
    return None


def _told(
    keys: Mapping[Key, Sequence[Like]], colours: Mapping[Key, int], here: set[str]
) -> dict[Key, Key]:
    """By key whose likes tell of its own: itself where all its groups are here. ``here`` grows by
    the groups of those of whom nobody could tell.
    """
    for _ in range(_MOST_ROUNDS):
        own: dict[int, list[Key]] = {}
        for key in keys:
            if here.issuperset(key[1]):
                own.setdefault(colours[key], []).append(key)
        tables: dict[tuple[int, tuple[int, ...]], dict[Names, Key]] = {}
        rows: dict[Key, Key] = {}
        lost: set[str] = set()
        for key in keys:
            if here.issuperset(key[1]):
                rows[key] = key
                continue
            at = tuple([n for n, name in enumerate(key[1]) if name in here])
            colour = colours[key]
            table = tables.get((colour, at))
            if table is None:
                table = {tuple([k[1][n] for n in at]): k for k in reversed(own.get(colour, ()))}
                tables[colour, at] = table
            teller = table.get(tuple([key[1][n] for n in at]))
            if teller is None:
                lost.update(key[1])
            else:
                rows[key] = teller
        if not lost:
            return rows
        here |= lost
    here.update(name for _, names in keys for name in names)
    return {key: key for key in keys}
