"""The one that listens: members join it, it decides who leads, and passes questions and answers on.

It leads itself or not. A few of the members are its deputies: they listen as well, and all know
where, so that the others meet there should it go.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from disttrace_viewer.companion.channel.branch import covered
from disttrace_viewer.companion.channel.coordinator import Coordinator
from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.places import Address
from disttrace_viewer.companion.channel.rounds import (
    ANSWER_S,
    MOST_ANSWER,
    Answer,
    Done,
    Gathered,
    Rounds,
    joined,
)
from disttrace_viewer.companion.channel.tree import Tree

BEAT_S = 1.5
ASKED_S = 1.5 * BEAT_S
"""So long after a question nobody needs another sign of life: with a beat's time less than
``PATIENCE_S``."""
CHOOSE_S = 0.5
"""So long after the first one joined deputies are chosen."""
MOST_WANTED = 64
OF_ANSWER, AGAIN_S = 0.75, 0.7
"""After that part of a round's time those are asked themselves who answer by way of one that has
not answered; so long it lasts from then on.
"""
MOST_LEFT = 4_096
"""So many hosts may leave something behind."""

Asked = Callable[[int, tuple[str, ...], bool], None]
"""Called with the number of a round, the processes wanted (none: all), and whether whoever asks has
shown that it is of our job.
"""


@dataclass(frozen=True, slots=True)
class Deputy:
    """A member that listens too."""

    name: str
    address: Address


@dataclass(slots=True)
class _Guest:
    name: str
    order: int
    known: bool
    peer: str
    number: int
    deputy: bool = False
    asked_to_stand: bool = False
    address: Address | None = None


class Hub:
    """Members by the stream on which they are. ``say`` sends a message on a stream."""

    def __init__(
        self,
        me: str,
        order: int,
        say: Callable[[int, Message], None],
        asked: Asked,
        public: Callable[[bytes], bytes],
        *,
        term: int,
        place: int,
        now: float,
        former: int = 0,
        folds: bool = False,
    ) -> None:
        """``former``: how many are left of the meeting before; ``folds``: answers of several may
        come as one.
        """
        self._me = me
        self._say = say
        self._asked = asked
        self._public = public
        self._guests: dict[int, _Guest] = {}
        self._stream_of: dict[str, int] = {}
        self._stream_at: dict[int, int] = {}
        """Streams by the numbers of members."""
        self._numbers = itertools.count(1)
        self._tree = Tree()
        self._folds = folds
        self._due = self._choose_at = now
        self._beat_at = now
        self._again_at = 0.0
        self._question = Message("ask")
        self._deputies: tuple[Deputy, ...] = ()
        self.coordinator = Coordinator(term, place, now, former=former)
        self.rounds = Rounds()
        self._early: list[tuple[Sequence[str], Done]] = []
        """What was asked here before anybody may lead."""
        self.coordinator.join(me, order, now)

    @property
    def guests(self) -> int:
        """How many have joined."""
        return len(self._guests)

    # -- what is heard -----------------------------------------------------------------------

    def heard(self, stream: int, message: Message, now: float, *, known: bool, peer: str) -> bool:
        """Do what a member says. False: it is to be let go. Raises Garbled."""
        if message.kind == "left":
            answer = Answer(f"left {message.text('id')}", known, message.body)
            self.rounds.left(answer, MOST_LEFT)
            self._say(stream, Message("kept"))
            return True
        if message.kind == "join":
            return self._join(stream, message, now, known=known, peer=peer)
        guest = self._guests.get(stream)
        if guest is None:
            raise Garbled("it has not joined")
        self.coordinator.heard(guest.name, now)
        if message.kind == "answer":
            sure = known and not message.flag("doubt")
            answer = Answer(guest.name, sure, message.body, self._covers(guest, message))
            self.rounds.answered(message.number("round"), answer)
            self.rounds.turn(now)
        elif message.kind == "gather":
            self._gather(stream, guest, message, now)
        elif message.kind == "confirm":
            leads = self.coordinator.leads(guest.name, message.number("term"))
            self._say(stream, Message("confirmed", {"n": message.number("n"), "leads": leads}))
        elif message.kind == "stance":
            mute, rests = message.flag("mute"), message.flag("rests")
            self.coordinator.change(guest.name, mute=mute, rests=rests)
        elif message.kind == "stands" and guest.asked_to_stand:
            guest.address = (peer, message.number("port"))
            self._tell_deputies()
            self._tell_below(guest)
        elif message.kind == "apart":
            self._tree.free(guest.number)
        elif message.kind == "leave":
            self._guests.pop(stream)
            self._forget(guest)
            self.coordinator.leave(guest.name)
            return False
        elif message.kind != "beat":
            raise Garbled("nothing that anybody says")
        return True

    def lost(self, stream: int) -> None:
        """A stream is cut off."""
        guest = self._guests.pop(stream, None)
        if guest is not None:
            self._forget(guest)
            self.coordinator.lost(guest.name)

    def turn(self, now: float) -> None:
        """Beat, see that there are deputies, and that a round ends."""
        self.coordinator.heard(self._me, now)
        if self._early and self.coordinator.is_open(now):
            early, self._early = self._early, []
            for wanted, done in early:
                self.gather(wanted, now, done)
        if self._again_at and now >= self._again_at:
            self._ask_again(now)
        self.rounds.turn(now)
        if now >= self._due:
            self._due = now + BEAT_S
            beat = Message("beat", {"term": self.coordinator.term, "of": len(self._guests)})
            for stream in [*self._guests] if now >= self._beat_at else ():
                self._say(stream, beat)
            if now >= self._choose_at:
                self._choose()
                if self._folds:
                    self._arrange()
            else:
                self._due = min(self._due, self._choose_at)

    def close(self) -> None:
        """Nobody is asked any more."""
        self.rounds.close()
        for _, done in self._early:
            done(None)

    # -- what is asked here, of this one or of a member ----------------------------------------

    def gather(self, wanted: Sequence[str], now: float, done: Done) -> None:
        """Ask all members, if this one leads; as soon as anybody may."""
        if not self.coordinator.is_open(now):
            self._early.append((wanted, done))
            return
        term = self.coordinator.claim(self._me, now)
        if term is None:
            done(None)
            return
        others = {g.name for g in self._guests.values()}
        self._ask(wanted, others, term, now, done)

    def _gather(self, stream: int, guest: _Guest, message: Message, now: float) -> None:
        number = message.number("n")
        wanted = [str(one)[:64] for one in message.items("wanted", MOST_WANTED)]
        term = self.coordinator.claim(guest.name, now)
        if term is None:
            self._say(stream, Message("refused", {"n": number}))
            return

        def done(gathered: Gathered | None) -> None:
            if gathered is None or stream not in self._guests:
                self._say(stream, Message("refused", {"n": number}))
                return
            answers = gathered.answers
            if not guest.known:
                answers = tuple(Answer(a.sender, a.known, self._public(a.data)) for a in answers)
            fields = {"n": number, "term": gathered.term}
            self._say(stream, Message("gathered", fields, joined(answers)))

        others = {g.name for g in self._guests.values() if g is not guest} | {self._me}
        self._ask(wanted, others, term, now, done)

    def _ask(
        self, wanted: Sequence[str], others: set[str], term: int, now: float, done: Done
    ) -> None:
        self.rounds.call(wanted, others, term, now, done)
        if self._me not in others:  # all hear it: it is a sign of life as well
            self._beat_at = now + ASKED_S
        fields: dict[str, Any] = {"round": self.rounds.number, "wanted": list(wanted)}
        self._question = Message("ask", fields)
        for name in others:
            if name in self._stream_of:
                self._say(self._stream_of[name], self._question)
        self._again_at = 0.0 if wanted else now + OF_ANSWER * ANSWER_S
        if self._me in others:
            self._asked(self.rounds.number, tuple(wanted), True)
        self.rounds.turn(now)

    # -- members -----------------------------------------------------------------------------

    def _join(self, stream: int, message: Message, now: float, *, known: bool, peer: str) -> bool:
        name, order, term = message.text("id", 64), message.number("order"), message.number("term")
        if message.flag("probe"):
            self._say(stream, Message("welcome", {"term": self.coordinator.term}))
            return True
        former = self._guests.get(self._stream_of.get(name, stream))
        if name == self._me or (former and (former.peer, former.known) != (peer, known)):
            self._say(stream, Message("busy"))  # till its former stream is seen to be cut off
            return False
        if former is not None:
            self._guests.pop(self._stream_of[name])
            self._lift(former)
        guest = self._guests[stream] = _Guest(name, order, known, peer, next(self._numbers))
        self._stream_of[name] = stream
        self._stream_at[guest.number] = stream
        self._tree.add(guest.number)
        if len(self._guests) == 1:
            self._choose_at = now + CHOOSE_S
            self._due = min(self._due, self._choose_at)
        self.coordinator.join(name, order, now, term=term)
        mute, rests = message.flag("mute"), message.flag("rests")
        self.coordinator.change(name, mute=mute, rests=rests)
        welcome = {"term": self.coordinator.term, "most": MOST_ANSWER, "number": guest.number}
        self._say(stream, Message("welcome", welcome))
        self._say(stream, self._deputies_message())
        return True

    def _forget(self, guest: _Guest) -> None:
        self._stream_of.pop(guest.name, None)
        self.rounds.forget(guest.name)
        self._lift(guest)
        if guest.address is not None:
            self._tell_deputies()

    def _choose(self) -> None:
        """Of all members the first, one in the middle, the last and the second: a network that
        falls apart leaves one in most of its parts.
        """
        ordered = sorted(self._guests.items(), key=lambda item: (item[1].order, item[1].name))
        count = len(ordered)
        standing = sum(guest.deputy for _, guest in ordered)
        for place in dict.fromkeys((0, count // 2, count - 1, 1)):
            if standing < MOST_DEPUTIES and 0 <= place < count:
                stream, guest = ordered[place]
                if not guest.deputy:
                    guest.deputy = True
                    standing += 1
                    self._stand(stream, guest)
        self._tell_deputies()

    def _stand(self, stream: int, guest: _Guest) -> None:
        if not guest.asked_to_stand:
            guest.asked_to_stand = True
            self._say(stream, Message("stand"))

    def _tell_deputies(self) -> None:
        ordered = sorted(self._guests.values(), key=lambda guest: (guest.order, guest.name))
        found = tuple(Deputy(g.name, g.address) for g in ordered if g.deputy and g.address)
        if found != self._deputies:
            self._deputies = found
            message = self._deputies_message()
            for stream in [*self._guests]:
                self._say(stream, message)

    def _deputies_message(self) -> Message:
        rows = [[one.name, *one.address] for one in self._deputies]
        return Message("deputies", {"who": rows})

    # -- who answers by way of whom --------------------------------------------------------------

    def _arrange(self) -> None:
        moved = self._tree.arranged()
        for number in dict.fromkeys(self._tree.above(one) for one in moved):
            if number is not None:
                stream = self._stream_at[number]
                self._stand(stream, self._guests[stream])
                self._say(stream, Message("gather", {"levels": self._tree.level(number)}))
        for number in moved:
            self._place(number)

    def _place(self, number: int) -> None:
        """Tell a member whom to answer, as soon as that one listens."""
        above = self._tree.above(number)
        if above is not None:
            address = self._guests[self._stream_at[above]].address
            if address is not None:
                self._say(self._stream_at[number], Message("under", {"at": [*address]}))

    def _tell_below(self, guest: _Guest) -> None:
        for number in self._tree.children(guest.number):
            self._place(number)

    def _ask_again(self, now: float) -> None:
        """Ask those themselves who answer by way of somebody that does not answer."""
        self._again_at = 0.0
        if not self.rounds.asks:
            return
        freed: list[int] = []
        for name in self.rounds.missing():
            guest = self._guests.get(self._stream_of.get(name, -1))
            freed += [] if guest is None else self._tree.fail(guest.number)
        if freed:
            self.rounds.extend(now + AGAIN_S)
            self._directly(freed)
            for number in freed:
                self._say(self._stream_at[number], self._question)

    def _lift(self, guest: _Guest) -> None:
        """It is gone from here."""
        self._stream_at.pop(guest.number, None)
        self._directly(self._tree.remove(guest.number))

    def _directly(self, numbers: Iterable[int]) -> None:
        streams = [self._stream_at[number] for number in numbers]
        self.rounds.expect(self._guests[stream].name for stream in streams)
        for stream in streams:
            self._say(stream, Message("under", {"at": []}))

    def _covers(self, guest: _Guest, message: Message) -> frozenset[str]:
        """Whose answer it is besides the sender's, of those that answer by way of it."""
        if not (numbers := covered(message)):
            return frozenset()
        below = numbers & {*self._tree.below(guest.number)}
        return frozenset(self._guests[self._stream_at[number]].name for number in below)


MOST_DEPUTIES = 4


def deputies_of(message: Message) -> tuple[Deputy, ...]:
    """The deputies that a hub names. Raises Garbled."""
    found = []
    for row in message.items("who", MOST_DEPUTIES):
        if not (isinstance(row, list) and [type(v) for v in row] == [str, str, int]):
            raise Garbled("no deputy")
        name, host, port = row
        if len(name) > 64 or len(host) > 64 or not 0 < port < 1 << 16:
            raise Garbled("no deputy")
        found.append(Deputy(name, (host, port)))
    return tuple(found)
