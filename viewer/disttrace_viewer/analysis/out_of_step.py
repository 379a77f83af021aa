"""From which call on members of a group are out of step, by what each of them called.

A call that one member leaves out, or makes twice, is no difference that anybody sees where the next
one passes the same: each call of that member then meets another one of the others, and results are
mixed. What was called, and where, tells: from that number on both sides are equal again if their
numbers are shifted against each other.

That lines differ is no fault by itself: rank 0 may log through a function of its own. Where both
sides go on in step after it, under the same numbers, two lines of which one side has only one count
as the same from then on. Nor is it a fault where both have both lines and take them by themselves:
ranks that lead in turn, a batch of text here and of images there, one that has fewer batches and
joins the others' calls from elsewhere. Such lines never met themselves, or meet in step again, or
have no order of which a shift can be distinguished from chance.

Some calls in another order from a step on look the same, where a loop has no more than two calls,
as one that was left out once: then both readings are given.

Calls are anything that is equal where they are the same. Each becomes a character and a course a
string, so that comparing a million of them is one comparison of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from itertools import groupby
from typing import Generic, TypeVar

from disttrace_viewer.trace.values import dataclass, field, replace

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Hashable)

SKIPPED, EXTRA, SWAPPED = "skipped", "extra", "swapped"

MOST_SHIFT = 64
"""Calls in a row that one side leaves out or makes beyond the others', at most."""
_LEAST = 2
"""Calls that must be equal again by the shift, and are not without it."""
_LEAST_BEFORE_A_CLASH = 1
"""Where the last calls of both cannot be one: that they stay in step is ruled out."""
_FOR_A_WHILE = 16
"""So many of them where something else comes after."""
_FAR = 4_096
"""Explanations are compared over so many calls."""
_MOST_ONCE = 256
"""Differences between lines that both sides know; with more of them no pattern is seen."""
_NO_CHANCE = 5
"""So often both sides have to change from one line to another together: where branches are taken by
chance each change is two throws of a coin at least."""
_TRIED = 7
"""So many changes more where nothing but a shift shows that they are together, since it was chosen
out of many."""
_LONGEST_ORDER = 8
"""Calls of a step that one side makes in another order, at most."""
_CONTEXT = 16
"""Calls before one by which is known what usually follows."""
_REFERENCES = 4
"""Courses that are tried as the usual one."""


@dataclass(frozen=True, slots=True)
class Shift(Generic[K, C]):
    """``members`` are out of step with ``others`` from call ``number`` on (they begin at 1)."""

    how: str
    """Members left calls out, made some beyond the others, or made two in another order."""
    number: int
    earliest: int
    """It may have been any of several equal ones in a row: this is the first of them."""
    members: tuple[K, ...]
    others: tuple[K, ...]
    calls: tuple[C, ...]
    """What was left out or made too many; of a swap what the members called first."""
    met: C
    """What the other side called under ``number``."""
    doubled: bool
    """To have made the call before it twice, instead of leaving one out, would look the same."""
    decided: bool
    """Whether the others are a majority, or did what all did before; else it may be their fault."""
    sure: bool
    """Whether branches that members take by themselves would look otherwise; else it is what led to
    an error, if there is one, and nothing otherwise."""
    newest: int
    """The last number that one of the members and one of the others have begun."""
    crossed: int = 0
    """Of another order: so many calls met another one."""
    short: bool = False
    """One side has begun fewer calls."""
    instead: Shift[K, C] | None = None
    """Of another order, if it may as well be a call that was left out once: that."""

    def later(self, by: int) -> Shift[K, C]:
        """The same, where courses began ``by`` calls after the first one."""
        numbers = {key: getattr(self, key) + by for key in ("number", "earliest", "newest")}
        instead = None if self.instead is None else self.instead.later(by)
        return replace(self, **numbers, instead=instead)


@dataclass(frozen=True, slots=True)
class _Apart:
    how: str
    at: int
    count: int
    """How many calls were left out or made too many; of another order those since the first."""
    equal: int = field(default=0, compare=False)
    """So many calls in a row are equal by it."""
    instead: _Apart | None = field(default=None, compare=False)
    sure: bool = field(default=False, compare=False)


