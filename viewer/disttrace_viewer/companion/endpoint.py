"""One companion's end of the network: the server on the store's host, or a client of it.

The server requests, its clients answer; a client sends nothing else, so whatever comes out of turn
ends that connection. What all peers together may hold of memory is bounded in bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from disttrace_viewer.companion.protocol import (
    LENGTHS,
    MOST_HEAD,
    MOST_WORDS,
    VERSION,
    Address,
    Garbled,
    Message,
    message_of,
    to_bytes,
)
from disttrace_viewer.trace.values import dataclass

IDLE, SEEKING, CLIENT, SERVER, ALONE = "idle", "seeking", "client", "server", "alone"
SEEK_S, AGAIN_S, TAKEN_S = 2.0, 1.0, 0.2
"""So long a search may take; between two searches where none was found, or a port was taken."""
BEAT_S, CLIENTS_PER_S = 1.0, 5_000
"""Between two signs of life of the server, at least; and to so many clients in a second."""
LOST_BEATS = 3
"""After so many that did not come, and a second, the server is gone."""
MOST_BYTES = 128 << 20
"""What all peers together may hold of messages that are not whole yet, and as much of answers."""
MOST_SUMMARY, MOST_STATES, MOST_WORD = 16 << 10, 4 << 20, 16 << 20
"""Of one answer: of a host's summary, of its states; and of what a server hands over."""
MOST_STREAMS, MOST_OF_ADDRESS, MOST_GREETING = 20_000, 256, 16
"""Connections: of all, from one address, and from one address that have not greeted yet."""
MOST_CALLS = 16
"""Messages of a client without a request, between two signs of life of the server."""
UNHEARD_S = 20.0
"""A server that has requested nothing for so long does not silence its clients."""
DELAY_S, MOST_DELAY_S = 0.05, 3.0
"""By how much a host without a server speaks after the one of an order before it; at most."""
GREETING_S, MESSAGE_S = 3.0, 10.0
"""So long a greeting may take in all, and a message from its first byte to its last one."""
MOST_UNKNOWN = 1 << 10
"""Bytes of a message of one that has not greeted yet."""
PIECE = 4 << 10
"""Bytes that are taken of a connection at once: what it holds beside its message."""
MOST_WAITING = 20 << 20
"""Bytes for one that does not read them: more than the longest message."""
BACKLOG = 1024
LEAVE_S = 0.05
"""After so long those have begun that called when the server ended, and can be let go."""
GONE_MS = 8_000
"""So long the kernel tries to reach another host before its stream is closed."""
OVER = (Garbled, EOFError, OSError)
"""By what a connection ends."""

