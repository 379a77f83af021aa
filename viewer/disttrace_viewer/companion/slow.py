"""Ranks that make others wait: read from what the ranks of this host write, exchanged and reported.

Reading takes at most ``SHARE`` of a core: of more the rest of each ``WINDOW_S`` seconds is skipped.
Windows begin at the same time of day on all hosts, so what they read is the same.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.companion import protocol
from disttrace_viewer.companion.follower import Follower
from disttrace_viewer.companion.slow_ranks import (
    MOST_SHIFT,
    RANK_HOURS,
    Block,
    Notice,
    Slow,
    SlowRanks,
    Sums,
    Telling,
)
from disttrace_viewer.load.schema import Checker, number
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import file_name

MOST_BLOCKS = 4096
"""Of one answer: of more the newest."""
MOST_PLACES = 12
"""Of a block: those with most time."""
MOST_SLOW = 32
MOST_NAME = 64
_HEX = re.compile(r"[0-9a-f]{0,16}")


def _hash(_checker: object, value: Any) -> str:
    if _HEX.fullmatch(value) is None:
        raise ValueError("a name")
    found: str = value
    return found


_N = number(0, 1 << 62)
_PLACES = protocol.rows(protocol.row(_hash, _N, _N, _N, _N), MOST_PLACES)
_BLOCK = protocol.row(_hash, number(0, MOST_SHIFT), _N, _N, _N, _N, _PLACES)
_SLOW = protocol.row(_N, _N, _N, _N, _N, _hash)


def _block(checker: Checker, value: Any) -> Block:
    group, shift, index, rank, size, ns, places = _BLOCK(checker, value)
    return Block(group, shift, index, rank, size, ns, {p: Sums(*sums) for p, *sums in places})


FORM = protocol.fields(host=protocol.text("name"), blocks=protocol.rows(_block, MOST_BLOCKS))
"""What a host sends of its ranks."""


def values(blocks: Sequence[Block], host: str) -> dict[str, Any]:
    """Blocks as values of JSON, and of which host they are."""
    rows = [
        [one.group, one.shift, one.index, one.rank, one.size, one.span_ns, _places(one)]
        for one in blocks[-MOST_BLOCKS:]
    ]
    return {"host": host[:MOST_NAME], "blocks": rows}


def _places(block: Block) -> list[tuple[str, int, int, int, int]]:
    found = sorted(block.places.items(), key=lambda item: -item[1].away - item[1].inside)
    return [(place, *sums) for place, sums in found[:MOST_PLACES]]


_PARTS = 10_000
"""In so many parts a share, and an hour, is sent."""


def request_words(slow: Iterable[Slow]) -> list[str]:
    """The ranks that are slow, as words of a request."""
    rows = (
        [s.rank, s.others, int(_PARTS * s.share), int(s.since), int(_PARTS * s.rank_hours), s.place]
        for s in slow
    )
    return [orjson.dumps(row).decode() for row in itertools.islice(rows, MOST_SLOW)]


def heard(request: Iterable[str]) -> list[Slow]:
    """The ranks that are slow, by the words of a request."""
    found = []
    for word in request:
        with contextlib.suppress(*protocol.WRONG):
            rank, others, share, since, hours, place = protocol.value_of(word.encode(), _SLOW)
            found.append(Slow(rank, "", others, share / _PARTS, since, place, hours / _PARTS))
    return found


KIND, OVER = "slow", "slow no more"
UNNAMED = ""
"""A host that does not give its name without the job's secret."""
HINT = (
    "Look at what it does before that line: data loading, logging, a slower device, or more work "
    "than the others. disttrace stats tells more."
)
Places = Mapping[str, tuple[str, Frame | None]]


def line_of(place: str, places: Places) -> str | None:
    """``loader.py:40``; None where no rank of this host came by it."""
    _, frame = places.get(place, ("", None))
    return None if frame is None else f"{file_name(frame.file)}:{frame.line}"


def summary(
    slow: Sequence[Slow], host: str | None, places: Places, over_at: float | None = None
) -> str:
    """Of one rank, or of all of one ``host``, and of several the mean share; ``over_at``: since
    when (unix seconds) it is known to be over."""
    ranks = [one.rank for one in slow]
    who = f"{sentences.ranks(ranks)} {sentences.have(ranks)}"
    if host is not None:
        who = f"{'one host' if host == UNNAMED else f'host {host}'} ({sentences.ranks(ranks)}) has"
    others = max(one.others for one in slow)
    if len(slow) > 1:  # none of them waits for the others of its host
        others = len(_waiting(slow)) or others
    share = 100 * sum(one.share for one in slow) / len(slow)
    since, lost = _at(min(one.since for one in slow)), max(one.rank_hours for one in slow)
    text = f"{who} made {others:,} {'other' if others == 1 else 'others'} wait {share:.0f} % of the"
    if over_at is not None:
        gone = f"from {since} to {_at(over_at)}"
        return f"{text} time {gone}; {lost:.2g} rank hours in all"
    line = line_of(slow[0].place, places)
    return (
        f"{text} time since {since}{'' if line is None else f', before {line}'} ({lost:.2g} rank"
        f" hours so far; false alarm rate 1 in {RANK_HOURS:,} rank hours)"
    )


def _waiting(slow: Sequence[Slow]) -> list[int]:
    return sorted({rank for one in slow for rank in one.waiting} - {one.rank for one in slow})


