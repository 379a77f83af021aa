"""Which ranks are slow: read from what the ranks of this host write, seldom enough, and reported.

It takes at most ``SHARE`` of a core: where ranks write more than can be read with that, the rest of
each ``WINDOW_S`` seconds is skipped. Windows begin at the same time of day on all hosts, so what
they read is the same. All of it happens on the thread of ``talk.py``.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disttrace_viewer.companion import messages, slow_report
from disttrace_viewer.companion.follower import Follower
from disttrace_viewer.companion.slow_ranks import MOST_SHIFT, Block, Slow, SlowRanks
from disttrace_viewer.companion.slow_report import LiveFile

AGAIN_S = 3600.0
"""At most one line in so long of each culprit."""
TOGETHER_S = 120.0
"""So long the other ranks of a host have to become slow as well, once most of them lean to it."""
MOST = 8
"""Lines in an hour: of more there is no more to learn."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line: ``slow`` ranks, of a whole ``host`` or None; ``over``: they are not slow now."""

    slow: tuple[Slow, ...]
    host: str | None
    over: bool = False


class Telling:
    """What was reported, so that nothing is twice."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seen: dict[int, float] = {}
        """When a rank was first found to be slow."""
        self._told: dict[tuple[int, ...], float] = {}
        self._open: dict[tuple[int, ...], Notice] = {}
        """What was reported and is not over."""

    def due(
        self,
        slow: Sequence[Slow],
        hosts: Mapping[int, str],
        leaning: Callable[[int], float | None],
        now: float,
    ) -> list[Notice]:
        """The lines that are due. ``hosts``: by rank; ``leaning``: the share of a rank so far, None
        where nothing is known of it any more.
        """
        ranks = {one.rank: one for one in reversed(slow)}  # the worst of a rank's groups
        self._seen = {rank: self._seen.get(rank, now) for rank in ranks}
        found, taken = [], set[int]()
        for rank, one in ranks.items():
            beside = sorted(r for r, host in hosts.items() if host == hosts.get(rank))
            if rank in taken:
                continue
            whole = len(beside) > 1 and len(set(hosts.values())) > 1
            if whole and all(r in ranks for r in beside):
                taken.update(beside)
                found.append(Notice(tuple(ranks[r] for r in beside), hosts[rank]))
            elif not (
                whole
                and now - self._seen[rank] < TOGETHER_S
                and all((leaning(r) or 0.0) >= self._share / 2 for r in beside)
            ):
                found.append(Notice((one,), None))
        lines = self._ended(ranks, leaning)
        for notice in sorted(found, key=lambda notice: -max(one.share for one in notice.slow)):
            key = tuple(one.rank for one in notice.slow)
            if any(set(key) <= set(other) and other != key for other in self._open):
                continue  # a part of a host that was reported
            self._told = {k: at for k, at in self._told.items() if now - at < AGAIN_S}
            if key not in self._told and len(self._told) < MOST:
                self._told[key] = now
                lines.append(notice)
                self._open[key] = notice
            elif key in self._open:
                self._open[key] = notice
        return lines

    def _ended(
        self, ranks: Mapping[int, Slow], leaning: Callable[[int], float | None]
    ) -> list[Notice]:
        ended = [key for key in self._open if not any(rank in ranks for rank in key)]
        over = [(key, self._open.pop(key)) for key in ended]
        return [
            Notice(one.slow, one.host, over=True)
            for key, one in over
            if any(leaning(rank) is not None for rank in key)  # else they have stopped or ended
        ]


VERSION = 1
MOST_BLOCKS = 4096
"""Of one answer: of more the newest."""
MOST_PLACES = 12
"""Of a block: those with most time."""
MOST_SLOW = 32
MOST_NAME = 64
_NAME = re.compile(r"[0-9a-f]{1,16}")


def _hash(_checker: object, value: Any) -> str:
    if _NAME.fullmatch(value) is None:
        raise ValueError("a name")
    found: str = value
    return found


_N = messages.number(0, 1 << 62)
_PLACES = messages.rows(messages.row(_hash, _N, _N, _N), MOST_PLACES)
FORM = messages.fields(
    slow=messages.one_of(VERSION),
    host=messages.text("name"),
    blocks=messages.rows(
        messages.row(_hash, messages.number(0, MOST_SHIFT), _N, _N, _N, _N, _PLACES), MOST_BLOCKS
    ),
)


def values(blocks: Sequence[Block], host: str) -> dict[str, Any]:
    """Blocks as values of JSON, and of which host they are."""
    rows = [
        [one.group, one.shift, one.index, one.rank, one.size, one.span_ns, _places(one)]
        for one in blocks[-MOST_BLOCKS:]
    ]
    return {"slow": VERSION, "host": host[:MOST_NAME], "blocks": rows}


def _places(block: Block) -> list[tuple[str, int, int, int]]:
    found = [(place, *sums) for place, sums in block.places.items()]
    return sorted(found, key=lambda row: -row[2] - row[3])[:MOST_PLACES]


def read_back(value: Mapping[str, Any]) -> list[Block]:
    """The blocks of an answer that is of the form."""
    return [
        Block(group, shift, index, rank, size, span_ns, {p: (n, a, i) for p, n, a, i in places})
        for group, shift, index, rank, size, span_ns, places in value["blocks"]
    ]


def request_words(slow: Iterable[Slow]) -> list[str]:
    """Who is slow, as words of a question: up to 64 characters each."""
    return [
        f"slow {s.rank} {s.others} {s.share:.4f} {s.since:.0f} {s.rank_hours:.4f} {s.place}"
        for s in list(slow)[:MOST_SLOW]
    ]


def heard(question: Iterable[str]) -> list[Slow]:
    """Who is slow, by the words of a question."""
    found = []
    for one in question:
        kind, *rest = one.split(" ")
        try:
            rank, others, share, since, hours, place = rest
            if kind == "slow" and (not place or _NAME.fullmatch(place)):
                row = (int(others), float(share), float(since), place, float(hours))
                found.append(Slow(int(rank), "", *row))
        except ValueError:
            continue
    return found


SHARE = 0.02
WINDOW_S = 30.0
AFTER_S = 35.0
"""From the start of a rank on: before that ranks are unlike each other, and nothing is read."""
_TELL_S, _RECENT_S = 5.0, 12.0
"""Between two answers in which blocks are sent, and which ones are."""
HERE = "here"

Say = Callable[[str, str, dict[str, Any], Sequence[str]], None]
"""Gets kind, text, object and voices of an announcement."""


class Slowness:
    """See above. ``share`` of their time from which a rank that makes others wait is reported."""

    def __init__(self, live: LiveFile, share: float, announce: Say) -> None:
        """``live`` takes what is known for readers on this host."""
        self._live, self._say = live, announce
        self._ranks, self._telling = SlowRanks(share), Telling(share)
        self._followers: Mapping[str, Follower] = {}
        self._recent: deque[tuple[float, Block]] = deque(maxlen=MOST_BLOCKS)
        self._fresh: list[Block] = []
        self._hosts: dict[int, str] = {}
        self._names = {HERE: socket.gethostname()}
        self._told_by_leader: list[Slow] | None = None
        self._window, self._spent, self._behind = -1, 0.0, False
        self._told_at = 0.0

    def finish(self) -> None:
        self._live.remove()

    def turn(self, followers: Mapping[str, Follower]) -> None:
        self._followers = followers
        started = [one.definitions.process.get("start_ns") or 0 for one in followers.values()]
        if time.time() - max(started, default=time.time_ns()) / 1e9 >= AFTER_S:
            self._read()
        slow = self._ranks.slow() if self._told_by_leader is None else self._told_by_leader
        with contextlib.suppress(OSError):  # no disk, or no folder: it cannot be read then
            self._live.write(followers.values(), slow, self._places)

    def question(self) -> list[str]:
        return request_words(self._ranks.slow())

    def answer(self, question: Sequence[str]) -> dict[str, Any] | None:
        """What is sent to the server, whose request has the ranks that are slow."""
        self._told_by_leader = heard(question)
        now = time.time()
        if now - self._told_at < _TELL_S:
            return None
        self._told_at = now
        blocks = [one for at, one in self._recent if at >= now - _RECENT_S]
        return values(blocks, self._names[HERE])

    def led(self) -> None:
        """Another host leads, and gets what was read here."""
        self._keep(time.time())
        if self._told_by_leader is None:
            self._told_by_leader = []

    def hear(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Judge what is known here and what others sent, by host."""
        now = time.time()
        fresh = self._keep(now)
        for host, value in answers.items():
            if value is None:
                continue
            self._names[host] = value["host"]
            others = {HERE, *answers} - {host}
            for one in read_back(value):
                if self._hosts.get(one.rank) not in others:  # no host reports on another's ranks
                    self._hosts[one.rank] = host
                    fresh.append(one)
        self._told_by_leader = None
        self._ranks.add(fresh, now)
        slow = self._ranks.slow()
        for line in self._telling.due(slow, self._hosts, self._ranks.leaning, now):
            self._put(line, now)

    def _keep(self, now: float) -> list[Block]:
        fresh, self._fresh = self._fresh, []
        self._hosts.update((one.rank, HERE) for one in fresh)
        self._recent.extend((now, one) for one in fresh)
        return fresh

    def _read(self) -> None:
        window = int(time.time() / WINDOW_S)
        if window != self._window:
            self._window, self._spent = window, 0.0
            if self._behind:
                self._behind = False
                for one in self._followers.values():
                    one.skip()
        more, began = list(self._followers.values()), time.thread_time()
        while more and not self._behind:
            unread = []
            for one in more:
                blocks, again = one.read()
                self._fresh += blocks
                if again:
                    unread.append(one)
            more = unread
            self._behind = self._spent + time.thread_time() - began > SHARE * WINDOW_S
        self._spent += time.thread_time() - began

    def _put(self, line: Notice, now: float) -> None:
        places = self._places
        known = {
            one.definitions.rank: one.definitions.id
            for one in self._followers.values()
            if one.definitions.rank is not None
        }
        host = line.host and (self._names.get(line.host) or slow_report.UNNAMED)
        if line.over:
            text = slow_report.over(line.slow, host, now)
            values: dict[str, Any] = {"summary": text}
        else:
            text = slow_report.summary(line.slow, host, places)
            values = slow_report.object_of(line.slow, text, places, known)
        kind = slow_report.OVER if line.over else slow_report.KIND
        voices = [one.definitions for one in self._followers.values()]
        voices = [one for one in voices if one.is_agent or one.rank is not None]
        voices.sort(key=lambda d: (not d.is_agent, d.rank is None, d.rank or 0))
        self._say(kind, f"{kind}: {text}", values, [one.id for one in voices])

    @property
    def _places(self) -> slow_report.Places:
        return {p: at for one in self._followers.values() for p, at in one.holds.places.items()}
