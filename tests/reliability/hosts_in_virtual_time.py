"""Companions of many hosts in virtual time: the product's own stations over a network of events.

Nothing sleeps and nothing is a socket; conversations, requests and bounds are those of a job. Each
host does what its companion does: from half of the limit on it is there, from the limit on it looks
every second; the server requests summaries and states, judges for a while, and speaks.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from disttrace_viewer.companion.endpoint import (
    CLIENT,
    MOST_STATES,
    MOST_SUMMARY,
    SEEKING,
    SERVER,
    Accepted,
    Endpoint,
    Network,
)
from disttrace_viewer.companion.peers import KNOWS_S, ROUND_S
from disttrace_viewer.companion.protocol import Address
from disttrace_viewer.companion.verdict import MOST_HOSTS

LIMIT_S, PATIENCE_S = 10.0, 13.0
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
class Announcer:
    """What was said: by which host, when, without a server, and of how many hosts it is."""

    host: int
    at_s: float
    alone: bool
    known: int
    bytes: int = 0
    """Read for it."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clock(asyncio.SelectorEventLoop):
    """A loop that waits for nothing: its time goes on to whatever is due next."""

    def __init__(self) -> None:
        self.now_s = 0.0
        selector = selectors.SelectSelector()
        selector.select = self._skip  # type: ignore[method-assign]
        super().__init__(selector)

    def _skip(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        self.now_s += timeout
        return []

    def time(self) -> float:
        return self.now_s

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, and end what it leaves behind."""
        try:
            self.run_until_complete(work)
        finally:
            asyncio.runners._cancel_all_tasks(self)  # type: ignore[attr-defined]
            self.close()


class Ends:
    """One end of a connection, as a stream's writer and transport: what is written comes out at the
    other end a little later."""

    def __init__(self, of: Wire, other: Wire) -> None:
        self.of, self.there = of, other
        self.other: Ends
        self.reader, self.transport = asyncio.StreamReader(), self
        self._is_over = False
        of.ends.add(self)

    @staticmethod
    def pair(one: Wire, other: Wire) -> tuple[Streams, Streams]:
        ours, theirs = Ends(one, other), Ends(other, one)
        ours.other, theirs.other = theirs, ours
        return (ours.reader, cast(Any, ours)), (theirs.reader, cast(Any, theirs))

    def get_extra_info(self, name: str) -> Any:
        return (str(self.there.number), 0) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_over

    def write(self, data: Any) -> None:
        self.of.network.messages += self.of.lives
        self._over(lambda: self.other.takes(data))

    def takes(self, data: bytes) -> None:
        if not self._is_over:
            self.reader.feed_data(data)

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.of.ends.discard(self)
            self.reader.feed_eof()
            self._over(self.other.abort)

    def _over(self, do: Callable[[], object]) -> None:
        def arrive() -> None:
            if self.there.lives and not self.of.network.parted(self.of.number, self.there.number):
                do()

        if self.of.lives:
            asyncio.get_running_loop().call_later(DELAY_S, arrive)


class Between:
    """The network between all hosts."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.messages = 0
        self.parted: Callable[[int, int], bool] = lambda _one, _other: False
        self._begun: set[asyncio.Future[Any]] = set()

    def begin(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)


class Wire(Network):
    def __init__(self, network: Between) -> None:
        self.network, self.number, self.lives = network, len(network.wires), True
        self.ports: dict[int, Accepted] = {}
        self.ends: set[Ends] = set()
        network.wires.append(self)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def connect(self, address: Address) -> Streams:
        await asyncio.sleep(DELAY_S)
        there = self.network.wires[int(address[0])]
        if not there.lives or self.network.parted(self.number, there.number):
            await asyncio.sleep(3600)  # nothing answers
        if address[1] not in there.ports:
            raise ConnectionRefusedError
        ours, theirs = Ends.pair(self, there)
        self.network.begin(there.ports[address[1]](*theirs))
        return ours

    async def listen(self, address: Address, accepted: Accepted) -> Any:
        self.ports[address[1]] = accepted
        return self

    def close(self) -> None:
        self.ports.clear()

    def dies(self) -> None:
        self.ports.clear()
        for one in [*self.ends]:
            one.abort()
        self.lives = False


class Host:
    """A companion: what it does of a verdict is here in a few lines, the rest is its station."""

    def __init__(self, network: Between, voices: list[Announcer]) -> None:
        self.wire = Wire(network)
        self.number = self.wire.number
        self.station: Endpoint = Endpoint(
            f"host {self.number}", self._requested, secret=None, wanted=self._called,
            network=self.wire,
        )  # fmt: skip
        self._hosts = network.wires
        self._voices = voices
        self._said: tuple[bool, int] | None = None
        self._busy = False
        self._waits_since = 0.0

    async def waits(self, after_s: float) -> None:
        """A process waits here since then."""
        self._waits_since = after_s
        await asyncio.sleep(after_s + LIMIT_S / 2)
        if self.wire.lives:
            places = [("0", port) for port in PORTS]
            listen_at = places if self.number == 0 else ()
            self.wire.network.begin(self.station.run(JOB, places, listen_at, 2 * self.number))
        await asyncio.sleep(LIMIT_S / 2)
        while self.wire.lives:
            self._look()
            await asyncio.sleep(1.0)

    def _requested(self, number: int, words: tuple[str, ...]) -> None:
        data = bytes(SUMMARY_BYTES if words == ("summary",) else STATES_BYTES)
        asyncio.get_running_loop().call_later(0.05, self.station.answer, number, data)

    def _called(self) -> None:
        self.wire.network.begin(self._verdict())

    def _look(self) -> None:
        now_s = self.wire.now()
        if self.station.state == SERVER:
            self._called()
        elif self.station.state != SEEKING and self.station.speaks() is not None:
            if now_s >= self._waits_since + PATIENCE_S:
                self._say(1, 0, alone=True)
        elif self.station.state == CLIENT and now_s - self.station.requested_at > KNOWS_S:
            self.station.call()

    async def _verdict(self) -> None:
        if self._busy:
            return
        self._busy = True
        station, rest, wanted = self.station, [], None
        if len(station.clients) > MOST_HOSTS:
            summaries = await station.request(("summary",), None, MOST_SUMMARY, ROUND_S)
            wanted = {answer.sender for answer in summaries[-MOST_HOSTS:]}
            rest = [answer for answer in summaries if answer.sender not in wanted]
            await asyncio.sleep(SUMMARY_S * len(summaries))
        found = await station.request(("states",), wanted, MOST_STATES, ROUND_S)
        await asyncio.sleep(JUDGE_S)
        self._busy = False
        known = 1 + len(found) + len(rest)
        late = self.wire.now() >= self._waits_since + PATIENCE_S
        if self.wire.lives and (late or known == len(self._hosts)):
            size = sum(len(answer.data) for answer in (*found, *rest))
            self._say(known, size, alone=False)

    def _say(self, known: int, size: int, *, alone: bool) -> None:
        """A picture that was told is not told anew, nor one with less in it."""
        if self._said is None or known > self._said[1] or (self._said[0] and not alone):
            self._said = (alone, known)
            self._voices.append(Announcer(self.number, self.wire.now(), alone, known, size))


@dataclass(frozen=True, slots=True)
class Outcome:
    voices: tuple[Announcer, ...]
    messages: int


CASES = ("normal", "server dies", "server stops", "a tenth stops", "partition")


def stall(hosts: int, case: str, seed: int = 1, until_s: float = 40.0) -> Outcome:
    """All but one host begin to wait within a tenth of a second."""
    draw = random.Random(seed)
    network, voices = Between(), list[Announcer]()
    clock = Clock()
    all_of = [Host(network, voices) for _ in range(hosts)]
    if case == "partition":
        half = hosts // 2

        def parted(one: int, other: int) -> bool:
            return 8.0 <= clock.now_s < 25.0 and (one < half) != (other < half)

        network.parted = parted

    async def job() -> None:
        for host in all_of:
            network.begin(host.waits(draw.random() / 10))
        await asyncio.sleep(8.0)
        if case == "a tenth stops":
            for host in draw.sample(all_of[1:], max(1, hosts // 10)):
                host.wire.lives = False
        elif case == "server stops":
            all_of[0].wire.lives = False
        elif case == "server dies":
            all_of[0].wire.dies()
        await asyncio.sleep(until_s - 8.0)

    clock.finish(job())
    return Outcome(tuple(voices), network.messages)
