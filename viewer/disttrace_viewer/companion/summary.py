"""What a host sends of its processes first, whatever their number: the waits, and since when.

By it the server chooses the hosts of which it requests states.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from disttrace.journal.format import COLLECTIVE, COMPOSED, MESSAGE, ranges_of, ranks_of
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.companion import protocol
from disttrace_viewer.companion.endpoint import MOST_SUMMARY, PeerReply
from disttrace_viewer.companion.reports import hidden
from disttrace_viewer.load.schema import Checker, maybe, number
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.state import Merged, OpRow, State, WaitsWith
from disttrace_viewer.trace.values import dataclass

MOST_WAITS, MOST_GROUPS, MOST_PIECES = 128, 64, 64
"""Rows of a summary, groups of these, and ranges of ranks in one row."""
MOST_OF_HOST, MOST_OF_GROUP = 1 << 12, 1 << 20
"""Ranks of a host, and members of a group."""
MOST_TROUBLED, MOST_ABSENT, MOST_TWO_MINDS = 16, 24, 16
"""Hosts that are chosen since a process failed or is stopped there; since others wait for ranks
there; and since ranks wait for one exchange with different arguments."""
MOST_COUNTED, MOST_LOOKED = 256, 1 << 23
"""Ranks that are missing in one exchange; members of all that are gone through."""
_ODD = frozenset(("failure", "handling", "exit", "seen", "trouble"))

Exchange = tuple[str, int, int]
"""Key of a group, number, and the rank that is waited for (of a message; else -1)."""


class HostWait(NamedTuple):
    """What some ranks of a host wait in."""

    group: str
    """Its key; empty for stores, and while groups are made."""
    number: int
    peer: int
    """The rank that a message is for or from; -1: all members."""
    call: int
    """A hash of operation, arguments and line, equal on all hosts."""
    since_ns: int
    ranks: frozenset[int]

    @property
    def exchange(self) -> Exchange:
        return self.group, self.number, self.peer


@dataclass(frozen=True, slots=True)
class HostSummary:
    """Of one host."""

    ranks: frozenset[int]
    trouble_ns: int | None
    """Since when a process there has failed or is stopped; None: none has, or is."""
    waits: tuple[HostWait, ...]
    groups: Mapping[str, tuple[range, ...]]
    """By key the ranks of the members."""


class _Row(NamedTuple):
    """An operation in flight: its group's number in the process, and what of it is compared."""

    number: int
    group: Sequence[Any] | None
    """Prefixes, ranks, size and count of the group."""
    seq: int
    peer: int
    call: int
    since_ns: int


def key_of(group: Sequence[Any]) -> str:
    """What names a group on all hosts: a hash of what it is, so none can be given other members."""
    return hashlib.sha256(orjson.dumps(list(group), option=_SORTED)).hexdigest()[:16]


_SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


def rows_of(state: State) -> Iterator[_Row]:
    """The operations of a process that are not over, as far as others wait for them or for it."""
    calls, groups, stores = (state.numbered.get(kind, {}) for kind in ("call", "group", "store"))
    zero = state.process.get("unix_ns") or 0
    courses = {group: rest for group, _, *rest in state.courses}
    for row in state.ops:
        call = calls.get(row[OpRow.CALL], {})
        if not is_pending(row) or call.get("kind") == COMPOSED:
            continue
        number, peer = call.get("group", -1), -1
        group = groups.get(number)
        kind = call.get("kind")
        made = None
        if group is not None and kind in (COLLECTIVE, MESSAGE):
            prefix = stores.get(group.get("store", -1), {}).get("prefix", [])
            if None in prefix or not group.get("ranks"):
                continue
            made = [[hidden(word) for word in prefix], group["ranks"], group.get("size")]
            made.append(group.get("nth"))
        if kind == MESSAGE and made is not None:
            ranks = ranks_of(made[1]) or ()
            place = OpRow.value(row, OpRow.SOURCE)
            place = call.get("peer") if place is None else place
            if not isinstance(place, int) or not 0 <= place < len(ranks):
                continue
            peer = ranks[place]
        seq = OpRow.value(row, OpRow.SEQ) if made is not None else None
        course = courses.get(number) if kind == COLLECTIVE else None
        yield _Row(number, made, seq or 0, peer, _call(state, call, course), zero + row[OpRow.T])


def is_pending(row: Sequence[Any]) -> bool:
    """Whether a row of a state is of an operation that is not over."""
    of = OpRow.value
    return of(row, OpRow.END) is None and of(row, OpRow.ERROR) is None and not of(row, OpRow.LOST)


def _call(state: State, call: Mapping[str, Any], course: Any) -> int:
    frames = state.numbered.get("stack", {}).get(call.get("stack", -1)) or [["", 0, ""]]
    file, line, _ = frames[0]
    names = ("op", "shapes", "dtypes", "reduce_op", "root")
    what = [[call.get(name) for name in names], str(file).rpartition("/")[2], line, course]
    return int.from_bytes(hashlib.sha256(orjson.dumps(what, option=_SORTED)).digest()[:6], "big")