def first_shift(
    courses: Mapping[K, Sequence[C]],
    size: int | None = None,
    *,
    kind: Callable[[C], Hashable] = lambda _: None,
) -> Shift[K, C] | None:
    """The first place from which on members of a group are out of step; None where there is none,
    or where nothing tells it from a branch that is meant to be there.

    Args:
        courses: of each member its calls in the order of their numbers, from the first on.
        size: members of the group, if not all of them are among the courses.
        kind: what calls under one number have to have in common, as their operation.
    """
    codes: dict[C, str] = {}
    texts: dict[K, str] = {}
    for member, course in courses.items():
        for call in course:
            if call not in codes:
                codes[call] = chr(len(codes) + 1)
        texts[member] = "".join([codes[call] for call in course])
    classes = _classes(texts)
    if len(classes) < 2:
        return None
    kinds = {code: kind(call) for call, code in codes.items()}
    views = [_view(usual, classes, kinds) for usual, _ in classes[:_REFERENCES]]
    view = max(views, key=lambda one: len(one.in_step))
    if view.apart is None:
        return None
    calls = {code: call for call, code in codes.items()}
    return _shift(view, size or len(courses), calls, kinds)


@dataclass(frozen=True, slots=True)
class _View(Generic[K]):
    """Who is out of step with one course that is taken for the usual one."""

    usual: str
    in_step: tuple[K, ...]
    apart: _Apart | None = None
    other: str = ""
    members: tuple[K, ...] = ()


def _classes(texts: Mapping[K, str]) -> list[tuple[str, list[K]]]:
    """Courses of which one is the beginning of the other are one; those of most members first."""
    found: list[tuple[str, list[K]]] = []
    for member, text in sorted(texts.items(), key=lambda item: -len(item[1])):
        members = next((m for longest, m in found if longest.startswith(text)), None)
        if members is None:
            found.append((text, [member]))
        else:
            members.append(member)
    return sorted(found, key=lambda item: -len(item[1]))


Kinds = Mapping[str, Hashable]
"""Of the character of a call what calls under one number have in common."""


def _view(usual: str, classes: Sequence[tuple[str, list[K]]], kinds: Kinds) -> _View[K]:
    in_step: list[K] = []
    found: list[tuple[_Apart, str, list[K]]] = []
    for text, members in classes:
        apart = _apart(usual, text, kinds)
        if apart is None:
            in_step += members
        else:
            found.append((apart, text, members))
    if not found:
        return _View(usual, tuple(in_step))
    first, text, _ = min(found, key=lambda item: item[0].at)
    members = [m for apart, _, who in found if apart == first for m in who]
    return _View(usual, tuple(in_step), first, text, tuple(members))


def _shift(view: _View[K], size: int, calls: Mapping[str, C], kinds: Kinds) -> Shift[K, C]:
    apart, usual, other = view.apart, view.usual, view.other
    assert apart is not None
    members, others = view.members, view.in_step
    decided = 2 * len(others) > size
    if not decided and len(members) >= len(others):
        # One side against another one: in step is who did what both did before, unless the other
        # one called what no other had called so far, as a first evaluation does.
        habit = _habit(usual, apart.at)
        if habit == other[apart.at] and (back := _apart(other, usual, kinds)) is not None:
            apart, usual, other, members, others = back, other, usual, others, members
        known = other[apart.at] in other[: apart.at]
        decided = apart.how != EXTRA and known and habit == usual[apart.at]
    at, count = apart.at, apart.count
    swapped, last, both = apart.how == SWAPPED, min(len(usual), len(other)), []
    instead: Shift[K, C] | None = None
    if swapped:
        last = at + count if count < _FAR - _LONGEST_ORDER else last
        both = [*zip(usual[at:last], other[at:last], strict=True)]
        count = 1
        if apart.instead is not None:
            skipped = replace(apart.instead, sure=apart.sure)
            sides = {"usual": usual, "other": other, "members": members, "in_step": others}
            view = replace(view, apart=skipped, **sides)  # type: ignore[arg-type]
            instead = _shift(view, size, calls, kinds)
    if _is_doubled(apart, usual, other) and len(other) > len(usual):
        # All that both made since is equal, and who seems to have left out a call has one more.
        apart = replace(apart, how=EXTRA)
    longer = usual if apart.how == SKIPPED else other
    earliest = at
    while not swapped and earliest and longer[earliest - 1] == longer[earliest - 1 + count]:
        earliest -= 1
    return Shift(
        how=apart.how,
        number=at + 1,
        earliest=earliest + 1,
        members=members,
        others=others,
        calls=tuple(calls[c] for c in longer[at : at + count]),
        met=calls[(other if apart.how == SKIPPED else usual)[at]],
        doubled=_is_doubled(apart, usual, other),
        decided=decided,
        sure=apart.sure,
        newest=last,
        crossed=sum(a != b for a, b in both),
        short=len(usual) != len(other),
        instead=instead,
    )


