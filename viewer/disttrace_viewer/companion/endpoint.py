"""One companion's end of the network: the server on the store's host, or a client of it.

The server requests, its clients answer; a client sends nothing else, so whatever comes out of turn
ends that connection. What all peers together may hold of memory is bounded in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from disttrace_viewer.companion.protocol import (
    MOST_WORDS,
    Address,
    Conversation,
    Garbled,
    Message,
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
MOST_OWED = 8
"""Requests that one client has not answered; it gets no more."""
MOST_CALLS = 16
"""Messages of a client without a request, between two signs of life of the server."""
UNHEARD_S = 20.0
"""A server that has requested nothing for so long does not silence its clients."""
DELAY_S, MOST_DELAY_S = 0.05, 3.0
"""By how much a host without a server speaks after the one of an order before it; at most."""


class Transport(Protocol):
    """A clock, and streams of bytes by number (``peers.py``). Nothing blocks, and nothing raises.
    ``closed`` of the endpoint follows where a call fails, and not after ``close``.
    """

    def now(self) -> float: ...
    def connect(self, address: Address) -> int: ...
    def listen(self, address: Address) -> bool: ...
    def unlisten(self) -> None: ...
    def send(self, stream: int, data: bytes) -> None: ...
    def close(self, stream: int) -> None: ...
    def peer(self, stream: int) -> str: ...


class PeerReply(NamedTuple):
    """What one host answered."""

    sender: str
    data: bytes


Done = Callable[[list[PeerReply]], None]
Requested = Callable[[int, tuple[str, ...]], None]
"""Gets the number and the words of a request."""


@dataclass(slots=True)
class _Stream:
    talk: Conversation
    peer: str
    called: bool
    """The other end called us."""
    id: str = ""
    """Of a client that has joined."""
    order: int = 0
    mute: bool = False
    """None of its processes can print."""
    owes: int = 0
    """Requests that it has not answered."""
    late: bool = False
    """It did not answer the last request in time: the next one does not wait for it."""
    calls: int = 0
    """So often it has called since our last sign of life."""


@dataclass(slots=True)
class _Round:
    number: int
    awaited: set[int]
    until: float
    done: Done
    answers: list[PeerReply]
    size: int = 0
    """Bytes of the answers."""


class Endpoint:
    """``requested`` gets requests of the server; ``wanted``: a client has waited for the limit."""

    def __init__(
        self,
        me: str,
        transport: Transport,
        requested: Requested,
        *,
        secret: bytes | None,
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self._me, self._transport, self._secret = me, transport, secret
        self._requested, self._wanted = requested, wanted
        self._job = ""
        self._order = 0
        self._places: tuple[Address, ...] = ()
        self._listen_at: tuple[Address, ...] = ()
        self._streams: dict[int, _Stream] = {}
        self._of_address: dict[str, set[int]] = {}
        self._held: dict[int, int] = {}
        """Bytes by stream of what has come of a message."""
        self.held = 0
        """Bytes of all these."""
        self._calls: set[int] = set()
        """Streams of a search."""
        self._server = -1
        self._due = self._beat_at = self._heard_at = 0.0
        self._lost_s = (LOST_BEATS + 1) * BEAT_S
        self._round: _Round | None = None
        self._number = self._taken = 0
        """Of the last round; and of our ports those that another program was seen to have."""
        self.state = IDLE
        self.word: bytes = b""
        """What the server handed over: we speak in its place."""
        self.alone_since = 0.0
        self.requested_at = 0.0
        """When the server requested something last, or we joined."""

    # -- what its owner does -------------------------------------------------------------------

    def meet(
        self, job: str, places: Sequence[Address], listen_at: Sequence[Address], order: int
    ) -> None:
        """Find the server at ``places``; ``listen_at``: the same where they are of this host."""
        self._order = order
        if self.state == IDLE:
            self._job, self._places, self._listen_at = job, tuple(places), tuple(listen_at)
            self.state = SEEKING
            self._search()

    def leave(self) -> None:
        for stream in [*self._streams]:
            self._close(stream)
        self._transport.unlisten()
        self._end_round()
        self._calls.clear()
        self._server, self.word, self.state = -1, b"", IDLE

    def request(
        self,
        words: Sequence[str],
        of: Collection[str] | None,
        most: int,
        within_s: float,
        done: Done,
    ) -> None:
        """Request something of all clients, or of those with some names; answers of ``most`` bytes.
        ``done`` gets them when all that are waited for have answered, or the time is over.
        """
        self._end_round()
        awaited = [
            stream
            for stream, one in self._streams.items()
            if one.id and (of is None or one.id in of)
        ]
        self._number += 1
        until = self._transport.now() + within_s
        waits = {stream for stream in awaited if of is not None or not self._streams[stream].late}
        self._round = _Round(self._number, waits, until, done, [])
        message = Message("ask", {"n": self._number, "of": list(words[:MOST_WORDS])})
        for stream in awaited:
            one = self._streams[stream]
            if one.owes < MOST_OWED:  # else it is stopped, and requests would pile up
                one.talk.most_body = max(most, one.talk.most_body if one.owes else 0)
                one.owes += 1
                self._send(stream, message)
        self._look_at_round()

    def answer(self, number: int, data: bytes) -> None:
        if len(data) <= MOST_STATES:
            self._send(self._server, Message("answer", {"n": number}, data))

    def call(self, *, mute: bool = False) -> None:
        """Tell the server that a process has waited for the limit; ``mute``: and none can print."""
        self._send(self._server, Message("mute" if mute else "call"))

    def hand_over(self, data: bytes) -> bool:
        """Have a client print in our place, that of the lowest order that can."""
        able = [one for one in self._streams.items() if one[1].id and not one[1].mute]
        if not able or len(data) > MOST_WORD:
            return False
        first, _ = min(able, key=lambda one: one[1].order)
        self._send(first, Message("word", {}, data))
        return True

    def speaks(self, *, mute: bool = False) -> bytes | None:
        """What we print by, where it is for us: what the server handed over, or nothing but what is
        known here. None: the server prints, or another host is to do so before us."""
        now = self._transport.now()
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
        known = [one for one in self._streams.values() if one.id]
        return [one.id for one in sorted(known, key=lambda one: (one.order, one.id))]

    # -- what the transport tells --------------------------------------------------------------

    def accepted(self, stream: int) -> None:
        peer = self._transport.peer(stream)
        alike = [self._streams[other] for other in self._of_address.get(peer, ())]
        if (
            len(self._streams) >= MOST_STREAMS
            or len(alike) >= MOST_OF_ADDRESS
            or sum(not one.talk.ready for one in alike) >= MOST_GREETING
        ):
            self._transport.close(stream)
            return
        talk = Conversation(self._job, self._secret, listens=True, now=self._transport.now())
        self._streams[stream] = _Stream(talk, peer, called=True)
        self._of_address.setdefault(peer, set()).add(stream)
        self._transport.send(stream, talk.greeting())

    def received(self, stream: int, data: bytes) -> None:
        """Bytes came; wrong ones end this connection, and nothing else."""
        one = self._streams.get(stream)
        if one is None:
            return
        was_ready = one.talk.ready
        try:
            messages, answer = one.talk.heard(data, self._transport.now())
            if answer:
                self._transport.send(stream, answer)
            if one.talk.ready and not was_ready and not one.called:
                self._greeted(stream, one)
            for message in messages:
                if self._streams.get(stream) is one:
                    self._take(stream, one, message)
        except Garbled:
            self.closed(stream, gone=False)
        if stream in self._streams:
            self._hold(stream)

    def closed(self, stream: int, *, gone: bool = True) -> None:
        """The other end is gone, or was never there; ``gone``: the transport has let go of it."""
        self._close(stream, gone=gone)
        if stream in self._calls:
            self._calls.discard(stream)
            if not self._calls and self._server < 0 and self.state != SERVER:
                self._found_none()
        elif stream == self._server:
            self._server, self.word, self.state = -1, b"", SEEKING
            self._due = self._transport.now() + TAKEN_S
        self._look_at_round()

    def tick(self) -> None:
        now = self._transport.now()
        for stream in [s for s, one in self._streams.items() if one.talk.overdue(now)]:
            self.closed(stream, gone=False)
        self._look_at_round()
        if self.state == SERVER:
            if now >= self._beat_at:
                every = max(BEAT_S, len(self._streams) / CLIENTS_PER_S)
                self._beat_at = now + every
                beat = to_bytes(Message("beat", {"ms": round(1e3 * every)}))
                for stream, one in [row for row in self._streams.items() if row[1].id]:
                    one.calls = 0
                    self._transport.send(stream, beat)
        elif self._server >= 0:
            if now - self._heard_at > self._lost_s:
                self.closed(self._server, gone=False)
        elif self.state != IDLE and now >= self._due:
            if self._calls:
                self._found_none()
            else:
                self._search()

    # -- messages ------------------------------------------------------------------------------

    def _take(self, stream: int, one: _Stream, message: Message) -> None:
        now = self._transport.now()
        if stream == self._server:
            self._from_server(message, now)
        elif not one.called or self.state != SERVER:
            raise Garbled("nothing that was requested")
        elif not one.id:
            if message.kind != "join":
                raise Garbled("no client")
            name = message.fields["id"]
            for other in [s for s, two in self._streams.items() if two.id == name]:
                self.closed(other, gone=False)  # of before the network was parted
            one.id, one.order = name, message.fields["order"]
            self._send(stream, Message("beat", {"ms": round(1e3 * BEAT_S)}))
        elif message.kind == "answer" and one.owes:
            one.owes -= 1
            self._answered(stream, one, message)
        elif message.kind in ("call", "mute"):
            one.calls, one.mute = one.calls + 1, message.kind == "mute"
            if one.calls > MOST_CALLS:
                raise Garbled("too often")
            self._wanted()
        else:
            raise Garbled("out of turn")

    def _from_server(self, message: Message, now: float) -> None:
        self._heard_at = now
        if message.kind == "beat":
            self._lost_s = LOST_BEATS * message.fields["ms"] / 1e3 + BEAT_S
        elif message.kind == "ask":
            self.requested_at = now
            self._requested(message.fields["n"], tuple(message.fields["of"]))
        elif message.kind == "word":
            self.word = message.body
            self.requested_at = now
        else:
            raise Garbled("nothing that a server says")

    def _answered(self, stream: int, one: _Stream, message: Message) -> None:
        found = self._round
        if not one.owes:
            one.talk.most_body = 0
        if found is None or message.fields["n"] != found.number:
            return  # too late
        found.size += len(message.body)
        if found.size > MOST_BYTES:
            raise Garbled("too much of all together")
        one.late = False
        found.answers.append(PeerReply(one.id, message.body))
        found.awaited.discard(stream)
        self._look_at_round()

    def _look_at_round(self) -> None:
        found = self._round
        if found is None:
            return
        found.awaited &= self._streams.keys()
        if found.awaited and self._transport.now() < found.until:
            return
        for stream in found.awaited:
            self._streams[stream].late = True
        self._end_round()

    def _end_round(self) -> None:
        found, self._round = self._round, None
        if found is not None:
            found.done(found.answers)

    def _hold(self, stream: int) -> None:
        """Reckon with what this stream holds; beyond the bound the address with most is let go."""
        size = self._streams[stream].talk.held
        self.held += size - self._held.pop(stream, 0)
        if size:
            self._held[stream] = size
        while self.held > MOST_BYTES:
            by_peer: Counter[str] = Counter()
            for other, held in self._held.items():
                by_peer[self._streams[other].peer] += held
            ((most, _),) = by_peer.most_common(1)
            for other in [s for s in self._held if self._streams[s].peer == most]:
                self.closed(other, gone=False)

    # -- the search ----------------------------------------------------------------------------

    def _search(self) -> None:
        self._due = self._transport.now() + SEEK_S
        for address in self._places:
            stream = self._transport.connect(address)
            talk = Conversation(self._job, self._secret, listens=False, now=self._transport.now())
            self._streams[stream] = _Stream(talk, address[0], called=False)
            self._calls.add(stream)
        if not self._calls:
            self._found_none()

    def _greeted(self, stream: int, one: _Stream) -> None:
        """The server answers: the first that does is ours."""
        if self._server >= 0 or self.state == SERVER:
            self._close(stream)
            return
        self._calls.discard(stream)
        self._end_calls()
        self._server, self.state = stream, CLIENT
        self._heard_at = self.requested_at = self._transport.now()
        self._lost_s = (LOST_BEATS + 1) * BEAT_S
        one.talk.most_body = MOST_WORD
        self._send(stream, Message("join", {"id": self._me, "order": self._order}))

    def _found_none(self) -> None:
        self._end_calls()
        now = self._transport.now()
        for place, address in enumerate(self._listen_at):
            if self._transport.listen(address):
                self.state, self._beat_at = SERVER, now
                return
            if place >= self._taken:  # perhaps by the server, which has come meanwhile
                self._taken, self._due = place + 1, now + TAKEN_S
                return
        self._due = now + AGAIN_S
        if self.state != ALONE:
            self.state, self.alone_since = ALONE, now

    def _end_calls(self) -> None:
        calls, self._calls = self._calls, set()
        for stream in calls:
            self._close(stream)

    def _close(self, stream: int, *, gone: bool = False) -> None:
        one = self._streams.get(stream)
        if one is None:
            return
        del self._streams[stream]
        self.held -= self._held.pop(stream, 0)
        if one.called:
            rest = self._of_address.get(one.peer, set())
            rest.discard(stream)
            if not rest:
                self._of_address.pop(one.peer, None)
        if not gone:
            self._transport.close(stream)

    def _send(self, stream: int, message: Message) -> None:
        one = self._streams.get(stream)
        if one is not None:
            self._transport.send(stream, to_bytes(message))
