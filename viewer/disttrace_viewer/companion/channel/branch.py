"""The members that answer by way of this one, and the one by way of which it answers itself.

Questions come from the hub to each; only answers take this way. What has to be told as it is (whole
journals of a few) and what this one may not see goes to the hub itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.places import Address
from disttrace_viewer.companion.channel.rounds import (
    ANSWER_S,
    MOST_ANSWER,
    Answer,
    Gathered,
    Rounds,
)
from disttrace_viewer.companion.channel.tree import FAN

Together = Callable[[Sequence[Answer]], bytes]
"""Makes one answer of several."""
MOST_BELOW = 3 * FAN
MOST_RANGES = 512
OF_LEVEL_S = (0.0, 0.7, 1.0, 1.2)
"""So long one waits for those below, by how many levels these are: less than the one above does."""
assert max(OF_LEVEL_S) < ANSWER_S
Numbers = frozenset[int]


@dataclass(frozen=True, slots=True)
class _Below:
    name: str
    number: int
    known: bool


class Branch:
    """Our part of the tree. ``tell`` sends an answer upwards, with the numbers of whose it is
    besides ours, and whether somebody among these has not shown that it is of our job.
    """

    def __init__(
        self, me: str, together: Together, tell: Callable[[int, bytes, Numbers, bool], None]
    ) -> None:
        self._me = me
        self._together = together
        self._tell = tell
        self._below: dict[int, _Below] = {}
        self._numbers: dict[str, Numbers] = {}
        """By name of those below whose answer theirs was."""
        self._rounds = Rounds()
        self._level = 0

    @property
    def gathers(self) -> bool:
        """Whether anybody answers by way of us."""
        return bool(self._below)

    def fold(self, message: Message) -> None:
        """The hub wants it. Raises Garbled."""
        self._level = min(message.number("levels"), len(OF_LEVEL_S) - 1)

    def heard(self, stream: int, message: Message, now: float, *, known: bool) -> Message | None:
        """Do what one below says; what to answer. Raises Garbled."""
        if message.kind == "child":
            if not self._level or len(self._below) >= MOST_BELOW:
                return Message("busy")
            below = _Below(message.text("id", 64), message.number("number"), known)
            if below.name == self._me:
                raise Garbled("it is us")
            self._below[stream] = below
            return Message("welcome", {"term": 0})
        below = self._below[stream]
        if message.kind != "answer":
            raise Garbled("nothing that one below says")
        self._numbers[below.name] = covered(message) | {below.number}
        known = below.known and not message.flag("doubt")
        number = message.number("round")
        if number > self._rounds.number:
            self.asked(number, now)  # it has heard the question before us
        self._answered(number, Answer(below.name, known, message.body), now)
        return None

    def asked(self, number: int, now: float) -> None:
        """A question for all has come."""
        if number == self._rounds.number:
            return
        names = {self._me, *(below.name for below in self._below.values())}
        within = OF_LEVEL_S[self._level]
        done = self._done(number)
        self._rounds.call((), names, 0, now, done, number=number, within_s=within)

    def answer(self, number: int, data: bytes, now: float) -> None:
        """What we ourselves tell."""
        self._answered(number, Answer(self._me, True, data), now)

    def lost(self, stream: int) -> None:
        """One below has gone, or was never one."""
        below = self._below.pop(stream, None)
        if below is not None:
            self._rounds.forget(below.name)
            self._numbers.pop(below.name, None)

    def turn(self, now: float) -> None:
        """See whether those below have had their time."""
        self._rounds.turn(now)

    def _answered(self, number: int, answer: Answer, now: float) -> None:
        self._rounds.answered(number, answer)
        self._rounds.turn(now)

    def _done(self, number: int) -> Callable[[Gathered | None], None]:
        def done(gathered: Gathered | None) -> None:
            answers = () if gathered is None else gathered.answers
            try:
                data = self._together(answers) if answers else b""
                while len(data) > MOST_ANSWER and len(answers) > 1:  # the rest is asked by the hub
                    answers = answers[: len(answers) // 2]
                    data = self._together(answers)
            except Exception:
                return  # by what somebody below sent; the hub asks each by itself then
            if answers:
                whose = (self._numbers.get(one.sender, Numbers()) for one in answers)
                doubt = any(not one.known for one in answers)
                self._tell(number, data, Numbers().union(*whose), doubt)

        return done


class Above:
    """The stream to it, and which answers may take it."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Ours, as the hub counts its members."""
        self.stream = -1
        self.ready = False
        """It takes our answers."""
        self.known = False
        """It has shown that it is of our job."""
        self._asked = 0
        self._for_all = self._whole = False

    def asked(self, number: int, *, for_all: bool, whole: bool) -> None:
        """The hub has a question; ``whole``: it may see all that we have to tell."""
        self._asked, self._for_all, self._whole = number, for_all, whole

    def is_for_all(self, number: int) -> bool:
        """Whether that question is for everybody: answers to others are told as they are."""
        return self._for_all and number == self._asked

    def stream_for(self, number: int) -> int | None:
        """Where the answer to a question goes; None: to the hub."""
        fits = self.ready and self.is_for_all(number) and (self.known or not self._whole)
        return self.stream if fits else None

    def left(self) -> int:
        """We answer the hub itself from now on; the stream that is to be closed."""
        stream, self.stream = self.stream, -1
        self.ready = self.known = False
        return stream


def address_of(message: Message) -> Address | None:
    """Where somebody is to be found; None: nowhere. Raises Garbled."""
    at = message.items("at", 2)
    if not at:
        return None
    if [type(v) for v in at] != [str, int] or len(at[0]) > 64 or not 0 < at[1] < 1 << 16:
        raise Garbled("no address")
    return at[0], at[1]


def ranges(numbers: Numbers) -> list[list[int]]:
    """Numbers as pairs of the first and the last of a row; so many as fit in a message."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        elif len(found) < MOST_RANGES:
            found.append([number, number])
    return found


def covered(message: Message) -> Numbers:
    """Whose answer it is besides the sender's. Raises Garbled."""
    found: set[int] = set()
    for pair in message.items("for", MOST_RANGES) if "for" in message.fields else ():
        if not (isinstance(pair, list) and [type(v) for v in pair] == [int, int]):
            raise Garbled("no numbers")
        first, last = pair
        if not 0 <= first <= last < 1 << 24 or last - first > 1 << 16:
            raise Garbled("no numbers")
        found.update(range(first, last + 1))
    return Numbers(found)
