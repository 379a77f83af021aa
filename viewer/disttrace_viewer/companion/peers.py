"""The companions of a job's other hosts, as one of them sees them: found, requested, handed over.

Sockets are served by a thread (asyncio's TCP streams), which goes on while another judges; what the
server requests is answered by ``poll``, on the caller's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent import futures
from contextlib import suppress
from typing import TypeVar

from disttrace_viewer.companion import protocol
from disttrace_viewer.companion.endpoint import (
    CLIENT,
    IDLE,
    MOST_STATES,
    SEEKING,
    SERVER,
    Endpoint,
    PeerReply,
)
from disttrace_viewer.companion.protocol import Address, secret_of_job

TICK_S = 0.1
BACKLOG = 1024
MOST_WAITING = 20 << 20
"""Bytes for one that does not read them: more than the longest message."""
GONE_MS = 8_000
"""So long the kernel tries to reach another host before its stream is closed."""


class _Link(asyncio.Protocol):
    def __init__(self, of: Sockets, *, called: bool) -> None:
        self.of, self.called = of, called
        self.number = next(of.numbers)
        self.transport: asyncio.Transport | None = None
        of.streams[self.number] = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.number not in self.of.streams:
            transport.abort()  # closed while it was being made
            return
        own = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
        if self.called:
            self.of.endpoint.accepted(self.number)

    def data_received(self, data: bytes) -> None:
        try:
            self.of.endpoint.received(self.number, data)
        except Exception:
            self.fail()  # whatever it was, it costs its sender

    def connection_lost(self, _why: Exception | None) -> None:
        self.fail()

    def fail(self) -> None:
        if self.number in self.of.streams:
            self.of.close(self.number)
            self.of.endpoint.closed(self.number)


class Sockets:
    """A transport as ``endpoint.py`` asks for it."""

    def __init__(self) -> None:
        self.streams: dict[int, _Link] = {}
        self.numbers = itertools.count(1)
        self.endpoint: Endpoint
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)

    def start(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._thread.start()

    def call(self, do: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(do)

    def stop(self) -> None:
        self.call(self._loop.stop)
        self._thread.join(5.0)

    # -- as endpoint.py has it -----------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def connect(self, address: Address) -> int:
        """Call an address: a number, also where that fails, which is reported as closed."""
        one = _Link(self, called=False)

        async def connected() -> None:
            try:
                await self._loop.create_connection(lambda: one, *address)
            except (OSError, OverflowError):
                one.fail()

        self._do(connected())
        return one.number

    def listen(self, address: Address) -> bool:
        """Take calls at an address of ours; an empty host stands for all of them."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        own = None
        try:
            own = socket.socket(family, socket.SOCK_STREAM)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(address)
            own.listen(BACKLOG)
        except (OSError, OverflowError):
            if own is not None:
                own.close()
            return False
        self._listener = own

        async def served() -> None:
            made = lambda: _Link(self, called=True)  # noqa: E731
            self._server = await self._loop.create_server(made, sock=own, backlog=BACKLOG)

        self._do(served())
        return True

    def unlisten(self) -> None:
        for one in (self._server, self._listener):
            if one is not None:
                one.close()
        self._server = self._listener = None

    def send(self, stream: int, data: bytes) -> None:
        one = self.streams.get(stream)
        if one is not None and one.transport is not None:
            one.transport.write(data)
            if one.transport.get_write_buffer_size() > MOST_WAITING:
                one.fail()

    def close(self, stream: int) -> None:
        one = self.streams.pop(stream, None)
        if one is not None and one.transport is not None:
            one.transport.abort()

    def peer(self, stream: int) -> str:
        one = self.streams.get(stream)
        if one is None or one.transport is None:
            return ""
        return str((one.transport.get_extra_info("peername") or ("",))[0])

    # -- the thread ----------------------------------------------------------------------------

    def _do(self, what: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        def tick() -> None:
            self._loop.call_later(TICK_S, tick)
            self.endpoint.tick()

        async def over() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._loop.call_soon(tick)
        self._loop.run_forever()
        for stream in [*self.streams]:
            self.close(stream)
        self.unlisten()
        self._loop.run_until_complete(over())
        self._loop.close()


CONNECT_S = 2.0
SETTLE_S = 6.0
"""So long it takes at most until it is known whether a server is there."""
ROUND_S, WHOLE_S = 1.5, 5.0
"""So long hosts have to answer: where they stand, and where that takes reading whole journals."""
KNOWS_S = 2.0
"""A server that requested something so short a time ago knows of the stall."""
POLL_S = 1.0
UNUSED_S = 20.0
"""Without a request, or a use of our own, for so long the stall is over."""
_AGAIN_S = 0.5
_MUCH_LATER = 5
"""Times as long as it took in vain to connect pass before the next try."""
T = TypeVar("T")


class Peers:
    """This companion's part. Nothing that others send or do is raised here."""

    def __init__(
        self, identity: str, answer: Callable[[Sequence[str]], bytes], *, about: str = ""
    ) -> None:
        """``answer`` gives what is sent for a request; each ``about`` has ports of its own."""
        self._about, self._me, self._answer = about, identity, answer
        self._secret = secret_of_job()
        self._requests: queue.SimpleQueue[tuple[int, tuple[str, ...]]] = queue.SimpleQueue()
        self._ear, self._mouth = os.pipe()
        for end in (self._ear, self._mouth):
            os.set_blocking(end, False)
        self._sockets: Sockets | None = None
        self._endpoint: Endpoint | None = None
        self._store: socket.socket | None = None
        self._again = self._used = self._answered_at = 0.0
        self.mute = self._leaving = False
        """Whether none of our processes can print; whether a server stays for its clients only."""
        self._called = threading.Event()
        self._answered: str | None = None
        """The first word of the last request."""
        self._handed_over = False

    @property
    def role(self) -> str:
        """``IDLE``, ``SEEKING``, ``CLIENT``, ``SERVER`` or ``ALONE``."""
        return IDLE if self._endpoint is None else self._endpoint.state

    @property
    def pause_s(self) -> float | None:
        """Until ``poll`` is due, or sooner when ``fileno`` can be read; None: nothing is."""
        return None if self._endpoint is None else POLL_S

    @property
    def _serving(self) -> Endpoint | None:
        """Our end, where it is the server."""
        return self._endpoint if self.role == SERVER else None

    @property
    def clients(self) -> list[str]:
        if (endpoint := self._serving) is None:
            return []
        return self._on_thread(lambda done: done(endpoint.clients), [], CONNECT_S)

    def fileno(self) -> int:
        """Readable when ``poll`` has something to do."""
        return self._ear

    def join(self, addresses: Sequence[Address], order: int) -> bool:
        """Meet the others; False: no store answers, so there is no place to meet."""
        now = time.monotonic()
        self._used, self._leaving = now, False
        if self._endpoint is not None:
            if self._endpoint.state != IDLE:
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
        """Answer the server; leave where there is no use for us any more."""
        with suppress(OSError):
            os.read(self._ear, 4096)
        latest = None
        while not self._requests.empty():
            latest = self._requests.get()
        endpoint = self._endpoint
        if endpoint is None:
            return
        now = time.monotonic()
        if latest is not None:
            number, words = latest
            self._answered, self._answered_at = next(iter(words), None), now
            data = self._answer(words)
            self._call(lambda: endpoint.answer(number, data))
        elif endpoint.state == IDLE:
            self.close()
        elif now - max(self._used, self._answered_at) > UNUSED_S or self._leaving:
            self.leave()

    def settled(self) -> str:
        """The role, once it is known whether there is a server."""
        until = time.monotonic() + SETTLE_S
        while self.role == SEEKING and time.monotonic() < until:
            time.sleep(0.02)
        return self.role

    def request(
        self,
        words: Sequence[str] = (),
        *,
        of: Collection[str] | None = None,
        most: int = MOST_STATES,
        within_s: float = ROUND_S,
    ) -> list[PeerReply]:
        """What all clients answer, or those with some names; nothing where we are no server."""
        if (endpoint := self._serving) is None:
            return []
        return self._on_thread(
            lambda done: endpoint.request(words, of, most, within_s, done), [], within_s + 1.0
        )

    def speaks(self) -> bytes | None:
        return b"" if self._endpoint is None else self._endpoint.speaks(mute=self.mute)

    def call(self) -> None:
        """Report to the server that a process has waited for the limit here, unless it knows it."""
        endpoint, mute = self._endpoint, self.mute
        if endpoint is None or endpoint.state != CLIENT:
            return
        if mute or time.monotonic() - endpoint.requested_at > KNOWS_S:
            self._call(lambda: endpoint.call(mute=mute))

    def is_called(self) -> bool:
        """Whether a client has called since the last look."""
        found = self._called.is_set()
        self._called.clear()
        return found

    def be_mute(self) -> None:
        self.mute = True
        self.call()

    def hand_over(self, data: bytes) -> bool:
        """Have a client print; with nothing: no client has to any more."""
        endpoint = self._serving
        if endpoint is None or not (data or self._handed_over):
            return False
        self._handed_over = bool(data)
        return self._on_thread(lambda done: done(endpoint.hand_over(data)), False, CONNECT_S)

    def leave(self) -> None:
        """The stall is over here. A server stays for its clients."""
        self.mute, self._again = False, 0.0
        self._leaving = bool(self.clients)
        if not self._leaving:
            self.close()

    def close(self) -> None:
        """Nothing of ours listens any more, nothing is connected."""
        endpoint, sockets = self._endpoint, self._sockets
        self._endpoint = self._sockets = None
        self._leaving = False
        if endpoint is not None and sockets is not None:
            sockets.call(endpoint.leave)
            sockets.stop()
        self._let_go()

    def stay(
        self,
        addresses: Sequence[Address],
        *,
        stay_s: float,
        serve: Callable[[], None],
    ) -> None:
        """Our processes failed: stay until the server has requested their states, the job's store
        has gone, or the time is over. As the server ourselves ``serve`` the others meanwhile.
        """
        self.close()
        place = self._reached(addresses)
        if place is None:
            return
        until = time.monotonic() + stay_s
        self._begin(place, 1 << 40)
        self.mute = True
        self._answered = None
        while self.role != IDLE and self._answered != "states" and time.monotonic() < until:
            if self._store is None or _is_over(self._store):
                break
            self._used = time.monotonic()
            self.poll()
            if self.role == SERVER:
                serve()
            time.sleep(0.1)
        time.sleep(0.2 if self._answered else 0.0)
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _reached(self, addresses: Sequence[Address]) -> Address | None:
        """The first of these stores that is there: all hosts take the same one, or they would meet
        apart. Nothing is sent to it; when the connection ends, that store has gone."""
        for address in addresses:
            try:
                self._store = socket.create_connection(address, CONNECT_S)
                return address
            except (OSError, OverflowError, UnicodeError):
                continue
        return None

    def _let_go(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _begin(self, place: Address, order: int) -> None:
        host, port = place
        numeric = protocol.resolved(host)
        ports = protocol.ports(port, self._about)
        here = protocol.to_listen_at(host, numeric)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # there may be thousands of hosts
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        sockets = Sockets()
        endpoint = Endpoint(
            self._me, sockets, self._hear, secret=self._secret, wanted=self._hear_call
        )
        self._sockets, self._endpoint = sockets, endpoint
        sockets.start(endpoint)
        self._answered_at, self._handed_over = time.monotonic(), False
        there = [(one, at) for at in ports for one in numeric[:2]]
        listen_at = [] if here is None else [(here, at) for at in ports]
        job = protocol.job_of(port, self._about)

        def meet(done: Callable[[bool], None]) -> None:
            endpoint.meet(job, there, listen_at, order)
            done(True)

        self._on_thread(meet, False, CONNECT_S)

    def _hear(self, number: int, words: tuple[str, ...]) -> None:
        """On the thread of the sockets."""
        self._requests.put((number, words))
        self._ring()

    def _hear_call(self) -> None:
        self._called.set()
        self._ring()

    def _ring(self) -> None:
        with suppress(OSError):
            os.write(self._mouth, b"!")

    def _call(self, do: Callable[[], object]) -> None:
        if self._sockets is not None:
            self._sockets.call(do)

    def _on_thread(
        self, ask: Callable[[Callable[[T], None]], object], otherwise: T, within_s: float
    ) -> T:
        """What the thread of the sockets answers, or ``otherwise`` where it takes too long."""
        found: futures.Future[T] = futures.Future()
        self._call(lambda: ask(found.set_result))
        try:
            return found.result(within_s)
        except futures.TimeoutError:
            return otherwise


def _is_over(connection: socket.socket) -> bool:
    """Whether the other end of one that nothing is sent on is gone."""
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1)
    except OSError:
        return True