Accepted = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Network:
    """A clock, and where connections come from; tests have one without sockets."""

    def now(self) -> float:
        return time.monotonic()

    async def connect(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError."""
        return await asyncio.open_connection(*address, limit=PIECE)

    async def listen(self, address: Address, accepted: Accepted) -> asyncio.AbstractServer:
        """An empty host stands for all of ours. Raises OSError."""
        host, port = address
        return await asyncio.start_server(
            accepted, host or "0.0.0.0", port, limit=PIECE, backlog=BACKLOG
        )


class PeerStream:
    """One connection, by messages. Whatever takes too long, or is too much, closes it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        hold: Callable[[PeerStream, int], None],
    ) -> None:
        """``hold`` gets the bytes of the message that is coming, and 0 when it has come."""
        self._reader, self._writer, self._hold = reader, writer, hold
        self.peer = str((writer.get_extra_info("peername") or ("",))[0])
        self.ready = False
        """Whether both have greeted, and proved what was to be proved."""
        self.most_body = 0
        """Bytes that a message may carry from now on."""
        writer.transport.max_size = PIECE  # type: ignore[attr-defined]
        own = writer.get_extra_info("socket")
        if own is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)

    async def read(self, *kinds: str) -> Message:
        """The next message, which is of one of these kinds. Raises ``OVER``."""
        first = await self._reader.readexactly(1)
        with self.within(MESSAGE_S):
            rest = await self._reader.readexactly(LENGTHS.size - 1)
            head, body = LENGTHS.unpack(first + rest)
            if head > (MOST_HEAD if self.ready else MOST_UNKNOWN) or body > self.most_body:
                raise Garbled(f"a message of {head} and {body} bytes is too long")
            self._hold(self, head + body)
            try:
                data = await self._reader.readexactly(head + body)
            finally:
                self._hold(self, 0)
        found = message_of(data[:head], data[head:])
        if found.kind not in kinds:
            raise Garbled(f"{found.kind} out of turn")
        return found

    def write(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(to_bytes(message))
            if self._writer.transport.get_write_buffer_size() > MOST_WAITING:
                self.close()

    def close(self) -> None:
        self._writer.transport.abort()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Close it where what follows takes longer."""
        timer = asyncio.get_running_loop().call_later(seconds, self.close)
        try:
            yield
        finally:
            timer.cancel()


async def greet(stream: PeerStream, job: str, secret: bytes | None, *, listens: bool) -> None:
    """Greet, and prove what is to be proved; ``listens``: the other end called. Raises ``OVER``."""
    ours = os.urandom(16).hex()

    def proof(role: bytes, theirs: str) -> str:
        """That ``role`` has the secret, over what both have drawn; empty where there is none."""
        if secret is None:
            return ""
        drawn = (ours, theirs) if listens else (theirs, ours)
        text = b"\0".join([b"disttrace", role, *(word.encode() for word in (job, *drawn))])
        return hmac.new(secret, text, hashlib.sha256).hexdigest()

    def check(message: Message, role: bytes, theirs: str) -> None:
        proved = message.fields["proof"].encode()
        if not hmac.compare_digest(proved, proof(role, theirs).encode()):
            raise Garbled("a companion with another secret")

    with stream.within(GREETING_S):
        if listens:
            own = {"v": VERSION, "drawn": ours, "secret": secret is not None}
            stream.write(Message("disttrace", own))
            hello = await stream.read("hello")
            if hello.fields["job"] != job:
                raise Garbled("a companion of another job")
            check(hello, b"caller", hello.fields["drawn"])
            stream.write(Message("welcome", {"proof": proof(b"listener", hello.fields["drawn"])}))
        else:
            there = (await stream.read("disttrace")).fields
            if there["secret"] != (secret is not None):
                raise Garbled("a companion with another secret")
            own = {"job": job, "drawn": ours, "proof": proof(b"caller", there["drawn"])}
            stream.write(Message("hello", own))
            check(await stream.read("welcome"), b"listener", there["drawn"])
    stream.ready = True


class PeerReply(NamedTuple):
    """What one host answered."""

    sender: str
    data: bytes


@dataclass(slots=True, eq=False)
class _Client:
    """One that has joined."""

    id: str
    order: int
    stream: PeerStream
    mute: bool = False
    """None of its processes can print."""
    owes: int = 0
    """Requests that it has not answered."""
    reply: asyncio.Future[bytes] | None = None
    """What it answers to the request that is under way."""
    late: bool = False
    """It did not answer the last request in time: the next one does not wait for it."""
    calls: int = 0
    """So often it has called since our last sign of life."""


class Endpoint:
    """``requested`` gets number and words of a request of the server; ``wanted``: a client has
    waited for the limit. Both are called by the loop; what is no coroutine here any thread may use
    but for ``answer``, ``call`` and ``hand_over``.
    """

    def __init__(
        self,
        me: str,
        requested: Callable[[int, tuple[str, ...]], None],
        *,
        secret: bytes | None,
        wanted: Callable[[], None] = lambda: None,
        network: Network | None = None,
    ) -> None:
        self._me, self._secret, self._network = me, secret, network or Network()
        self._requested, self._wanted = requested, wanted
        self._job, self._order = "", 0
        self._of_address: dict[str, set[PeerStream]] = {}
        self._count = 0
        """Of all that called us."""
        self._clients: dict[str, _Client] = {}
        self._held: dict[PeerStream, int] = {}
        """Bytes of the messages that are coming."""
        self.held = 0
        """Bytes of all these."""
        self._server: PeerStream | None = None
        self._number = self._size = 0
        """Of the last request, and the bytes of its answers."""
        self.state = SEEKING
        self.word: bytes = b""
        """What the server handed over: we speak in its place."""
        self.alone_since = 0.0
        self.requested_at = 0.0
        """When the server requested something last, or we joined."""

    async def run(
        self, job: str, places: Sequence[Address], listen_at: Sequence[Address], order: int
    ) -> None:
        """Be a client of the server at ``places``, or the server at ``listen_at`` (the same where
        they are of this host), until it is cancelled."""
        self._job, self._order = job, order
        taken = 0
        """Of our ports those that another program was seen to have."""
        while True:
            stream = await self._search(places)
            if stream is not None:
                await self._follow(stream)
                await asyncio.sleep(TAKEN_S)
                continue
            pause_s = AGAIN_S
            for place, address in enumerate(listen_at):
                with suppress(OSError, OverflowError):
                    await self._serve(await self._network.listen(address, self._accepted))
                if place >= taken:  # perhaps by the server, which has come meanwhile
                    taken, pause_s = place + 1, TAKEN_S
                    break
            else:
                if self.state != ALONE:
                    self.state, self.alone_since = ALONE, self._network.now()
            await asyncio.sleep(pause_s)

    # -- what its owner does -------------------------------------------------------------------

    async def request(
        self, words: Sequence[str], of: Collection[str] | None, most: int, within_s: float
    ) -> list[PeerReply]:
        """What all clients answer, or those with some names, in ``most`` bytes each, in time."""
        asked = [one for one in self._clients.values() if of is None or one.id in of]
        self._number, self._size = self._number + 1, 0
        message = Message("ask", {"n": self._number, "of": list(words[:MOST_WORDS])})
        replies = []
        for one in asked:
            one.reply = asyncio.get_running_loop().create_future()
            if of is not None or not one.late:
                replies.append(one.reply)
            one.stream.most_body = max(most, one.stream.most_body if one.owes else 0)
            one.owes += 1
            one.stream.write(message)
        if replies:
            await asyncio.wait(replies, timeout=within_s)
        found = []
        for one in asked:
            reply, one.reply = one.reply, None
            one.late = reply is None or not reply.done()
            if reply is not None and reply.done() and not reply.cancelled():
                found.append(PeerReply(one.id, reply.result()))
        return found

    def answer(self, number: int, data: bytes) -> None:
        if self._server is not None and len(data) <= MOST_STATES:
            self._server.write(Message("answer", {"n": number}, data))

    def call(self, *, mute: bool = False) -> None:
        """Tell the server that a process has waited for the limit; ``mute``: and none can print."""
        if self._server is not None:
            self._server.write(Message("mute" if mute else "call"))

    def hand_over(self, data: bytes) -> bool:
        """Have a client print in our place, that of the lowest order that can."""
        able = [one for one in self._clients.values() if not one.mute]
        if not able or len(data) > MOST_WORD:
            return False
        min(able, key=lambda one: one.order).stream.write(Message("word", {}, data))
        return True

    def speaks(self, *, mute: bool = False) -> bytes | None:
        """What we print by, where it is for us: what the server handed over, or nothing but what is
        known here. None: the server prints, or another host is to do so before us."""
        now = self._network.now()
        if self.state == CLIENT:
            if self.word and not mute:
                return self.word
            return b"" if now - self.requested_at > UNHEARD_S else None
        if self.state == ALONE:
            delay_s = min(MOST_DELAY_S, DELAY_S * self._order)
            return b"" if now - self.alone_since >= delay_s else None
        return None if self.state == SEEKING else b""

    @property
    def clients(self) -> list[str]:
        known = sorted([*self._clients.values()], key=lambda one: (one.order, one.id))
        return [one.id for one in known]

    # -- a client ------------------------------------------------------------------------------

    async def _search(self, places: Sequence[Address]) -> PeerStream | None:
        """The first that greets as a server does."""
        found: list[PeerStream] = []

        async def call(address: Address) -> None:
            with suppress(*OVER, OverflowError):
                stream = PeerStream(*await self._network.connect(address), self._hold)
                try:
                    await greet(stream, self._job, self._secret, listens=False)
                    found.append(stream)
                finally:
                    if found[:1] != [stream]:
                        stream.close()

        calls = {asyncio.ensure_future(call(address)) for address in places}
        until = self._network.now() + SEEK_S
        while calls and not found and (rest := until - self._network.now()) > 0:
            _, calls = await asyncio.wait(calls, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        for one in calls:
            one.cancel()
        return found[0] if found else None

    async def _follow(self, stream: PeerStream) -> None:
        """Be the client of this server until it is lost."""
        self._server, self.state = stream, CLIENT
        self.requested_at = self._network.now()
        lost_s = (LOST_BEATS + 1) * BEAT_S
        stream.most_body = MOST_WORD
        stream.write(Message("join", {"id": self._me, "order": self._order}))
        try:
            while True:
                with stream.within(lost_s):
                    message = await stream.read("beat", "ask", "word")
                if message.kind == "beat":
                    lost_s = LOST_BEATS * message.fields["ms"] / 1e3 + BEAT_S
                    continue
                self.requested_at = self._network.now()
                if message.kind == "ask":
                    self._requested(message.fields["n"], tuple(message.fields["of"]))
                else:
                    self.word = message.body
        except OVER:
            pass
        finally:
            stream.close()
            self._server, self.word, self.state = None, b"", SEEKING

    # -- the server ----------------------------------------------------------------------------

    async def _serve(self, listener: asyncio.AbstractServer) -> None:
        self.state = SERVER
        try:
            while True:
                every = max(BEAT_S, len(self._clients) / CLIENTS_PER_S)
                for one in self._clients.values():
                    one.calls = 0
                    one.stream.write(_beat(every))
                await asyncio.sleep(every)
        finally:
            listener.close()
            await asyncio.sleep(LEAVE_S)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = PeerStream(reader, writer, self._hold)
        alike = self._of_address.setdefault(stream.peer, set())
        alike.add(stream)
        self._count += 1
        try:
            if (
                self._count <= MOST_STREAMS
                and len(alike) <= MOST_OF_ADDRESS
                and sum(not one.ready for one in alike) <= MOST_GREETING
            ):
                await greet(stream, self._job, self._secret, listens=True)
                await self._receive(stream)
        except Exception:
            pass  # whatever it was, it costs its sender
        finally:
            stream.close()
            self._count -= 1
            alike.discard(stream)
            if not alike:
                self._of_address.pop(stream.peer, None)

    async def _receive(self, stream: PeerStream) -> None:
        """Take what a client sends until it is gone."""
        joined = (await stream.read("join")).fields
        one = _Client(joined["id"], joined["order"], stream)
        if (before := self._clients.get(one.id)) is not None:
            before.stream.close()  # of before the network was parted
        self._clients[one.id] = one
        stream.write(_beat(BEAT_S))
        try:
            while True:
                message = await stream.read("answer", "call", "mute")
                if message.kind == "answer":
                    self._answered(one, message)
                    continue
                one.calls, one.mute = one.calls + 1, message.kind == "mute"
                if one.calls > MOST_CALLS:
                    raise Garbled("too often")
                self._wanted()
        finally:
            if self._clients.get(one.id) is one:
                del self._clients[one.id]
            if one.reply is not None:
                one.reply.cancel()

    def _answered(self, one: _Client, message: Message) -> None:
        if not one.owes:
            raise Garbled("nothing that was requested")
        one.owes, one.late = one.owes - 1, False
        if not one.owes:
            one.stream.most_body = 0
        if one.reply is None or one.reply.done() or message.fields["n"] != self._number:
            return  # too late
        self._size += len(message.body)
        if self._size > MOST_BYTES:
            raise Garbled("too much of all together")
        one.reply.set_result(message.body)

    def _hold(self, stream: PeerStream, size: int) -> None:
        """Reckon with what this stream holds; beyond the bound the address with most is let go."""
        self.held += size - self._held.pop(stream, 0)
        if size:
            self._held[stream] = size
        while self.held > MOST_BYTES:
            by_peer: Counter[str] = Counter()
            for other, held in self._held.items():
                by_peer[other.peer] += held
            ((most, _),) = by_peer.most_common(1)
            for other in [one for one in self._held if one.peer == most]:
                self.held -= self._held.pop(other)
                other.close()


def _beat(every: float) -> Message:
    return Message("beat", {"ms": round(1e3 * every)})
