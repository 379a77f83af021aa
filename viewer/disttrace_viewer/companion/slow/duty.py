"""The companion's duty of telling slow ranks: it reads what its own ranks write, seldom enough.

All of it happens on a thread of its own, for it waits for other hosts. It takes at most ``SHARE``
of a core: where ranks write more than can be read with that, the rest of each ``WINDOW_S`` seconds
is skipped. Windows begin at the same time of day on all hosts, so what they read is the same.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from disttrace_viewer.companion.channel.places import Address, stores
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.slow import told, words
from disttrace_viewer.companion.slow.blocks import Block
from disttrace_viewer.companion.slow.follower import Follower
from disttrace_viewer.companion.slow.live_file import LiveFile
from disttrace_viewer.companion.slow.ranks import Ranks, Slow
from disttrace_viewer.companion.slow.telling import Telling, Told

SHARE = 0.02
WINDOW_S = 30.0
TURN_S = 1.0
ASK_S = 5.0
"""Between two questions to all hosts, each one message and its answer."""
AFTER_S = 35.0
"""From the start of a rank on: before that ranks are unlike each other, and nothing is read."""
_RECENT_S = 12.0
ABOUT = " slow"
HERE = "here"

Say = Callable[[str, str, dict[str, Any], Sequence[str]], bool]


class Meeting(Protocol):
    """What is asked of ``Exchange`` here."""

    def fileno(self) -> int: ...
    def join(self, addresses: Sequence[Address], order: int) -> bool: ...
    def poll(self) -> None: ...
    def gather(self, wanted: Sequence[str] = ()) -> list[Answer] | None: ...
    def close(self) -> None: ...


class Slowness:
    """The duty; ``share`` of their time from which a rank that makes others wait is told."""

    def __init__(
        self,
        directory: str,
        live: LiveFile,
        share: float,
        say: Say,
        meeting: Callable[[Callable[[Sequence[str], bool], bytes]], Meeting],
    ) -> None:
        """``live`` takes what is known for whoever asks on this host; ``say`` (kind, line, object,
        voices) has it said, or is False while something else is.
        """
        self._directory, self._live, self._say = directory, live, say
        self._new: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[tuple[str, str, dict[str, Any], list[str]]]
        self._lines = queue.SimpleQueue()
        self._next: tuple[str, str, dict[str, Any], list[str]] | None = None
        self._meeting = meeting(self._answer)
        self._ranks, self._telling = Ranks(share), Telling(share)
        self._followers: dict[str, Follower] = {}
        self._shifts: dict[str, int] = {}
        self._recent: deque[tuple[float, Block]] = deque(maxlen=told.MOST_BLOCKS)
        self._fresh: list[Block] = []
        self._hosts: dict[int, str] = {}
        self._names = {HERE: socket.gethostname()}
        self._told_by_leader: list[Slow] | None = None
        self._window, self._spent, self._behind = -1, 0.0, False
        self._asked = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow", daemon=True)
        self._failed: Exception | None = None

    # -- the companion's thread ----------------------------------------------------------------

    def follow(self, base: str) -> None:
        """A process that writes a journal."""
        self._new.put((base, True))

    def inherit(self, base: str) -> None:
        """Who ended before has nothing to do with it."""

    def ended(self, base: str) -> None:
        """The process is gone."""
        self._new.put((base, False))

    def turn(self) -> None:
        """Have said what is to be said."""
        if self._thread.ident is None:
            self._thread.start()
        if self._failed is not None:
            raise self._failed
        if self._next is None and not self._lines.empty():
            self._next = self._lines.get()
        if self._next is not None and self._say(*self._next):
            self._next = None

    def finish(self) -> None:
        """The job is over on this host."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2 * TURN_S)
        self._meeting.close()
        self._live.remove()

    # -- our own thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._turn()
                due = time.monotonic() + TURN_S
                while not self._stop.is_set() and (rest := due - time.monotonic()) > 0:
                    if select.select([self._meeting.fileno()], [], [], min(rest, TURN_S / 4))[0]:
                        self._meeting.poll()
        except Exception as error:
            self._failed = error

    def _turn(self) -> None:
        while not self._new.empty():
            base, lives = self._new.get()
            if lives and base not in self._followers:
                self._followers[base] = Follower(self._directory, base, self._shifts)
            elif not lives and (gone := self._followers.pop(base, None)) is not None:
                gone.close()
        for one in self._followers.values():
            one.define()
        started = [one.definitions.process.get("start_ns") or 0 for one in self._followers.values()]
        if time.time() - max(started, default=time.time_ns()) / 1e9 >= AFTER_S:
            self._read()
            self._judge(time.time())
        slow = self._ranks.slow() if self._told_by_leader is None else self._told_by_leader
        with contextlib.suppress(
            OSError
        ):  # a full disk, or the folder is gone: nobody can ask then
            self._live.write(self._followers.values(), slow, self._places)

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

    def _judge(self, now: float) -> None:
        fresh, self._fresh = self._fresh, []
        self._hosts.update((one.rank, HERE) for one in fresh)
        self._recent.extend((now, one) for one in fresh)
        answers = self._gathered()
        if answers is None:
            return  # another host leads, and was told of these
        for answer in answers:
            blocks, name = told.unpacked(answer.data)
            self._names[answer.sender] = name
            others = {HERE, *(one.sender for one in answers if one.sender != answer.sender)}
            for one in blocks:
                if self._hosts.get(one.rank) not in others:  # nobody speaks for another's ranks
                    self._hosts[one.rank] = answer.sender
                    fresh.append(one)
        self._told_by_leader = None
        self._ranks.add(fresh, now)
        slow = self._ranks.slow()
        for line in self._telling.due(slow, self._hosts, self._ranks.leaning, now):
            self._put(line, now)

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
        known.sort(key=lambda d: (d.role != "agent", d.rank is None, d.rank or 0))
        return [one.id for one in known if one.role == "agent" or one.rank is not None]

    # -- other hosts ---------------------------------------------------------------------------

    def _gathered(self) -> list[Answer] | None:
        """What other hosts tell; empty where there are none, or it is too soon to ask again; None
        where another one leads.
        """
        known = [one.definitions for one in self._followers.values()]
        ranks = {one.rank for one in known if one.rank is not None}
        if len(ranks) >= max((one.world_size or 0 for one in known), default=0):
            return []
        now = time.monotonic()
        if now - self._asked < ASK_S:
            return [] if self._told_by_leader is None else None
        self._asked = now
        places = stores((one.numbered, one.env, one.role == "agent") for one in known)
        if not ranks or not self._meeting.join(places, 2 * min(ranks)):
            return []
        self._meeting.poll()
        answers = self._meeting.gather(told.words(self._ranks.slow()))
        if answers is None and self._told_by_leader is None:
            self._told_by_leader = []
        return answers

    def _answer(self, question: Sequence[str], whole: bool) -> bytes:
        self._told_by_leader = told.heard(question)
        since = time.time() - _RECENT_S
        blocks = [one for at, one in self._recent if at >= since]
        return told.packed(blocks, self._names[HERE] if whole else "")
