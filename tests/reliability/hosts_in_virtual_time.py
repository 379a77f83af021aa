"""Companions of many hosts in virtual time: the product's own stations over a network of events.

Nothing sleeps and nothing is a socket; conversations, hubs, terms and rounds are those of a job.
Each host does what its companion does: from half of the limit on it is there, from the limit on it
asks every second, and who leads judges for a while, asks whether it still leads, and speaks.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from disttrace_viewer.companion.channel.places import Address
from disttrace_viewer.companion.channel.rounds import Answer, Gathered
from disttrace_viewer.companion.channel.station import ALONE, GUEST, HUB, IDLE, SEEKING, Station

LIMIT_S = 10.0
TICK_S = 0.1
DELAY_S = 0.001
HOST_BYTES, FOLDED_BYTES, EACH_BYTES = 5_000, 10_000, 380
"""What a host of eight ranks tells; what several do, and each of them more."""
JUDGE_S, JUDGE_EACH_S = 0.06, 0.0002
"""What a verdict takes, and for each host of eight ranks more, from bytes to words, with what the
folding of answers takes on the way. All as measured by ``benchmarks/viewer/live_judge.py`` on two
quiet cores.
"""
_COUNT = struct.Struct("!I")
PORTS = (22_000, 22_001, 22_002, 22_003)
JOB = "a job"


@dataclass(frozen=True, slots=True)
class Voice:
    """A verdict that was said: by whom, when, in which term (0: alone), and how many it knows."""

    host: int
    at_s: float
    term: int
    known: int
    answers: int = 0
    """Read for it, and their bytes."""
    bytes: int = 0


def told(hosts: int) -> bytes:
    """An answer that is of so many hosts."""
    size = HOST_BYTES if hosts == 1 else FOLDED_BYTES + EACH_BYTES * hosts
    return _COUNT.pack(hosts) + bytes(size)


def hosts_of(data: bytes) -> int:
    """Of how many hosts an answer is."""
    return int(_COUNT.unpack_from(data)[0]) if data else 0


def together(answers: Sequence[Answer]) -> bytes:
    """Several answers as one."""
    return told(sum(hosts_of(answer.data) for answer in answers))


@dataclass
class World:
    """The clock and the network."""

    now_s: float = 0.0
    parted: Callable[[int, int], bool] = lambda _a, _b: False
    messages: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), do))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, do = heapq.heappop(self._events)
            do()
        self.now_s = until_s


class Wire:
    """The transport of one host: streams end on another host's, or are lost on their way."""

    def __init__(self, world: World, hosts: list[Host], number: int) -> None:
        self._world = world
        self._hosts = hosts
        self._number = number
        self._streams: dict[int, tuple[int, int]] = {}
        self._next = itertools.count(1)
        self.ports: set[int] = set()

    def now(self) -> float:
        return self._world.now_s

    def connect(self, address: Address) -> int:
        stream = next(self._next)
        other = int(address[0])
        there = self._hosts[other]
        if not there.lives or self._world.parted(self._number, other):
            return stream  # nothing answers
        if address[1] not in there.wire.ports:
            self._world.after(DELAY_S, lambda: self._told_closed(stream))
            return stream
        theirs = next(there.wire._next)
        self._streams[stream] = (other, theirs)
        there.wire._streams[theirs] = (self._number, stream)
        self._world.after(DELAY_S, lambda: self._hosts[self._number].station.opened(stream))
        self._over(stream, lambda there, theirs: there.station.accepted(theirs))
        return stream

    def listen(self, address: Address) -> Address | None:
        port = address[1] or 30_000 + self._number
        self.ports.add(port)
        return address[0], port

    def unlisten(self) -> None:
        self.ports.clear()

    def send(self, stream: int, data: bytes) -> None:
        self._world.messages += 1
        self._over(stream, lambda there, theirs: there.station.received(theirs, data))

    def close(self, stream: int) -> None:
        self._over(stream, lambda there, theirs: there.wire._told_closed(theirs))
        self._streams.pop(stream, None)

    def peer(self, stream: int) -> str:
        return str(self._streams.get(stream, (-1, 0))[0])

    def own(self, stream: int) -> str:
        return str(self._number)

    def is_ours(self, stream: int) -> bool:
        return False

    def _over(self, stream: int, do: Callable[[Host, int], None]) -> None:
        other, theirs = self._streams.get(stream, (-1, 0))
        if other < 0:
            return
        there = self._hosts[other]

        def arrive() -> None:
            if there.lives and not self._world.parted(self._number, other):
                do(there, theirs)

        self._world.after(DELAY_S, arrive)

    def _told_closed(self, stream: int) -> None:
        self._streams.pop(stream, None)
        self._hosts[self._number].station.closed(stream)