def _is_doubled(apart: _Apart, usual: str, other: str) -> bool:
    """Whether a call that was left out may as well be one before it that was made twice."""
    at = apart.at
    return (
        (apart.how, apart.count) == (SKIPPED, 1)
        and at > 0
        and other[at] == other[at - 1]
        and _agree(usual, at, other, at + 1) >= _agree(usual, at + 1, other, at) - 1
    )


def _apart(usual: str, other: str, kinds: Kinds) -> _Apart | None:
    """Where a course leaves the usual one for good; None where its numbers stay the same."""
    start = once = since = 0
    last = min(len(usual), len(other)) - 1
    clash = kinds[usual[last]] != kinds[other[last]] if last >= 0 else False
    least = _LEAST_BEFORE_A_CLASH if clash else _LEAST
    met: set[str] = set()
    unsure: _Apart | None = None
    while once <= _MOST_ONCE:
        at = start + _agree(usual, start, other, start, far=None)
        if at >= min(len(usual), len(other)):
            break
        met.update(usual[start:at])
        one, two = usual[at], other[at]
        in_step = (usual, other)
        if two not in usual:
            in_step = (usual, other.replace(two, one))
        elif one not in other:
            in_step = (usual.replace(one, two), other)
        apart = _explained(in_step, usual, other, at, least)
        if apart is not None and clash and _to_the_end(apart, usual, other, met):
            return apart
        if apart is not None and (pairs := _explained_by(apart, usual, other, met)):
            before = usual[max(since, at - _FAR) : at]
            if _is_sure(before, usual[at : at + apart.equal], pairs):
                return replace(apart, sure=True)
            unsure = unsure or apart
        if in_step == (usual, other):
            once += 1
            since = at + 1
        usual, other = in_step
        start = at + 1
    return unsure


def _to_the_end(apart: _Apart, usual: str, other: str, met: Set[str]) -> bool:
    """Whether several calls more on one side, in the place of such as both have made together, make
    all equal up to last calls that cannot be one, which no branch explains.
    """
    longer, rest = (usual, other) if apart.how == SKIPPED else (other, usual)
    instead = rest[apart.at : apart.at + apart.count]
    to_end = apart.at + apart.count + apart.equal == len(longer)
    return apart.how != SWAPPED and to_end and apart.equal >= apart.count > 1 and met >= {*instead}


def _explained_by(apart: _Apart, usual: str, other: str, met: Set[str]) -> Set[tuple[str, str]]:
    """Lines that differ under one number and are equal by a shift; none where they differ as well
    because members take branches by themselves.

    ``met``: lines at which both sides were under the same number before.
    """
    both = list(zip(*(text[apart.at : apart.at + _FAR] for text in (usual, other)), strict=False))
    differ = {(a, b) for a, b in both if a != b}
    if sum(a == b for a, b in both) >= apart.equal and not _has_cycle(differ):
        return set()
    return {(a, b) for a, b in both[: apart.equal] if a != b and a in met and b in met}


def _is_sure(before: str, after: str, pairs: Set[tuple[str, str]]) -> bool:
    """Whether members that take branches by themselves would hardly look so.

    ``before``: what both sides called in step, since lines last differed; ``after``: what is equal
    by the shift.
    """
    for pair in pairs:
        together = max(0, len(_runs(after, pair)) - 1 - _TRIED)
        runs = _runs(before, pair)
        if len({*runs[1:-1]}) <= len(pair):  # in a loop, and not as branches come
            together += max(0, len(runs) - 1)
        if together >= _NO_CHANCE:
            return True
    return False


def _runs(text: str, pair: tuple[str, str]) -> list[tuple[str, int]]:
    """Of two lines in turn how often each is called in a row."""
    return [(line, len([*calls])) for line, calls in groupby(call for call in text if call in pair)]


