"""One that joined a hub: what it asks there, and what it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disttrace_viewer.companion.channel.coordinator import PATIENCE_S
from disttrace_viewer.companion.channel.hub import Asked, Deputy, deputies_of
from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.rounds import MOST_ROUND, WHOLE_S, Done, Gathered, parted

LEADER_BEAT_S = 1.0
CONFIRM_S = 3.0
REPLY_S = WHOLE_S + 5.0
MOST_SAID = 64 << 10
"""Bytes of what a hub says but for answers that were asked for."""
Confirmed = Callable[[bool], None]


class Guest:
    """Our side of a membership; ``say`` sends a message to the hub."""

    def __init__(self, say: Callable[[Message], None], asked: Asked, now: float) -> None:
        self._say = say
        self._asked = asked
        self._number = 0
        self._gathers: dict[int, tuple[float, Done]] = {}
        self._confirms: dict[int, tuple[float, Confirmed]] = {}
        self._beaten = now
        self.heard_at = now
        self.leads = False
        self.term = 0
        self.others = 0
        """How many have joined the hub, as far as is known."""
        self.deputies: tuple[Deputy, ...] = ()

    @property
    def most_body(self) -> int:
        """Bytes that the hub's next message may carry."""
        return MOST_ROUND if self._gathers else MOST_SAID

    def heard(self, message: Message, now: float, *, known: bool) -> None:
        """Do what the hub says. Raises Garbled."""
        self.heard_at = now
        if message.kind == "beat":
            self.term = max(self.term, message.number("term"))
            self.others = message.number("of") if "of" in message.fields else 0
        elif message.kind == "ask":
            wanted = tuple(str(one)[:64] for one in message.items("wanted", 64))
            self._asked(message.number("round"), wanted, known)
        elif message.kind == "deputies":
            self.deputies = deputies_of(message)
        elif message.kind in ("gathered", "refused"):
            self._gathered(message)
        elif message.kind == "confirmed":
            _, done = self._confirms.pop(message.number("n"), (0.0, None))
            if done is not None:
                self.leads = message.flag("leads")
                done(self.leads)
        else:
            raise Garbled("nothing that a hub says")

    def _gathered(self, message: Message) -> None:
        found = None
        if message.kind == "gathered":  # garbled, the question stands, and is answered by `close`
            found = Gathered(message.number("term"), parted(message.body))
        _, done = self._gathers.pop(message.number("n"), (0.0, None))
        if done is None:
            return
        self.leads = found is not None
        if found is not None:
            self.term = max(self.term, found.term)
        done(found)

    def gather(self, wanted: Sequence[str], now: float, done: Done) -> None:
        """Have all members asked, if it is for us to lead."""
        self._number += 1
        self._gathers[self._number] = (now + REPLY_S, done)
        self._say(Message("gather", {"n": self._number, "wanted": list(wanted)}))

    def confirm(self, term: int, now: float, done: Confirmed) -> None:
        """Ask whether our term still counts."""
        self._number += 1
        self._confirms[self._number] = (now + CONFIRM_S, done)
        self._say(Message("confirm", {"n": self._number, "term": term}))

    def turn(self, now: float) -> bool:
        """Beat where we lead, and give up what is not answered; whether the hub is still there."""
        if self.leads and now - self._beaten >= LEADER_BEAT_S:
            self._beaten = now
            self._say(Message("beat"))
        for number in [n for n, (until, _) in self._gathers.items() if now > until]:
            self._gathers.pop(number)[1](None)
        for number in [n for n, (until, _) in self._confirms.items() if now > until]:
            self._confirms.pop(number)[1](False)
        return now - self.heard_at < PATIENCE_S

    def close(self) -> None:
        """The hub is gone: nobody answers any more."""
        gathers, self._gathers = self._gathers, {}
        confirms, self._confirms = self._confirms, {}
        for _, done in gathers.values():
            done(None)
        for _, confirmed in confirms.values():
            confirmed(False)
