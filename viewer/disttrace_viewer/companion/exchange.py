"""Companions that share no folder tell each other where their processes stand, while they stall.

They meet at a port that follows from the job's store, on the host that serves it (``channel/``), so
nothing of ours is in that store. Nobody listens before something stalls, and who does listens until
the stall is over. Judging is done by whoever asks here; what the others want to know meanwhile is
heard by a thread, and told by ``poll``.
"""

from __future__ import annotations

import os
import queue
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from disttrace_viewer.companion.channel import places, secret
from disttrace_viewer.companion.channel.branch import Together
from disttrace_viewer.companion.channel.guest import CONFIRM_S, REPLY_S
from disttrace_viewer.companion.channel.places import Address
from disttrace_viewer.companion.channel.rounds import Answer, Gathered
from disttrace_viewer.companion.channel.sockets import Sockets
from disttrace_viewer.companion.channel.station import ALONE, GUEST, HUB, IDLE, SEEKING, Station

CONNECT_S = 2.0
SETTLE_S = 6.0
"""So long one waits at most until it is known who is there."""
UNHEARD_S = 20.0
"""Where nobody has asked us for so long, though somebody else leads, we say what we know."""
POLL_S = 1.0
ALONE_S = 20.0
"""Without a question of anybody's or our own for so long, the stall is over."""
_AGAIN_S = 0.5
_MUCH_LATER = 5
"""Times as long as it took in vain to connect one lets pass before the next try."""
T = TypeVar("T")