def _has_cycle(pairs: Set[tuple[str, str]]) -> bool:
    """Whether lines meet in a round, as in a shifted loop; two lines for one call do not."""
    left = set(pairs)
    while left:
        ends = {b for _, b in left}
        rest = {(a, b) for a, b in left if a in ends}
        if rest == left:
            return True
        left = rest
    return False


def _explained(
    in_step: tuple[str, str], usual: str, other: str, at: int, least: int
) -> _Apart | None:
    """What makes most calls equal again; None if that is to go on as if nothing were, which is
    preferred, and after it the smallest change. A loop is equal to itself here and there, so what
    lasts as far as can be seen comes before what lasts for a while.
    """

    def rated(how: str | None, one: int, two: int, count: int) -> tuple[bool, int, _Apart | None]:
        sides = in_step if how is None else (usual, other)
        equal = _agree(sides[0], one, sides[1], two)
        left = min(len(usual) - one, len(other) - two, _FAR)
        lasts = equal >= left and (how is None or equal >= least)
        return lasts, equal, None if how is None else _Apart(how, at, count, equal)

    stays = rated(None, at + 1, at + 1, 0)
    if stays[0]:
        return None
    found = [stays]
    order = _in_another_order(usual, other, at)
    if order is not None and order.count == 2:
        found.append(rated(SWAPPED, at + 2, at + 2, 2))
    for count in range(1, MOST_SHIFT + 1):
        found.append(rated(SKIPPED, at + count, at, count))
        found.append(rated(EXTRA, at, at + count, count))
    lasting = next((one for one in found if one[0]), None)
    if order is not None and order.count > 2:
        alone = usual[at : at + order.count] == usual[at : at + 2] * (order.count // 2)
        if lasting is None or alone:  # a loop of these two
            return replace(order, instead=None if lasting is None else lasting[2])
    best = lasting or max(found, key=lambda one: one[1])
    return best[2] if best[0] or best[1] >= _FOR_A_WHILE else None


def _in_another_order(usual: str, other: str, at: int) -> _Apart | None:
    """The same few calls in another order than both sides made them in before: two of them once, or
    some again and again, with nothing else that differs as far as can be seen, or for a while.
    """
    for width in range(2, _LONGEST_ORDER + 1):
        one, two = usual[at : at + width], other[at : at + width]
        if len(one) == len(two) == width and sorted(one) == sorted(two):
            break
    else:
        return None
    if not any(order in usual[:at] and order in other[:at] for order in (one, two)):
        return None
    end = last = at
    most = min(len(usual), len(other), at + _FAR)
    while end < most:
        here = usual[end : end + width], other[end : end + width]
        if here == (one, two):
            end = last = end + width
        elif usual[end] == other[end]:
            end += max(1, _agree(usual, end, other, end, far=most - end))
        elif end + width > most and one.startswith(here[0]) and two.startswith(here[1]):
            end = most
        else:
            break
    again = last > at + width and (end == most or end - at >= _FOR_A_WHILE)
    if not again and (width > 2 or one not in usual[:at]):
        return None
    return _Apart(SWAPPED, at, last - at if again else 2, end - at)


def _agree(usual: str, one: int, other: str, two: int, far: int | None = _FAR) -> int:
    """How many calls are equal from two places on."""
    most = min(len(usual) - one, len(other) - two)
    if far is not None:
        most = min(most, far)
    step, equal = 64, 0
    while equal < most:
        width = min(step, most - equal)
        if usual[one + equal : one + equal + width] == other[two + equal : two + equal + width]:
            equal += width
            step *= 4
        elif width == 1:
            return equal
        else:
            step = max(1, width // 4)
            most = min(most, equal + width)
    return max(equal, 0)


def _habit(text: str, at: int) -> str | None:
    """What always followed the calls before a place, twice at least; None where nothing did."""
    for width in range(1, min(_CONTEXT, at) + 1):
        context = text[at - width : at]
        followers: list[str] = []
        place = text.find(context)
        while 0 <= place < at - width and len(followers) < _FAR:
            followers.append(text[place + width])
            place = text.find(context, place + 1)
        if len(followers) > 1 and len(set(followers)) == 1:
            return followers[0]
    return None
