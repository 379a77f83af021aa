"""Which ranks are slow: read from what the ranks of this host write, seldom enough, and told.

It takes at most ``SHARE`` of a core: where ranks write more than can be read with that, the rest of
each ``WINDOW_S`` seconds is skipped. Windows begin at the same time of day on all hosts, so what
they read is the same. All of it happens on the thread of ``between/talk.py``, but for ``say``.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disttrace_viewer.companion.slow import told, words
from disttrace_viewer.companion.slow.blocks import Block
from disttrace_viewer.companion.slow.follower import Follower
from disttrace_viewer.companion.slow.live_file import LiveFile
from disttrace_viewer.companion.slow.ranks import Ranks, Slow
from disttrace_viewer.companion.slow.telling import Telling, Told

SHARE = 0.02
WINDOW_S = 30.0
AFTER_S = 35.0
"""From the start of a rank on: before that ranks are unlike each other, and nothing is read."""
_TELL_S, _RECENT_S = 5.0, 12.0
"""Between two answers in which blocks are told, and which ones are."""
HERE = "here"

Line = tuple[str, str, dict[str, Any], Sequence[str]]
"""Kind, text, object and voices of what is to be said."""
Say = Callable[[str, str, dict[str, Any], Sequence[str]], bool]


class Slowness:
    """See above. ``share`` of their time from which a rank that makes others wait is told."""

    def __init__(self, live: LiveFile, share: float, say: Say) -> None:
        """``live`` takes what is known for whoever asks on this host; ``say`` has a ``Line`` said,
        or is False while something else is.
        """
        self._live, self._say = live, say
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._next: Line | None = None
        self._ranks, self._telling = Ranks(share), Telling(share)
        self._followers: Mapping[str, Follower] = {}
        self._recent: deque[tuple[float, Block]] = deque(maxlen=told.MOST_BLOCKS)
        self._fresh: list[Block] = []
        self._hosts: dict[int, str] = {}
        self._names = {HERE: socket.gethostname()}
        self._told_by_leader: list[Slow] | None = None
        self._window, self._spent, self._behind = -1, 0.0, False
        self._told_at = 0.0

    def say(self) -> None:
        """On the companion's thread: have said what is to be said."""
        if self._next is None and not self._lines.empty():
            self._next = self._lines.get()
        if self._next is not None and self._say(*self._next):
            self._next = None

    def finish(self) -> None:
        """The job is over on this host."""
        self._live.remove()

    def turn(self, followers: Mapping[str, Follower]) -> None:
        """Read what is new of these journals."""
        self._followers = followers
        started = [one.definitions.process.get("start_ns") or 0 for one in followers.values()]
        if time.time() - max(started, default=time.time_ns()) / 1e9 >= AFTER_S:
            self._read()
        slow = self._ranks.slow() if self._told_by_leader is None else self._told_by_leader
        with contextlib.suppress(OSError):  # no disk, or no folder: nobody can ask then
            self._live.write(followers.values(), slow, self._places)

    def question(self) -> list[str]:
        """What whoever leads tells all others."""
        return told.words(self._ranks.slow())

    def answer(self, question: Sequence[str]) -> bytes:
        """What is sent to the server, which said what is in its request."""
        self._told_by_leader = told.heard(question)
        now = time.time()
        if now - self._told_at < _TELL_S:
            return b""
        self._told_at = now
        blocks = [one for at, one in self._recent if at >= now - _RECENT_S]
        return told.packed(blocks, self._names[HERE])

    def led(self) -> None:
        """Another host leads, and is told of what was read here."""
        self._keep(time.time())
        if self._told_by_leader is None:
            self._told_by_leader = []

    def hear(self, answers: Mapping[str, bytes]) -> None:
        """Judge what is known here and what others told, by host."""
        now = time.time()
        fresh = self._keep(now)
        for host, data in answers.items():
            if not data:
                continue
            blocks, self._names[host] = told.unpacked(data)
            others = {HERE, *answers} - {host}
            for one in blocks:
                if self._hosts.get(one.rank) not in others:  # nobody speaks for another's ranks
                    self._hosts[one.rank] = host
                    fresh.append(one)
        self._told_by_leader = None
        self._ranks.add(fresh, now)
        slow = self._ranks.slow()
        for line in self._telling.due(slow, self._hosts, self._ranks.leaning, now):
            self._put(line, now)

    def _keep(self, now: float) -> list[Block]:
        """What was read since the last time."""
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

    def _put(self, line: Told, now: float) -> None:
        places = self._places
        known = {
            one.definitions.rank: one.definitions.id
            for one in self._followers.values()
            if one.definitions.rank is not None
        }
        host = line.host and (self._names.get(line.host) or words.UNNAMED)
        if line.over:
            text = words.over(line.slow, host, now)
            said: dict[str, Any] = {"summary": text}
        else:
            text = words.summary(line.slow, host, places)
            said = words.said(line.slow, text, places, known)
        kind = words.OVER if line.over else words.KIND
        self._lines.put((kind, f"{kind}: {text}", said, self._voices()))

    @property
    def _places(self) -> words.Places:
        return {p: at for one in self._followers.values() for p, at in one.holds.places.items()}

    def _voices(self) -> list[str]:
        """Who may speak: torchrun's agent, else the lowest rank."""
        known = [one.definitions for one in self._followers.values()]
        known.sort(key=lambda d: (not d.is_agent, d.rank is None, d.rank or 0))
        return [one.id for one in known if one.is_agent or one.rank is not None]
