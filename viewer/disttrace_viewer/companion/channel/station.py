"""A companion's place in the meeting: it looks for the hub, joins it, or is it.

Phases of the search: the ports on the store's host; where that is this host, to listen there; then
the deputies of a hub that went, in their order, up to oneself. Whoever finds nobody is alone, says
what it knows by itself, and looks again later. No clock and no socket of its own: see
``transport.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from disttrace_viewer.companion.channel.branch import (
    Above,
    Branch,
    Numbers,
    Together,
    address_of,
    ranges,
)
from disttrace_viewer.companion.channel.conversation import Conversation
from disttrace_viewer.companion.channel.guest import Confirmed, Guest
from disttrace_viewer.companion.channel.hub import Asked, Deputy, Hub
from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.places import Address
from disttrace_viewer.companion.channel.rounds import MOST_ANSWER, Answer, Done
from disttrace_viewer.companion.channel.transport import Transport

IDLE, SEEKING, GUEST, HUB, ALONE = "idle", "seeking", "guest", "hub", "alone"
SEEK_S, SEEK_AGAIN_S = 2.0, 1.0
"""So long a phase may take; where a hub was there before and does not answer."""
UNREACHED_S = 0.5
"""The same, where no connection comes about: a kernel makes them, however slow its process is."""
BUSY_S, MOST_BUSY = 0.5, 12
"""A deputy that still hears the hub is asked again after so long, and so often."""
TAKEN_S, TAKEN_TIMES = 0.2, 2
LATER_S = 1.0
HEAL_S = 5.0
"""So often a deputy that took over looks whether those before it are back."""
_OF_TREE = ("stand", "gather", "under")
MOST_STREAMS = 20_000
MOST_GREETING = 16
"""From one address at a time: streams that have not greeted yet."""
MOST_UNKNOWN = 256
"""Streams from one address that have not shown that they are of our job."""


@dataclass(slots=True)
class _Stream:
    talk: Conversation
    peer: str
    called: bool
    """They called us."""
    known: bool = False
    opened: bool = False
    """The other end's kernel answered."""


