"""Companions that share no folder tell each other where their processes stand, while they stall.

What they say travels through the job's own TCPStore, over a connection of our own and under a
prefix of ours; in good times there is neither. One of them leads, that with the lowest rank which
answers: it calls a round, the others answer it with the states of their processes, and it alone
judges and speaks. Keys:

* ``who``: a line ``ORDER ID`` for each that joined, ``- ID`` for each that left
* ``lead``: the id of the one that leads; ``round``: how often it asked; ``beat``: it lives
* ``want``: during a round in which all is asked of some processes, their ids, one a line
* ``left``: a line ``ID`` for each that left an answer behind, for the processes on its host failed
* ``s/ID``: ``ROUND PIECES`` of the newest answer, whose pieces are in ``s/ID/NUMBER``

Whoever leaves takes its keys with it, the last one those of all, and what was left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from disttrace_viewer.companion.store_client import MOST_BYTES, StoreClient

PREFIX = "disttrace/stall/"
CONNECT_S = 2.0
PATIENCE_S = 4.0
"""Whoever leads and has not been heard of for so long does not lead any more."""
FIRST_S = 1.5
"""So long after the limit the one with the lowest rank has to begin to lead."""
ANSWER_S = 1.5
WHOLE_S = 5.0
"""So long one waits for what takes reading whole journals."""
LATE_ROUNDS = 2
MOST_PIECES = 1024
"""Of an answer; 32 MB."""
POLL_S, POLL_RESTING_S, POLL_LATER_S = 0.2, 0.8, 2.0
_LATER_S = 30.0
"""So long after the last round others are asked for less often."""
_AGAIN_S = 0.5
_MUCH_LATER = 5
"""Times as long as it took in vain to connect one lets pass before the next try."""
_BEAT_S = 1.0
_ALONE_S = 20.0
"""Without a round, a beat or a question of our own for so long, the stall is over."""
_SHARED = ("who", "lead", "round", "beat", "want", "left")

Address = tuple[str, int]


class Exchange:
    """This companion's part in it. What the store raises ends it, and it is tried again later."""

    def __init__(self, identity: str, answer: Callable[[Sequence[str]], bytes]) -> None:
        """``answer`` gives what is to be told of our processes, now; where some are named, all of
        those among them that are ours.
        """
        self._me = identity
        self._answer = answer
        self._store: StoreClient | None = None
        self._again = 0.0
        self._order = 0
        self._joined = 0.0
        self._round = self._beat = -1
        self._moved = self._polled = self._wanted = 0.0
        self._leads = self._mute = self._rests = False
        self._beaten = 0.0
        self._silent: set[str] = set()
        self._left: dict[str, bytes] = {}

    @property
    def open(self) -> bool:
        """Whether the store answers."""
        return self._store is not None

    @property
    def pause_s(self) -> float | None:
        """Until ``poll`` is due; None: there is nothing to poll."""
        if self._store is None:
            return None
        often = POLL_S if time.monotonic() - self._moved < _LATER_S or self._leads else POLL_LATER_S
        if self._rests:
            often = POLL_RESTING_S
        return max(0.0, self._polled + often - time.monotonic())

    def join(self, addresses: Sequence[Address], order: int) -> bool:
        """Be one of those who are asked, by ``order``; False: no store answers."""
        now = time.monotonic()
        self._wanted = now
        self._rests = False
        if self._store is not None:
            return True
        if now < self._again:
            return False
        for address in addresses:
            try:
                self._store = StoreClient(*address, CONNECT_S)
                self._order = order
                self._joined = self._moved = now
                self._leads = False
                self._silent.clear()
                self._append(f"{order} {self._me}\n")
                self._round, self._beat = self._counters()
                return True
            except OSError:
                self._lost()
        ended = time.monotonic()
        self._again = ended + max(_AGAIN_S, _MUCH_LATER * (ended - now))  # it may come yet
        return False

    def poll(self) -> None:
        """Answer when a round was called; say that we live where we lead."""
        if self._store is None:
            return
        now = self._polled = time.monotonic()
        try:
            if self._leads:
                if now - self._beaten >= _BEAT_S:
                    self._beaten = now
                    self._beat = self._store.add(f"{PREFIX}beat", 1)
                return
            asked, beat = self._counters()
            if (asked, beat) != (self._round, self._beat):
                self._moved = now
            elif now - max(self._moved, self._wanted) > _ALONE_S:
                self.leave()
                return
            self._beat = beat
            if asked != self._round:
                self._round = asked
                self._tell(asked)
        except OSError:
            self._lost()

    def gather(self, wanted: Sequence[str] = ()) -> list[bytes] | None:
        """What the others answer, where it is for us to lead; else None. ``wanted``: processes of
        which all is asked, and of others nothing.
        """
        if self._store is None or self._mute:
            return None
        try:
            return self._lead(wanted) if self._leads or self._takes_the_lead() else None
        except OSError:
            self._lost()
            return None

    def mute(self) -> None:
        """None of our processes can speak: somebody else has to lead."""
        self._mute = True
        try:
            if self._store is not None:
                self._append(f"{1 << 40} {self._me}\n")
        except OSError:
            self._lost()
        self._follow()

    def rest(self) -> None:
        """We need nobody's answer for now: another one may lead, and ask us."""
        self._rests = True
        self._follow()

    def _follow(self) -> None:
        self._leads = False
        try:
            if self._store is not None and self._store.get(f"{PREFIX}lead") == self._me.encode():
                self._store.delete(f"{PREFIX}lead")
        except OSError:
            self._lost()

    def leave(self) -> None:
        """The stall is over, or the job is: no key of ours stays."""
        store = self._store
        if store is None:
            return
        try:
            self._append(f"- {self._me}\n")
            self._forget(self._me)
            if store.get(f"{PREFIX}lead") == self._me.encode():
                store.delete(f"{PREFIX}lead")
            if not self._who():
                for one in self._who_left():
                    self._forget(one)
                for name in _SHARED:
                    store.delete(f"{PREFIX}{name}")
        except OSError:
            pass  # the store went, and its keys with it
        self._lost()
        self._again = 0.0
        self._mute = False

    def leave_behind(self, addresses: Sequence[Address], data: bytes) -> None:
        """Our processes failed and we go with them: what is to be told of them stays."""
        self.leave()
        one = f"{self._me}-left"
        for address in addresses:
            try:
                self._store = StoreClient(*address, CONNECT_S)
                self._put(one, 0, data)
                self._store.append(f"{PREFIX}left", f"{one}\n".encode())
                return
            except OSError:
                continue  # the store went
            finally:
                self._lost()

    # -- leading -----------------------------------------------------------------------------

    def _takes_the_lead(self) -> bool:
        assert self._store is not None
        now, me = time.monotonic(), self._me.encode()
        leads = self._store.get(f"{PREFIX}lead") or b""
        if leads and leads != me:
            if now - self._moved < PATIENCE_S:
                return False
        elif not leads:
            who = self._who()
            first = min(who, key=lambda one: (who[one], one), default=self._me)
            if first != self._me and now - max(self._joined, self._moved) < FIRST_S:
                return False
        self._leads = self._store.compare_set(f"{PREFIX}lead", leads, me) == me
        return self._leads

    def _lead(self, wanted: Sequence[str]) -> list[bytes] | None:
        store = self._store
        assert store is not None
        if store.get(f"{PREFIX}lead") != self._me.encode():
            self._leads = False  # we were held up, and another one took over
            self._moved = time.monotonic()
            return None
        began = time.monotonic()
        seldom = began - self._moved > _LATER_S
        if wanted:
            store.set(f"{PREFIX}want", "\n".join(wanted).encode())
        self._round = store.add(f"{PREFIX}round", 1)
        self._moved = began
        others = [one for one in self._who() if one != self._me]
        found: dict[str, bytes] = {}
        while True:
            for one in others:
                if one not in found and (told := self._told_by(one)) is not None:
                    found[one] = told
            waited = time.monotonic() - began
            if all(one in found or one in self._silent for one in others):
                break
            patience = WHOLE_S if wanted else ANSWER_S
            if waited > patience + (POLL_LATER_S if seldom else 0.0):
                break
            time.sleep(0.05)
        if wanted:
            store.delete(f"{PREFIX}want")
            return list(found.values())
        for one in self._who_left():
            if one not in self._left and (told := self._pieces(one)) is not None:
                self._left[one] = told
        for one in others:  # on a host with much to do an answer may be late, again and again
            if one not in found and (told := self._told_by(one, ago=LATE_ROUNDS)) is not None:
                found[one] = told
        for one in others:
            if one in found:
                self._silent.discard(one)
            elif one in self._silent:  # twice: it is gone, and cannot take its keys with it
                self._append(f"- {one}\n")
                self._forget(one)
            else:
                self._silent.add(one)
        return [*self._left.values(), *found.values()]

    def _told_by(self, one: str, *, ago: int = 0) -> bytes | None:
        """What another one answered in this round or up to so many before; None: nothing yet."""
        assert self._store is not None
        words = (self._store.get(f"{PREFIX}s/{one}") or b"").split()
        if len(words) != 2 or not self._round - ago <= int(words[0]) <= self._round:
            return None
        return self._pieces(one)

    def _pieces(self, one: str) -> bytes | None:
        assert self._store is not None
        words = (self._store.get(f"{PREFIX}s/{one}") or b"").split()
        if len(words) != 2 or int(words[1]) > MOST_PIECES:
            return None
        pieces = [self._store.get(f"{PREFIX}s/{one}/{n}") for n in range(int(words[1]))]
        return None if None in pieces else b"".join(p for p in pieces if p is not None)

    # -- what is told ------------------------------------------------------------------------

    def _tell(self, asked: int) -> None:
        store = self._store
        assert store is not None
        data = self._answer((store.get(f"{PREFIX}want") or b"").decode().split())
        self._put(self._me, asked, data)
        if self._me not in self._who():  # it was taken for gone
            self._append(f"{self._order} {self._me}\n")

    def _put(self, one: str, asked: int, data: bytes) -> None:
        store = self._store
        assert store is not None
        pieces = [data[at : at + MOST_BYTES] for at in range(0, len(data), MOST_BYTES)]
        before = (store.get(f"{PREFIX}s/{one}") or b"0 0").split()
        for number, piece in enumerate(pieces):
            store.set(f"{PREFIX}s/{one}/{number}", piece)
        store.set(f"{PREFIX}s/{one}", b"%d %d" % (asked, len(pieces)))
        for number in range(len(pieces), int(before[1])):
            store.delete(f"{PREFIX}s/{one}/{number}")

    def _who_left(self) -> list[str]:
        assert self._store is not None
        return (self._store.get(f"{PREFIX}left") or b"").decode().split()

    def _forget(self, one: str) -> None:
        assert self._store is not None
        words = (self._store.get(f"{PREFIX}s/{one}") or b"0 0").split()
        for number in range(int(words[1])):
            self._store.delete(f"{PREFIX}s/{one}/{number}")
        self._store.delete(f"{PREFIX}s/{one}")

    def _who(self) -> dict[str, int]:
        """Those who joined and have not left, with their order."""
        assert self._store is not None
        found: dict[str, int] = {}
        for line in (self._store.get(f"{PREFIX}who") or b"").decode().splitlines():
            order, _, one = line.partition(" ")
            if order == "-":
                found.pop(one, None)
            else:
                found[one] = int(order)
        return found

    def _append(self, line: str) -> None:
        assert self._store is not None
        self._store.append(f"{PREFIX}who", line.encode())

    def _counters(self) -> tuple[int, int]:
        assert self._store is not None
        return self._store.add(f"{PREFIX}round", 0), self._store.add(f"{PREFIX}beat", 0)

    def _lost(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store, self._leads = None, False