def _at(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


def object_of(
    slow: Sequence[Slow], text: str, places: Places, ids: Mapping[int, str]
) -> dict[str, Any]:
    """The object, with a finding as in ``diagnose --json``; ``ids`` of processes here by rank."""
    ranks = sorted(one.rank for one in slow)
    waiting = _waiting(slow)
    op, frame = places.get(slow[0].place, ("", None))
    locations = []
    if frame is not None:
        where = {"file": frame.file, "line": frame.line, "function": frame.function, "op": op}
        locations = [{"process": ids.get(rank), "rank": rank, **where} for rank in ranks]
    finding = {
        "kind": "straggler",
        "severity": "warning",
        "certainty": "likely",
        "summary": text,
        "hint": HINT,
        "culprits": [ids[rank] for rank in ranks if rank in ids],
        "culprit_ranks": ranks,
        "waiting": [ids[rank] for rank in waiting if rank in ids],
        "waiting_ranks": waiting,
        "op": op or None,
        "group": slow[0].group or None,
        **dict.fromkeys(("seq", "key", "cycle")),
        "locations": locations,
        "consequences": [],
    }
    return {"certainty": "likely", "summary": text, "culprit_ranks": ranks, "finding": finding}


OVER_S = 60.0
"""Time over which the share is that a rank spends in communication."""


def verdict_of(object_of: Mapping[str, Any]) -> dict[str, Any]:
    """What dashboards show of a verdict: kind, culprits, the first line, certainty."""
    finding = object_of.get("finding") or {}
    places = [f"{at['file']}:{at['line']}" for at in finding.get("locations", ())[:1]]
    return {
        "kind": finding.get("kind", object_of.get("kind")),
        "culprit": ",".join(map(str, object_of.get("culprit_ranks") or ())),
        "line": "".join(places),
        "certainty": object_of.get("certainty"),
    }


class LiveFile:
    """The file at ``path``, of ``job`` on ``host``; ``stands``: the verdict on a stall that the
    job reported from this host and that is not over."""

    def __init__(
        self, path: str, job: str, host: str, stands: Callable[[], dict[str, Any] | None]
    ) -> None:
        self._path, self._job, self._host, self._stands = path, job, host, stands
        self._fd = -1
        self._sums: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def write(self, of: Iterable[Follower], slow: Sequence[Slow], places: Places) -> None:
        ranks = [one for one in of if one.definitions.rank is not None]
        now = time.monotonic()
        sums = {one.definitions.id: (one.holds.held_ns, one.holds.away_ns) for one in ranks}
        self._sums.append((now, sums))
        while now - self._sums[0][0] > OVER_S:
            self._sums.popleft()
        stands = self._stands()
        stores = (store for one in ranks for store in one.definitions.numbered["store"].values())
        known = {
            "at": time.time(),
            "job": self._job,
            "host": self._host,
            "meets": next((store["name"] for store in stores if store.get("port")), None),
            "stalled": stands is not None,
            "verdict": {} if stands is None else verdict_of(stands),
            "ranks": {
                one.definitions.id: {
                    "rank": one.definitions.rank,
                    "waiting_share": self._share(one.definitions.id, sums),
                }
                for one in ranks
            },
            "slow": [
                {
                    "rank": one.rank,
                    "share": round(one.share, 4),
                    "since": one.since,
                    "line": line_of(one.place, places),
                    "others": one.others,
                    "rank_hours": one.rank_hours,
                }
                for one in slow[:MOST_SLOW]
            ],
        }
        if self._fd < 0:
            self._fd = fmt.open_own(self._path, os.O_CREAT | os.O_RDWR)
        data = orjson.dumps(known) + b"\n"
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))

    def remove(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            fmt.remove_own(self._path)

    def _share(self, name: str, sums: dict[str, tuple[int, int]]) -> float | None:
        held, away = sums[name]
        held_before, away_before = self._sums[0][1].get(name, (0, 0))
        spent = held - held_before + away - away_before
        return round((held - held_before) / spent, 4) if spent else None


SHARE = 0.02
WINDOW_S = 30.0
AFTER_S = 5.0
"""From the start of a rank on: before that nothing is read."""
_TELL_S, _RECENT_S = 5.0, 12.0
"""Between two answers in which blocks are sent, and which ones are."""
HERE = "here"

Say = Callable[[str, str, dict[str, Any], Sequence[str]], None]
"""Gets kind, text, object and announcers of an announcement."""


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

    def receive(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Judge what is known here and what others sent, by host."""
        now = time.time()
        fresh = self._keep(now)
        for host, value in answers.items():
            if value is None:
                continue
            self._names[host] = value["host"]
            others = {HERE, *answers} - {host}
            for one in value["blocks"]:
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
        host = line.host and (self._names.get(line.host) or UNNAMED)
        text = summary(line.slow, host, places, now if line.over else None)
        kind, values = OVER, {"summary": text}
        if not line.over:
            kind, values = KIND, object_of(line.slow, text, places, known)
        announcers = [one.definitions for one in self._followers.values()]
        announcers = [one for one in announcers if one.is_agent or one.rank is not None]
        announcers.sort(key=lambda d: (not d.is_agent, d.rank is None, d.rank or 0))
        self._say(kind, f"{kind}: {text}", values, [one.id for one in announcers])

    @property
    def _places(self) -> Places:
        return {p: at for one in self._followers.values() for p, at in one.holds.places.items()}