class Host:
    """A companion: what it does of a verdict is here in three lines, the rest is its station."""

    def __init__(self, world: World, hosts: list[Host], number: int, voices: list[Voice]) -> None:
        self.number = number
        self.lives = True
        self.answers = True
        self.wire = Wire(world, hosts, number)
        self.station = Station(
            f"host {number}", self.wire, self._asked, bytes, secret=None, together=together
        )
        self.led: set[int] = set()
        self._world = world
        self._hosts = hosts
        self._voices = voices
        self._told: tuple[int, int] | None = None

    def begin(self, after_s: float) -> None:
        """Somebody waits here since then."""
        self._world.after(after_s + LIMIT_S / 2, self._meet)
        self._world.after(after_s + LIMIT_S, self._verdict)

    def _meet(self) -> None:
        if not self.lives:
            return
        places = [("0", port) for port in PORTS]
        self.station.meet(JOB, places, places if self.number == 0 else (), 2 * self.number)
        self._tick()

    def _tick(self) -> None:
        if self.lives and self.station.state != IDLE:
            self.station.tick()
            self._world.after(TICK_S, self._tick)

    def _asked(self, number: int, wanted: tuple[str, ...], whole: bool) -> None:
        if self.answers:
            answer = b"" if wanted else told(1)
            self._world.after(0.05, lambda: self.station.answer(number, answer))

    def _verdict(self) -> None:
        if not self.lives:
            return
        if self.station.state in (GUEST, HUB):
            self.station.gather((), self._gathered)
            return
        if self.station.state == ALONE:
            self._say(0, 1)
        self._world.after(0.1 if self.station.state == SEEKING else 1.0, self._verdict)

    def _gathered(self, gathered: Gathered | None) -> None:
        if gathered is None:
            self._world.after(1.0, self._verdict)
            return
        self.led.add(gathered.term)
        known = 1 + sum(hosts_of(answer.data) for answer in gathered.answers)
        read = len(gathered.answers), sum(len(answer.data) for answer in gathered.answers)

        def confirmed(leads: bool) -> None:
            if leads:
                self._say(gathered.term, known, read)
            self._world.after(1.0, self._verdict)

        def judged() -> None:
            if self.lives:
                self.station.confirm(gathered.term, confirmed)

        self._world.after(JUDGE_S + JUDGE_EACH_S * known, judged)

    def _say(self, term: int, known: int, read: tuple[int, int] = (0, 0)) -> None:
        """A picture that is told already is not told anew, nor one with less in it."""
        if self._told is None or known > self._told[1] or (term and self._told[0] == 0):
            self._told = (term, known)
            self._voices.append(Voice(self.number, self._world.now_s, term, known, *read))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stall."""

    hosts: int
    voices: tuple[Voice, ...]
    leaders: dict[int, frozenset[int]]
    """Who led, by term and hub: of each there may be one."""
    messages: int

    def whole_s(self, hosts: int) -> float | None:
        """When a verdict was said that knows of so many."""
        return min((v.at_s for v in self.voices if v.known >= hosts), default=None)


CASES = ("normal", "leader dies", "a tenth silent", "a tenth stops", "partition")


def stall(hosts: int, case: str, seed: int = 1, until_s: float = 40.0) -> Outcome:
    """All but one host begin to wait within a tenth of a second."""
    draw = random.Random(seed)
    world, voices = World(), list[Voice]()
    all_of: list[Host] = []
    for number in range(hosts):
        all_of.append(Host(world, all_of, number, voices))
    for host in all_of:
        host.begin(draw.random() / 10)
    if case == "a tenth silent":
        for host in draw.sample(all_of[1:], max(1, hosts // 10)):
            host.answers = False
    elif case == "a tenth stops":
        for host in draw.sample(all_of[1:], max(1, hosts // 10)):
            world.after(8.0, lambda host=host: setattr(host, "lives", False))  # type: ignore[misc]
    elif case == "leader dies":
        world.after(8.0, lambda: setattr(all_of[0], "lives", False))
    elif case == "partition":
        half = hosts // 2

        def parted(one: int, other: int) -> bool:
            return 8.0 <= world.now_s < 25.0 and (one < half) != (other < half)

        world.parted = parted
    world.run(until_s)
    leaders: dict[int, set[int]] = {}
    for host in all_of:
        for term in host.led:
            leaders.setdefault(term, set()).add(host.number)
    terms = {term: frozenset(who) for term, who in sorted(leaders.items())}
    return Outcome(hosts, tuple(voices), terms, world.messages)
