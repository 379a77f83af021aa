"""The companions of a job's other hosts, as one of them sees them: found, requested, handed over.

Sockets are served by a thread (asyncio's TCP streams), which goes on while another judges; what the
server requests is answered by ``attend``, on the caller's.
"""

from __future__ import annotations

import asyncio
import queue
import resource
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent import futures
from contextlib import suppress

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


class Peers:
    """This companion's part. Nothing that others send or do is raised here."""

    def __init__(
        self,
        identity: str,
        answer: Callable[[Sequence[str]], bytes],
        *,
        called: Callable[[], object] = lambda: None,
        about: str = "",
    ) -> None:
        """``answer`` gives what is sent for a request; ``called``: on a client's host a process has
        waited for the limit. Each ``about`` has ports of its own."""
        self._about, self._me, self._answer, self._called = about, identity, answer, called
        self._secret = secret_of_job()
        self.events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        """What is to be done by ``attend``, as others have requested it."""
        self._endpoint: Endpoint | None = None
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]
        self._thread: threading.Thread
        self._again = self._used = self._answered_at = 0.0
        self.mute = self._leaving = False
        """Whether none of our processes can print; whether a server stays for its clients only."""
        self._newest = 0
        """Number of the last request."""
        self._answered: str | None = None
        """The first word of the last one that was answered."""
        self._handed_over = False

    @property
    def role(self) -> str:
        """``IDLE``, ``SEEKING``, ``CLIENT``, ``SERVER`` or ``ALONE``."""
        return IDLE if self._endpoint is None else self._endpoint.state

    @property
    def clients(self) -> list[str]:
        return [] if self._endpoint is None else self._endpoint.clients

    def attend(self, within_s: float = POLL_S) -> None:
        """Do what is requested next within that time; where nothing is, and there is no use for us
        any more, leave."""
        try:
            self.events.get(timeout=within_s)()
        except queue.Empty:
            unused_s = time.monotonic() - max(self._used, self._answered_at)
            if self._endpoint is not None and (unused_s > UNUSED_S or self._leaving):
                self.leave()

    def join(self, addresses: Sequence[Address], order: int) -> bool:
        """Meet the others; False: no store answers, so there is no place to meet."""
        now = time.monotonic()
        self._used, self._leaving = now, False
        if self._endpoint is not None:
            return True
        if now < self._again:
            return False
        found = _reached(addresses)
        if found is None:
            ended = time.monotonic()
            self._again = ended + max(_AGAIN_S, _MUCH_LATER * (ended - now))  # it may come yet
            return False
        place, store = found
        store.close()
        self._begin(place, order)
        return True

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
        if self._endpoint is None or self.role != SERVER:
            return []
        work = self._endpoint.request(words, of, most, within_s)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s + 1.0)
        except (futures.TimeoutError, futures.CancelledError):
            return []
        except RuntimeError:
            work.close()  # the loop is over
            return []

    def speaks(self) -> bytes | None:
        return b"" if self._endpoint is None else self._endpoint.speaks(mute=self.mute)

    def call(self) -> None:
        """Report to the server that a process has waited for the limit here, unless it knows it."""
        endpoint, mute = self._endpoint, self.mute
        if endpoint is None or endpoint.state != CLIENT:
            return
        if mute or time.monotonic() - endpoint.requested_at > KNOWS_S:
            self._call(lambda: endpoint.call(mute=mute))

    def be_mute(self) -> None:
        self.mute = True
        self.call()

    def hand_over(self, data: bytes) -> None:
        """Have a client print; with nothing: no client has to any more."""
        endpoint = self._endpoint
        if endpoint is not None and self.role == SERVER and (data or self._handed_over):
            self._handed_over = bool(data)
            self._call(lambda: endpoint.hand_over(data))

    def leave(self) -> None:
        """The stall is over here. A server stays for its clients."""
        self.mute, self._again = False, 0.0
        self._leaving = bool(self.clients)
        if not self._leaving:
            self.close()

    def close(self) -> None:
        """Nothing of ours listens any more, nothing is connected."""
        endpoint, self._endpoint = self._endpoint, None
        self._leaving = False
        if endpoint is not None:
            self._call(self._task.cancel)
            self._thread.join(5.0)

    def stay(
        self,
        addresses: Sequence[Address],
        *,
        stay_s: float,
        serve: Callable[[], None],
    ) -> None:
        """Our processes failed: stay until the server has requested their states, the job's store
        has gone, or the time is over. As the server ourselves ``serve`` the others meanwhile."""
        self.close()
        found = _reached(addresses)
        if found is None:
            return
        place, store = found
        until = time.monotonic() + stay_s
        self._begin(place, 1 << 40)
        self.mute, self._answered = True, None
        with store:
            while self._answered != "states" and time.monotonic() < until and not _is_over(store):
                self._used = time.monotonic()
                self.attend()
                if self.role == SERVER:
                    serve()
        time.sleep(0.2 if self._answered else 0.0)
        self.close()

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, place: Address, order: int) -> None:
        host, port = place
        numeric = protocol.resolved(host)
        ports = protocol.ports(port, self._about)
        here = protocol.to_listen_at(host, numeric)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # there may be thousands of hosts
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._endpoint = endpoint = Endpoint(
            self._me,
            self._receive,
            secret=self._secret,
            wanted=lambda: self.events.put(self._called),
        )
        self._answered_at, self._handed_over = time.monotonic(), False
        there = [(one, at) for at in ports for one in numeric[:2]]
        listen_at = [] if here is None else [(here, at) for at in ports]
        job = protocol.job_of(port, self._about)
        began = threading.Event()

        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.set_exception_handler(lambda *_: None)
            self._task = asyncio.ensure_future(endpoint.run(job, there, listen_at, order))
            began.set()
            await asyncio.wait([self._task])

        self._thread = threading.Thread(
            target=lambda: asyncio.run(run()), name="channel", daemon=True
        )
        self._thread.start()
        began.wait()

    def _receive(self, number: int, words: tuple[str, ...]) -> None:
        """On the thread of the sockets."""
        self._newest = number
        self.events.put(lambda: self._reply(number, words))

    def _reply(self, number: int, words: tuple[str, ...]) -> None:
        endpoint = self._endpoint
        if endpoint is not None and number == self._newest:  # else it has not waited for us
            self._answered, self._answered_at = next(iter(words), None), time.monotonic()
            data = self._answer(words)
            self._call(lambda: endpoint.answer(number, data))

    def _call(self, do: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(do)


def _reached(addresses: Sequence[Address]) -> tuple[Address, socket.socket] | None:
    """The first of these stores that is there, and a connection to it, on which nothing is sent."""
    for address in addresses:
        with suppress(OSError, OverflowError, UnicodeError):
            return address, socket.create_connection(address, CONNECT_S)
    return None


def _is_over(store: socket.socket) -> bool:
    """Whether the other end of a connection, one for all of the stay, is gone."""
    store.setblocking(False)
    try:
        return not store.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