class Station:
    """See above. ``asked`` is told what others want to know, for ``answer`` to tell them;
    ``public`` takes from an answer what only those may see who have shown that they are of our job.
    """

    def __init__(
        self,
        me: str,
        transport: Transport,
        asked: Asked,
        public: Callable[[bytes], bytes],
        *,
        secret: bytes | None,
        together: Together | None = None,
    ) -> None:
        """``together`` makes one answer of several; without it each tells its own."""
        self._me = me
        self._transport = transport
        self._asked = asked
        self._together = together
        self._branch: Branch | None = None
        self._above = Above()
        self._public = public
        self._secret = secret
        self._job = ""
        self._order = 0
        self._mute = self._rests = False
        self._places: tuple[Address, ...] = ()
        self._listen_at: tuple[Address, ...] = ()
        self._streams: dict[int, _Stream] = {}
        self._from: dict[str, set[int]] = {}
        """Streams of those who called, by their address."""
        self._calls: set[int] = set()
        """Streams of the phase, or of the look whether those before us are back."""
        self._phases: list[tuple[Address, ...] | None] = []
        self._phase_until = self._called_at = self._again_at = 0.0
        self._busy = 0
        self._met = self._stood = False
        self._taken = self._taken_times = 0
        """Ports of ours that are other programs', and how often the next one was not to be had."""
        self._hub_stream = -1
        self._deputies: tuple[Deputy, ...] = ()
        self._term = self._former = 0
        self._left: bytes | None = None
        self._leaving = False
        self.state = IDLE
        self.handed_over = False
        """Whether what is left behind was taken."""
        self.hub: Hub | None = None
        self.guest: Guest | None = None

    # -- what is asked of it -------------------------------------------------------------------

    def meet(
        self, job: str, places: Sequence[Address], listen_at: Sequence[Address], order: int
    ) -> None:
        """Look for the others at ``places``; ``listen_at``: the same, where they are ours."""
        self._order = order
        self._leaving = False
        if self.state != IDLE:
            return
        self._job, self._places, self._listen_at = job, tuple(places), tuple(listen_at)
        self._seek(again=False)

    def leave_behind(self, data: bytes) -> None:
        """Have this kept by the hub, in place of joining it."""
        self._left = data

    def stance(self, *, mute: bool, rests: bool) -> None:
        """Say whether our processes cannot speak, and whether we need nobody for now."""
        if (mute, rests) == (self._mute, self._rests):
            return
        self._mute, self._rests = mute, rests
        if self.hub is not None:
            self.hub.coordinator.change(self._me, mute=mute, rests=rests)
        elif self.guest is not None:
            self.guest.leads = self.guest.leads and not (mute or rests)
            self._say(self._hub_stream, Message("stance", {"mute": mute, "rests": rests}))

    def gather(self, wanted: Sequence[str], done: Done) -> None:
        """Ask all others, if it is for us to lead; ``done`` gets None where it is not."""
        if self.hub is not None:
            self.hub.gather(wanted, self._now, done)
        elif self.guest is not None:
            self.guest.gather(wanted, self._now, done)
            self._streams[self._hub_stream].talk.most_body = self.guest.most_body
        else:
            done(None)

    def confirm(self, term: int, done: Confirmed) -> None:
        """Ask whether that term still counts."""
        if self.hub is not None:
            done(self.hub.coordinator.leads(self._me, term))
        elif self.guest is not None:
            self.guest.confirm(term, self._now, done)
        else:
            done(False)

    def answer(self, number: int, data: bytes) -> None:
        """What is told in a round."""
        if len(data) > MOST_ANSWER:
            return
        if self.hub is not None:
            self.hub.rounds.answered(number, Answer(self._me, True, data))
            self.hub.rounds.turn(self._now)
        elif self._branch is not None and self._above.is_for_all(number) and self._branch.gathers:
            self._branch.answer(number, data, self._now)
        else:
            self._tell(number, data, Numbers(), doubt=False)

    def _tell(self, number: int, data: bytes, numbers: Numbers, doubt: bool) -> None:
        """Send an answer upwards: to whom the hub has put above us, else to the hub."""
        fields: dict[str, Any] = {"round": number}
        if numbers:
            fields["for"] = ranges(numbers)
        if doubt:
            fields["doubt"] = True
        above = self._above.stream_for(number)
        self._say(self._hub_stream if above is None else above, Message("answer", fields, data))

    def leave(self, *, at_once: bool) -> None:
        """We need nobody any more. A hub stays while it has members, unless ``at_once``."""
        if self.hub is not None and self.hub.guests and not at_once:
            self._leaving = True
            self.stance(mute=self._mute, rests=True)
            return
        if self.guest is not None:
            self._say(self._hub_stream, Message("leave"))
        self._close_all()
        self._transport.unlisten()
        self._met = self._stood = self._leaving = self._mute = self._rests = False
        self._deputies = ()
        self._taken = self._taken_times = 0
        self.state = IDLE

    # -- what the transport tells --------------------------------------------------------------

    def accepted(self, stream: int) -> None:
        """Somebody called."""
        peer = self._transport.peer(stream)
        alike = [self._streams[other] for other in self._from.get(peer, ())]
        greeting = sum(not one.talk.ready for one in alike)
        unknown = sum(not one.known for one in alike)
        if (
            len(self._streams) >= MOST_STREAMS
            or greeting >= MOST_GREETING
            or unknown >= MOST_UNKNOWN
        ):
            self._transport.close(stream)
            return
        talk = Conversation(self._job, self._secret, listens=True, now=self._now)
        self._streams[stream] = _Stream(talk, peer, called=True)
        self._from.setdefault(peer, set()).add(stream)
        self._transport.send(stream, talk.greeting())

    def opened(self, stream: int) -> None:
        """Whom we called is there."""
        if stream in self._streams:
            self._streams[stream].opened = True
            self._streams[stream].peer = self._transport.peer(stream)

    def received(self, stream: int, data: bytes) -> None:
        """Bytes came. Whoever sends what is wrong is let go, and nobody else is."""
        one = self._streams.get(stream)
        if one is None:
            return
        was_ready = one.talk.ready
        try:
            messages, answer = one.talk.heard(data, self._now)
            if answer:
                self._transport.send(stream, answer)
            if one.talk.ready and not was_ready:
                one.known = one.talk.proved or self._transport.is_ours(stream)
                one.talk.most_body = MOST_ANSWER if one.called else 0
                if not one.called:
                    self._greeted(stream)
            for message in messages:
                if self._streams.get(stream) is one:
                    self._heard(stream, one, message)
        except (Garbled, KeyError):
            self._drop(stream)

    def closed(self, stream: int) -> None:
        """The other one is gone, or was never there."""
        if self._taken_out(stream):
            self._lost(stream)

    def tick(self) -> None:
        """Do what is due."""
        now = self._now
        for stream in [s for s, one in self._streams.items() if one.talk.overdue(now)]:
            self._drop(stream)
        if self.state == SEEKING:
            if self._again_at and now >= self._again_at:
                self._again_at = 0.0
                self._call()
            elif not self._again_at and now >= self._seek_until:
                self._next_phase()
        elif self.state == ALONE and now >= self._again_at:
            self._seek(again=self._met)
        elif self.guest is not None:
            if self._branch is not None:
                self._branch.turn(now)
            if not self.guest.turn(now):
                self._drop(self._hub_stream)
        elif self.hub is not None:
            self.hub.turn(now)
            if self._leaving and not self.hub.guests:
                self.leave(at_once=True)
            elif self._stood and now >= self._again_at:
                self._again_at = now + HEAL_S
                self._close_calls()
                self._open_calls([*self._places, *(d.address for d in self._before_us())])

    # -- messages ------------------------------------------------------------------------------

    def _heard(self, stream: int, one: _Stream, message: Message) -> None:
        now = self._now
        if one.called:
            if self.hub is None:
                self._heard_below(stream, one, message)
            elif not self.hub.heard(stream, message, now, known=one.known, peer=one.peer):
                self._drop(stream)
        elif stream == self._hub_stream and self.guest is not None:
            if message.kind in _OF_TREE:
                self._ordered(stream, message)
                return
            self.guest.heard(message, now, known=one.known)
            if stream in self._streams and self.guest is not None:
                one.talk.most_body = self.guest.most_body
                self._term = max(self._term, self.guest.term)
                self._deputies = self.guest.deputies or self._deputies
                self._former = self.guest.others or self._former
        elif stream == self._above.stream:
            if message.kind != "welcome":
                self._drop(stream)
            self._above.ready = message.kind == "welcome"
        elif message.kind == "busy":
            self._drop(stream)
            if self.state == SEEKING and self._busy < MOST_BUSY:
                self._busy += 1
                self._close_calls()
                self._again_at = now + BUSY_S
        elif message.kind == "kept":
            self.handed_over = True
            self.leave(at_once=True)
        elif message.kind == "welcome":
            self._welcome(stream, one, message)
        else:
            raise Garbled("nothing that was asked")

    def _greeted(self, stream: int) -> None:
        if self._left is not None:
            self._streams[stream].talk.most_body = 0
            self._say(stream, Message("left", {"id": self._me}, self._left))
            return
        if stream == self._above.stream:
            self._above.known = self._streams[stream].talk.proved or self._transport.is_ours(stream)
            child = {"id": self._me, "number": self._above.number}
            self._say(stream, Message("child", child))
            return
        fields = {"id": self._me, "order": self._order, "term": self._term}
        if self.hub is not None:
            fields["probe"] = True
        self._say(stream, Message("join", {**fields, "mute": self._mute, "rests": self._rests}))

    def _welcome(self, stream: int, one: _Stream, message: Message) -> None:
        self._term = max(self._term, message.number("term"))
        if self.hub is not None:  # one before us is back
            self._end_hub()
            self._seek(again=False)
            return
        self._calls.discard(stream)
        self._close_calls()
        self._hub_stream = stream
        self.guest = Guest(lambda m: self._say(self._hub_stream, m), self._question, self._now)
        self._above = Above(message.number("number"))
        if self._together is not None:
            self._branch = Branch(self._me, self._together, self._tell)
        one.talk.most_body = self.guest.most_body
        self.state = GUEST
        self._met = True
        self._busy = 0

    # -- the tree ------------------------------------------------------------------------------

    def _ordered(self, stream: int, message: Message) -> None:
        """The hub says that we are to listen, to gather, or whom to answer."""
        if message.kind == "stand":
            at = self._transport.listen((self._transport.own(stream), 0))
            if at is not None:
                self._say(stream, Message("stands", {"port": at[1]}))
        elif message.kind == "gather" and self._branch is not None:
            self._branch.fold(message)
        elif message.kind == "under":
            self._leave_above()
            if (address := address_of(message)) is not None:
                self._above.stream = self._connect(address)

    def _heard_below(self, stream: int, one: _Stream, message: Message) -> None:
        answer: Message | None = Message("busy")
        if self._branch is not None and message.kind in ("child", "answer"):
            answer = self._branch.heard(stream, message, self._now, known=one.known)
        if answer is not None:
            self._say(stream, answer)

    def _question(self, number: int, wanted: tuple[str, ...], whole: bool) -> None:
        self._above.asked(number, for_all=not wanted, whole=whole)
        if self._branch is not None and self._branch.gathers and not wanted:
            self._branch.asked(number, self._now)
        self._asked(number, wanted, whole)

    def _leave_above(self) -> None:
        self._close(self._above.left())

    def _connect(self, address: Address) -> int:
        stream = self._transport.connect(address)
        talk = Conversation(self._job, self._secret, listens=False, now=self._now)
        self._streams[stream] = _Stream(talk, address[0], called=False)
        return stream

    def _say(self, stream: int, message: Message) -> None:
        one = self._streams.get(stream)
        if one is not None:
            self._transport.send(stream, one.talk.said(message))

    # -- the search ----------------------------------------------------------------------------

    def _before_us(self) -> list[Deputy]:
        names = [one.name for one in self._deputies]
        return list(self._deputies[: names.index(self._me)] if self._me in names else ())

    def _seek(self, *, again: bool) -> None:
        self.state = SEEKING
        self._busy = 0
        self._phases = [self._places]
        if self._listen_at:
            self._phases.append(None)
        elif again:
            for deputy in self._deputies:
                mine = deputy.name == self._me
                self._phases.append(None if mine else (deputy.address,))
                if mine:
                    break
        self._call()

    @property
    def _seek_until(self) -> float:
        if self._met and not any(self._streams[one].opened for one in self._calls):
            return min(self._phase_until, self._called_at + UNREACHED_S)
        return self._phase_until

    def _call(self) -> None:
        """Begin the phase that is first in line."""
        self._close_calls()
        if not self._phases:
            self.state = ALONE
            self._again_at = self._now + LATER_S
            return
        addresses = self._phases[0]
        if addresses is None:
            self._become_hub()
            return
        self._called_at = self._now
        self._phase_until = self._now + (SEEK_AGAIN_S if self._met else SEEK_S)
        self._open_calls(addresses)

    def _open_calls(self, addresses: Sequence[Address]) -> None:
        for address in addresses:
            self._calls.add(self._connect(address))

    def _next_phase(self) -> None:
        self._phases.pop(0)
        self._busy = 0
        self._call()

    def _become_hub(self) -> None:
        self._stood = not self._listen_at
        now = self._now
        for place, address in enumerate(self._listen_at):
            if self._transport.listen(address) is not None:
                break
            if place == self._taken:
                # Whose port it is has time to say that it is one of ours, before the next is taken.
                self._again_at = now + TAKEN_S
                self._taken_times += 1
                if self._taken_times >= TAKEN_TIMES:
                    self._taken, self._taken_times = place + 1, 0
                self._phases = [self._places, None]
                return
        else:
            if not self._stood:
                self._next_phase()
                return
        self.hub = Hub(
            self._me,
            self._order,
            self._say,
            self._asked,
            self._public,
            term=self._term,
            place=1 + len(self._before_us()) if self._stood else 0,
            now=now,
            former=self._former if self._stood else 0,
            folds=self._together is not None,
        )
        self.hub.coordinator.change(self._me, mute=self._mute, rests=self._rests)
        if self._left is not None:
            self.hub.rounds.left(Answer(f"left {self._me}", True, self._left), 1)
        self.state = HUB
        self._again_at = now + HEAL_S
        self._met = True

    # -- ends ----------------------------------------------------------------------------------

    def _taken_out(self, stream: int) -> bool:
        one = self._streams.pop(stream, None)
        if one is not None and one.called:
            alike = self._from[one.peer]
            alike.discard(stream)
            if not alike:
                del self._from[one.peer]
        return one is not None

    def _close(self, stream: int) -> bool:
        """Let go of a stream; whether it was there."""
        there = self._taken_out(stream)
        if there:
            self._transport.close(stream)
        return there

    def _drop(self, stream: int) -> None:
        if self._close(stream):
            self._lost(stream)

    def _lost(self, stream: int) -> None:
        if self.hub is not None:
            self.hub.lost(stream)
        if self._branch is not None:
            self._branch.lost(stream)
        if stream == self._above.stream:
            self._above.left()
            self._say(self._hub_stream, Message("apart"))
        if stream in self._calls:
            self._calls.discard(stream)
            if self.state == SEEKING and not self._calls and not self._again_at:
                self._phase_until = self._now  # all have refused: no need to wait
        elif stream == self._hub_stream and self.guest is not None:
            self._end_guest()
            self._seek(again=True)

    def _end_guest(self) -> None:
        guest, self.guest, self._branch = self.guest, None, None
        self._hub_stream = -1
        self._leave_above()
        if guest is not None:
            guest.close()

    def _close_calls(self) -> None:
        calls, self._calls = self._calls, set()
        for stream in calls:
            self._close(stream)

    def _end_hub(self) -> None:
        hub, self.hub = self.hub, None
        if hub is not None:
            self._term = max(self._term, hub.coordinator.term)
            hub.close()
        for stream, one in [*self._streams.items()]:
            if one.called:
                self._close(stream)

    def _close_all(self) -> None:
        self._end_guest()
        self._end_hub()
        self._close_calls()
        for stream in [*self._streams]:
            self._close(stream)
        self._again_at = 0.0

    @property
    def _now(self) -> float:
        return self._transport.now()
