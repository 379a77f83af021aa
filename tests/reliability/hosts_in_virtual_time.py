"""Companions of many hosts in virtual time: the product's own stations over a network of events.

Nothing sleeps and nothing is a socket; conversations, requests and bounds are those of a job. Each
host does what its companion does: from half of the limit on it is there, from the limit on it looks
every second; the server requests summaries and states, judges for a while, and speaks.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from disttrace_viewer.companion import endpoint
from disttrace_viewer.companion.peers import KNOWS_S, ROUND_S
from disttrace_viewer.companion.protocol import Address, Message
from disttrace_viewer.companion.verdict import MOST_HOSTS

LIMIT_S, PATIENCE_S = 10.0, 13.0
TICK_S = 0.1
DELAY_S = 0.001
SUMMARY_BYTES, STATES_BYTES = 1_000, 16_000
"""What a host of eight ranks sends."""
JUDGE_S, SUMMARY_S = 0.9, 0.0001
"""What a verdict takes, and for each summary more, from bytes to words, as measured by
``benchmarks/viewer/live_judge.py`` on two quiet cores.
"""
PORTS = (22_000, 22_001, 22_002, 22_003)
JOB = "a job"


@dataclass(frozen=True, slots=True)
class Voice:
    """What was said: by which host, when, without a server, and of how many hosts it is."""

    host: int
    at_s: float
    alone: bool
    known: int
    bytes: int = 0
    """Read for it."""


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
        self._over(stream, lambda there, theirs: there.station.accepted(theirs))
        return stream

    def listen(self, address: Address) -> bool:
        self.ports.add(address[1])
        return True

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
    """A companion: what it does of a verdict is here in a few lines, the rest is its station."""

    def __init__(self, world: World, hosts: list[Host], number: int, voices: list[Voice]) -> None:
        self.number = number
        self.lives = True
        self.answers = True
        self.floods = False
        self.wire = Wire(world, hosts, number)
        self.station: endpoint.Endpoint = endpoint.Endpoint(
            f"host {number}", self.wire, self._requested, secret=None, wanted=self._called
        )
        self.most_held = 0
        self._world = world
        self._hosts = hosts
        self._voices = voices
        self._said: tuple[bool, int] | None = None
        self._busy = False
        self._waits_since = 0.0

    def begin(self, after_s: float) -> None:
        """A process waits here since then."""
        self._waits_since = after_s
        self._world.after(after_s + LIMIT_S / 2, self._meet)
        self._world.after(after_s + LIMIT_S, self._look)

    def _meet(self) -> None:
        if self.lives:
            places = [("0", port) for port in PORTS]
            listen_at = places if self.number == 0 else ()
            self.station.meet(JOB, places, listen_at, 2 * self.number)
            self._tick()

    def _tick(self) -> None:
        if self.lives and self.station.state != endpoint.IDLE:
            self.station.tick()
            self.most_held = max(self.most_held, self.station.held)
            if self.floods and self.station.state == endpoint.CLIENT:
                self.station._send(self.station._server, Message("answer", {"n": 1}, bytes(60_000)))
            self._world.after(TICK_S, self._tick)

    def _requested(self, number: int, words: tuple[str, ...]) -> None:
        if self.answers and not self.floods:
            size = SUMMARY_BYTES if words == ("summary",) else STATES_BYTES
            self._world.after(0.05, lambda: self.station.answer(number, bytes(size)))

    def _called(self) -> None:
        if not self._busy:
            self._verdict()

    def _look(self) -> None:
        if not self.lives:
            return
        if self.station.state == endpoint.SERVER:
            self._verdict()
        elif self.station.state != endpoint.SEEKING and self.station.speaks() is not None:
            if self._world.now_s >= self._waits_since + PATIENCE_S:
                self._say(1, 0, alone=True)
        elif (
            self.station.state == endpoint.CLIENT
            and self._world.now_s - self.station.requested_at > KNOWS_S
        ):
            self.station.call()
        self._world.after(1.0, self._look)

    def _verdict(self) -> None:
        if self._busy:
            return
        self._busy = True
        if len(self.station.clients) <= MOST_HOSTS:
            self._request_states(None, [])
            return
        self.station.request(("summary",), None, endpoint.MOST_SUMMARY, ROUND_S, self._summaries)

    def _summaries(self, found: list[endpoint.PeerReply]) -> None:
        wanted = {answer.sender for answer in found[-MOST_HOSTS:]}
        rest = [answer for answer in found if answer.sender not in wanted]
        took = SUMMARY_S * len(found)
        self._world.after(took, lambda: self._request_states(wanted, rest))

    def _request_states(self, wanted: set[str] | None, rest: list[endpoint.PeerReply]) -> None:
        def done(found: list[endpoint.PeerReply]) -> None:
            size = sum(len(answer.data) for answer in (*found, *rest))
            known = 1 + len(found) + len(rest)
            self._world.after(JUDGE_S, lambda: self._judged(known, size))

        self.station.request(("states",), wanted, endpoint.MOST_STATES, ROUND_S, done)

    def _judged(self, known: int, size: int) -> None:
        self._busy = False
        late = self._world.now_s >= self._waits_since + PATIENCE_S
        if self.lives and (late or known == len(self._hosts)):
            self._say(known, size, alone=False)

    def _say(self, known: int, size: int, *, alone: bool) -> None:
        """A picture that was told is not told anew, nor one with less in it."""
        if self._said is None or known > self._said[1] or (self._said[0] and not alone):
            self._said = (alone, known)
            self._voices.append(Voice(self.number, self._world.now_s, alone, known, size))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stall."""

    hosts: int
    voices: tuple[Voice, ...]
    messages: int
    most_held: int
    """Bytes of messages that were not whole, at the server, at most."""


CASES = (
    "normal", "server dies", "server stops", "a tenth silent", "a tenth stops", "partition",
    "one floods",
)  # fmt: skip


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
    elif case == "server stops":
        world.after(8.0, lambda: setattr(all_of[0], "lives", False))
    elif case == "server dies":

        def dies() -> None:
            for stream in [*all_of[0].wire._streams]:
                all_of[0].wire.close(stream)  # as its kernel does
            all_of[0].wire.ports.clear()
            world.after(2 * DELAY_S, lambda: setattr(all_of[0], "lives", False))

        world.after(8.0, dies)
    elif case == "one floods":
        all_of[-1].floods = True
    elif case == "partition":
        half = hosts // 2

        def parted(one: int, other: int) -> bool:
            return 8.0 <= world.now_s < 25.0 and (one < half) != (other < half)

        world.parted = parted
    world.run(until_s)
    return Outcome(hosts, tuple(voices), world.messages, all_of[0].most_held)