class Exchange:
    """This companion's part in it. Nothing that others send or do is raised here."""

    def __init__(
        self,
        identity: str,
        answer: Callable[[Sequence[str], bool], bytes],
        public: Callable[[bytes], bytes],
        *,
        about: str = "",
        together: Together | None = None,
    ) -> None:
        """``answer`` gives what is to be told of our processes, now; where some are named, all of
        those among them that are ours; and only what anybody may know, unless it is told True.
        ``public`` takes out of such an answer what is more; ``together`` makes one of several.
        What is talked ``about`` has a place of its own to meet.
        """
        self._about = about
        self._me = identity
        self._answer = answer
        self._public = public
        self._together = together
        self._secret = secret.of_job()
        self._questions: queue.SimpleQueue[tuple[int, tuple[str, ...], bool]] = queue.SimpleQueue()
        self._ear, self._mouth = os.pipe()
        for end in (self._ear, self._mouth):
            os.set_blocking(end, False)
        self._sockets: Sockets | None = None
        self._station: Station | None = None
        self._store: socket.socket | None = None
        self._again = self._wanted = self._asked_at = 0.0
        self._refused_since: float | None = None
        self._term = 0
        self._speaks_alone = self._mute = False

    @property
    def open(self) -> bool:
        """Whether there is somebody who decides who leads."""
        station = self._station
        return station is not None and station.state in (GUEST, HUB) and not self._speaks_alone

    @property
    def pause_s(self) -> float | None:
        """Until ``poll`` is due, or sooner when ``fileno`` can be read; None: nothing is."""
        return None if self._station is None else POLL_S

    def fileno(self) -> int:
        """Readable when ``poll`` has somebody to answer."""
        return self._ear

    def join(self, addresses: Sequence[Address], order: int) -> bool:
        """Be one of those who are asked, by ``order``; False: no store answers, so there is no
        place to meet.
        """
        now = time.monotonic()
        self._wanted = now
        if self._station is not None:
            self._stance(rests=False)
            alive = self._sockets is not None and self._sockets.alive
            if self._station.state != IDLE and alive:
                return True
            self.close()
        if now < self._again:
            return False
        place = self._reached(addresses)
        if place is None:
            ended = time.monotonic()
            self._again = ended + max(_AGAIN_S, _MUCH_LATER * (ended - now))  # it may come yet
            return False
        self._begin(place, order)
        self._let_go()
        return True

    def poll(self) -> None:
        """Answer who asked; leave where nobody has for long."""
        with suppress(OSError):
            os.read(self._ear, 4096)
        latest = None
        while not self._questions.empty():
            latest = self._questions.get()
        station = self._station
        if station is None:
            return
        now = time.monotonic()
        if latest is not None:
            number, wanted, whole = latest
            self._asked_at, self._refused_since, self._speaks_alone = now, None, False
            data = self._answer(wanted, whole)
            self._call(lambda: station.answer(number, data))
        elif station.state == IDLE:
            self.close()
        elif now - max(self._wanted, self._asked_at) > ALONE_S and not self._leads(station):
            self.leave()

    def gather(self, wanted: Sequence[str] = ()) -> list[Answer] | None:
        """What the others answer, where it is for us to lead; else None. ``wanted``: processes of
        which all is asked, and of others nothing.
        """
        station = self._settled()
        if station is None or station.state == SEEKING:
            return None
        if station.state not in (GUEST, HUB):
            return []
        if self._mute:
            return None
        nothing: Gathered | None = None
        gathered = self._asked(lambda done: station.gather(wanted, done), nothing, REPLY_S + 1.0)  # type: Gathered | None
        now = time.monotonic()
        if gathered is None:
            if self._refused_since is None:
                self._refused_since = now
            heard = max(self._asked_at, self._refused_since)
            self._speaks_alone = station.state in (GUEST, HUB) and now - heard > UNHEARD_S
            return [] if self._speaks_alone or station.state == ALONE else None
        self._refused_since, self._speaks_alone = None, False
        self._term = gathered.term
        return list(gathered.answers)

    def confirm(self) -> bool:
        """Whether it is still for us to speak; asked right before."""
        station = self._station
        if station is None or self._speaks_alone or station.state == ALONE:
            return True
        return self._asked(lambda done: station.confirm(self._term, done), False, CONFIRM_S + 1.0)

    def mute(self) -> None:
        """None of our processes can speak: somebody else has to lead."""
        self._mute = True
        self._stance(rests=False)

    def rest(self) -> None:
        """We need nobody's answer for now: another one may lead, and ask us."""
        self._stance(rests=True)

    def leave(self) -> None:
        """The stall is over here. Where others meet at our place they still may."""
        station = self._station
        self._mute = self._speaks_alone = False
        self._refused_since = None
        self._again = 0.0
        if station is None:
            return

        def left(done: Callable[[bool], None]) -> None:
            station.leave(at_once=False)
            done(True)

        self._asked(left, False, CONNECT_S)
        if station.state == IDLE:
            self.close()

    def close(self) -> None:
        """Nothing of ours listens any more, nothing is connected."""
        station, sockets = self._station, self._sockets
        self._station = self._sockets = None
        if station is not None and sockets is not None:
            sockets.call(lambda: station.leave(at_once=True))
            sockets.stop()
        self._let_go()

    def leave_behind(self, addresses: Sequence[Address], data: bytes, *, stay_s: float) -> None:
        """Our processes failed: stay until somebody took what is to be told of them, the job's
        store has gone, or the time is over.
        """
        self.close()
        place = self._reached(addresses)
        if place is None:
            return
        until = time.monotonic() + stay_s
        self._begin(place, 1 << 40, left=data)
        station = self._station
        while station is not None and time.monotonic() < until and not self._is_told(station):
            if self._store is None or self._has_ended(self._store):
                break
            while not self._questions.empty():
                number, _, _ = self._questions.get()
                self._call(lambda n=number: station.answer(n, b""))  # type: ignore[misc]
            time.sleep(0.1)
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _reached(self, addresses: Sequence[Address]) -> Address | None:
        """The first of these stores that is there: all hosts take the same one, or they would meet
        apart. It is not asked anything; when the connection ends, that store has gone.
        """
        for address in addresses:
            try:
                self._store = socket.create_connection(address, CONNECT_S)
                return address
            except (OSError, OverflowError, UnicodeError):
                continue
        return None

    def _let_go(self) -> None:
        """Of the store: it has answered, and that was all."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _begin(self, place: Address, order: int, left: bytes | None = None) -> None:
        host, port = place
        numeric = places.resolved(host)
        ports = places.ports(port, self._about)
        here = places.to_listen_at(host, numeric)
        _take_descriptors()
        sockets = Sockets()
        station = Station(
            self._me,
            sockets,
            self._hear,
            self._public,
            secret=self._secret,
            together=self._together,
        )
        self._sockets, self._station = sockets, station
        sockets.start(station)
        self._asked_at = time.monotonic()

        def meet(done: Callable[[bool], None]) -> None:
            if left is not None:
                station.leave_behind(left)
                station.stance(mute=True, rests=True)
            there = [(one, at) for at in ports for one in numeric[:2]]
            listen_at = [] if here is None else [(here, at) for at in ports]
            station.meet(places.job_of(port, self._about), there, listen_at, order)
            done(True)

        if self._mute:
            self._stance(rests=False)
        self._asked(meet, False, CONNECT_S)

    def _hear(self, number: int, wanted: tuple[str, ...], whole: bool) -> None:
        """On the thread of the sockets."""
        self._questions.put((number, wanted, whole))
        with suppress(OSError):
            os.write(self._mouth, b"?")

    def _settled(self) -> Station | None:
        until = time.monotonic() + SETTLE_S
        station = self._station
        while station is not None and station.state == SEEKING and time.monotonic() < until:
            time.sleep(0.02)
        return station

    def _stance(self, *, rests: bool) -> None:
        station, mute = self._station, self._mute
        if station is not None:
            self._call(lambda: station.stance(mute=mute, rests=rests))

    @staticmethod
    def _leads(station: Station) -> bool:
        if station.hub is not None:
            return station.hub.coordinator.leader is not None or station.hub.guests > 0
        return station.guest is not None and station.guest.leads

    @staticmethod
    def _is_told(station: Station) -> bool:
        hub = station.hub
        return station.handed_over or (
            hub is not None and hub.rounds.number > 0 and not hub.guests and not hub.rounds.asks
        )

    @staticmethod
    def _has_ended(store: socket.socket) -> bool:
        readable, _, _ = select.select([store], [], [], 0)
        try:
            return bool(readable) and store.recv(1) == b""
        except OSError:
            return True

    def _call(self, do: Callable[[], Any]) -> None:
        if self._sockets is not None:
            self._sockets.call(do)

    def _asked(self, ask: Callable[[Callable[[T], None]], Any], otherwise: T, within_s: float) -> T:
        """What the thread of the sockets answers, or ``otherwise`` where it takes too long."""
        box: list[T] = []
        answered = threading.Event()

        def done(value: T) -> None:
            box.append(value)
            answered.set()

        self._call(lambda: ask(done))
        answered.wait(within_s)
        return box[0] if box else otherwise


def _take_descriptors() -> None:
    """As many connections as this process may have: there may be thousands of hosts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