def packed(merged: Merged, see: Look = look) -> bytes:
    """The summary of our processes."""
    trace, _ = trace_of(merged)
    living = {p.id for p in trace.processes if (seen := see(p)).alive and not seen.is_stopped}
    known = [s for s in merged.states.values() if type(s.identity.get("rank")) is int]
    found: dict[tuple[Any, ...], list[Any]] = {}
    groups: dict[str, Sequence[Any]] = {}
    for state in known:
        for row in rows_of(state) if state.id in living else ():
            name = ""
            if row.group is not None:
                groups.setdefault(name := key_of(row.group), row.group)
            one = found.setdefault((name, row.seq, row.peer, row.call), [row.since_ns, set()])
            one[0] = min(one[0], row.since_ns)
            one[1].add(state.identity["rank"])
    oldest = sorted(found.items(), key=lambda item: item[1][0])[:MOST_WAITS]
    used = [*dict.fromkeys(key[0] for key, _ in oldest if key[0])][:MOST_GROUPS]
    troubled = [at for s in merged.states.values() if (at := _trouble(s, living)) is not None]
    value: dict[str, Any] = {
        "ranks": _few(s.identity["rank"] for s in known),
        "trouble": min(troubled, default=None),
        "groups": [groups[name] for name in used],
        "waits": [
            [used.index(name) if name else None, seq, peer, call, since, _few(ranks)]
            for (name, seq, peer, call), (since, ranks) in oldest
            if not name or name in used
        ],
    }
    data = orjson.dumps(value, option=_SORTED)
    while len(data) > MOST_SUMMARY and value["waits"]:
        value["waits"] = value["waits"][: len(value["waits"]) // 2]
        places = [one[0] for one in value["waits"] if one[0] is not None]
        value["groups"] = value["groups"][: max(places, default=-1) + 1]
        data = orjson.dumps(value, option=_SORTED)
    return data


def _trouble(state: State, living: Collection[str]) -> int | None:
    """Since when something is wrong with a process, by the clock of its host."""
    zero = state.process.get("unix_ns") or 0
    odd = [one.get("t") or 0 for kind in _ODD for one in state.listed.get(kind, ())]
    if odd:
        return int(zero + min(odd))
    return int(zero + state.last_t) if state.id not in living else None


def _few(ranks: Iterable[int]) -> list[Any]:
    return ranges_of(sorted(set(ranks)))[:MOST_PIECES]


def _ranks(checker: Checker, value: Sequence[Any], most: int) -> tuple[range, ...]:
    found = []
    for one in value:
        row = (one["from"], one["to"], one.get("step") or 1) if type(one) is dict else (one, one, 1)
        first, last, step = (_N(checker, part) for part in row)
        found.append(range(first, last + 1, step))
    if sum(map(len, found)) > most:
        raise ValueError("more ranks than there are")
    return tuple(found)


def _of_host(checker: Checker, value: Sequence[Any]) -> frozenset[int]:
    ranks = _ranks(checker, value[:MOST_PIECES], MOST_OF_HOST)
    return frozenset(itertools.chain.from_iterable(ranks))


_N = number()
_FORM = protocol.fields(
    ranks=_of_host,
    trouble=maybe(_N),
    groups=protocol.rows(
        lambda checker, one: (key_of(one), _ranks(checker, one[1], MOST_OF_GROUP)), MOST_GROUPS
    ),
    waits=protocol.rows(protocol.row(maybe(_N), _N, number(-1), _N, _N, _of_host), MOST_WAITS),
)


def read(answers: Iterable[PeerReply]) -> dict[str, HostSummary]:
    """By sender the summaries that are such."""
    found = {}
    for answer in answers:
        with suppress(*protocol.WRONG):
            value = protocol.value_of(answer.data, _FORM)
            groups = value["groups"]
            waits = tuple(
                HostWait("" if place is None else groups[place][0], *rest)
                for place, *rest in value["waits"]
            )
            found[answer.sender] = HostSummary(
                value["ranks"], value["trouble"], waits, dict(groups)
            )
    return found


# -- which hosts stand out ---------------------------------------------------------------------


def chosen(found: Mapping[str, HostSummary], before: Collection[str], most: int) -> list[str]:
    """The hosts of which states are requested: where something is wrong, where ranks are that
    others wait for, one of those that wait in another call, and so on; ``before``: the last
    time's."""
    picked: dict[str, None] = {}

    def pick(senders: Iterable[str], count: int = 1 << 30) -> None:
        for one in senders:
            if count > 0 and one not in picked and len(picked) < most:
                picked[one] = None
                count -= 1

    of_rank: dict[int, str] = {}
    contested: list[str] = []
    for sender, one in found.items():
        for rank in one.ranks:
            if of_rank.setdefault(rank, sender) != sender:
                contested += [of_rank[rank], sender]
    pick(contested, MOST_TROUBLED)
    troubled = [(at, one) for one, s in found.items() if (at := s.trouble_ns) is not None]
    pick((one for _, one in sorted(troubled)), MOST_TROUBLED)
    waiting = _waiting(found)
    roots, others = _absent(found, waiting)
    pick((of_rank[rank] for rank in (*roots, *others) if rank in of_rank), MOST_ABSENT)
    split = [of for of in waiting.values() if len(of) > 1]
    split.sort(key=lambda of: -sum(map(len, of.values())))
    for of in split[:MOST_TWO_MINDS]:
        for _, where in sorted(of.items(), key=lambda item: len(item[1]))[:2]:
            pick(_preferred(where, before), 2)
    for exchange, of in waiting.items():
        members = _members(found, exchange, of)
        if len(picked) < most * 3 // 4 and any(r in one for r in roots for one in members):
            for where in of.values():
                pick(_preferred(where, before), 2)
    classes: dict[int, dict[str, None]] = {}
    for of in waiting.values():
        for call, where in of.items():
            classes.setdefault(call, {}).update(where)
    for where in sorted(classes.values(), key=len, reverse=True):
        if picked.keys().isdisjoint(where):
            pick(_preferred(where, before), 1)
    pick(one for one in before if one in found)
    pick(found)
    return [*picked]


Calls = dict[int, dict[str, None]]
"""By call the hosts at which ranks wait in it."""


def _waiting(found: Mapping[str, HostSummary]) -> dict[Exchange, Calls]:
    waiting: dict[Exchange, Calls] = {}
    for sender, one in found.items():
        for wait in one.waits:
            waiting.setdefault(wait.exchange, {}).setdefault(wait.call, {})[sender] = None
    return waiting


def _members(found: Mapping[str, HostSummary], exchange: Exchange, of: Calls) -> tuple[range, ...]:
    group, _, peer = exchange
    if peer >= 0:
        return (range(peer, peer + 1),)
    first = found[next(iter(next(iter(of.values()))))]
    return first.groups.get(group, ())


def _absent(
    found: Mapping[str, HostSummary], waiting: Mapping[Exchange, Calls]
) -> tuple[list[int], list[int]]:
    """Ranks that others wait for, first those that most wait for: those that wait in nothing
    themselves, and those that do."""
    there: dict[Exchange, set[int]] = {}
    busy: set[int] = set()
    for one in found.values():
        for wait in one.waits:
            there.setdefault(wait.exchange, set()).update(wait.ranks)
            busy |= wait.ranks
    known = frozenset[int]().union(*(one.ranks for one in found.values()))
    counts: Counter[int] = Counter()
    looked = 0
    for exchange, of in waiting.items():
        group, _, peer = exchange
        here = set() if peer >= 0 else there[exchange]
        members = _members(found, exchange, of) if group else (sorted(known - busy),)
        looked += sum(map(len, members))
        if looked > MOST_LOOKED:
            break
        rest = (rank for one in members for rank in one if rank not in here)
        for rank in itertools.islice(rest, MOST_COUNTED):
            counts[rank] += len(there[exchange])
    order = [rank for rank, _ in counts.most_common()]
    return [r for r in order if r not in busy], [r for r in order if r in busy]


def _preferred(where: Mapping[str, None], before: Collection[str]) -> list[str]:
    return sorted(where, key=lambda one: one not in before)


_Waiter = tuple[int, str, int]
"""A rank, its process, and its own number of the group."""


def reported(others: Iterable[HostSummary], states: Iterable[State]) -> tuple[WaitsWith, ...]:
    """Ranks of hosts without states that wait where processes wait whose states are known."""
    exact: dict[tuple[str, int, int], list[_Waiter]] = {}
    alike: dict[int, list[_Waiter]] = {}
    for state in states:
        rank = state.identity.get("rank")
        if not isinstance(rank, int):
            continue
        for row in rows_of(state):
            one = (rank, state.id, -1 if row.group is None else row.number)
            alike.setdefault(row.call, []).append(one)
            if row.group is not None and row.peer < 0:
                exact.setdefault((key_of(row.group), row.seq, row.call), []).append(one)
    here: dict[tuple[str, int, int], set[int]] = {}
    apart: dict[int, tuple[set[int], set[str]]] = {}
    for wait in (wait for one in others for wait in one.waits):
        place = (wait.group, wait.number, wait.call)
        if wait.peer < 0 and place in exact:
            here.setdefault(place, set()).update(wait.ranks)
        elif wait.call in alike:
            ranks, groups = apart.setdefault(wait.call, (set(), set()))
            ranks |= wait.ranks
            if wait.peer < 0 and wait.group:
                groups.add(wait.group)
    found = [_reported(exact[place], ranks, 0) for place, ranks in here.items()]
    return tuple(
        found
        + [_reported(alike[call], ranks, len(of) or -1) for call, (ranks, of) in apart.items()]
    )


def _reported(alike: Sequence[_Waiter], ranks: Collection[int], groups: int) -> WaitsWith:
    """By the two of them with the highest ranks, so that no single process speaks for others."""
    *_, first, last = sorted([alike[0], *alike])
    return WaitsWith((first[1], last[1]), last[2], tuple(sorted(ranks)), groups)
