"""A round: all members are asked, and what they answer is gathered within bounds and a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from disttrace_viewer.companion.channel.message import Garbled

ANSWER_S = 1.5
WHOLE_S = 5.0
"""So long one waits for what takes reading whole journals."""
LATE_ROUNDS = 2
MOST_ANSWER = 4 << 20
MOST_ROUND = 128 << 20
"""Bytes of an answer, and of all answers together; a state has about two thousand."""
_PIECE = struct.Struct("!BBI")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member told of its processes; ``known``: it has shown that it is of our job."""

    sender: str
    known: bool
    data: bytes
    covers: frozenset[str] = frozenset()
    """Whose answer it is besides the sender's."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What all told in a round, and the term in which its caller led."""

    term: int
    answers: tuple[Answer, ...]


Done = Callable[[Gathered | None], None]


class Rounds:
    """The round that is called, and what is known of former ones."""

    def __init__(self) -> None:
        self.number = 0
        self.wanted: tuple[str, ...] = ()
        self._done: Done | None = None
        self._term = 0
        self._until = 0.0
        self._expected: set[str] = set()
        self._awaited: set[str] = set()
        """Of those the ones that have not answered, and have not been silent before."""
        self._held = 0
        """Bytes of all that is kept."""
        self._found: dict[str, Answer] = {}
        self._newest: dict[str, tuple[int, Answer]] = {}
        self._silent: set[str] = set()
        self._left: dict[str, Answer] = {}

    @property
    def asks(self) -> bool:
        """Whether a round is called and not over."""
        return self._done is not None

    def call(
        self,
        wanted: Sequence[str],
        whom: Iterable[str],
        term: int,
        now: float,
        done: Done,
        *,
        number: int | None = None,
        within_s: float = ANSWER_S,
    ) -> None:
        """Begin one (``number``: as somebody else has numbered it); one that was not over is."""
        self.close()
        self.number = self.number + 1 if number is None else number
        self.wanted = tuple(wanted)
        self._done, self._term = done, term
        self._until = now + (WHOLE_S if wanted else within_s)
        self._found = {}
        self._held = sum(len(one.data) for _, one in self._newest.values())
        self._expected = set(whom)
        self._awaited = self._expected - self._silent

    def answered(self, number: int, answer: Answer) -> None:
        """An answer came. One to an earlier round counts where all are asked for all: on a host
        with much to do it may be late every time. One that goes beyond the bounds does not.
        """
        if not self.number - LATE_ROUNDS <= number <= self.number:
            return
        if self._held + len(answer.data) > 2 * MOST_ROUND:
            return
        self._held += len(answer.data)
        if self.asks and self.wanted:
            if number == self.number and answer.sender in self._expected:
                self._found[answer.sender] = answer
        else:
            _, before = self._newest.get(answer.sender, (0, None))
            self._held -= 0 if before is None else len(before.data)
            self._newest[answer.sender] = (number, answer)
            if number == self.number:
                self._found[answer.sender] = answer
        told = {answer.sender, *answer.covers}
        self._silent -= told
        if answer.sender in self._found:
            self._awaited -= told

    def expect(self, names: Iterable[str]) -> None:
        """Wait for these again: that they were not heard was somebody else's fault."""
        again = {*names}
        self._silent -= again
        self._awaited |= again & self.missing()

    def extend(self, until: float) -> None:
        """Wait longer."""
        self._until = max(self._until, until)

    def missing(self) -> set[str]:
        """Of whom no answer to this round has come, nor one that is theirs too."""
        covers = (answer.covers for answer in self._found.values())
        return (self._expected - self._found.keys()).difference(*covers)

    def left(self, answer: Answer, most: int) -> None:
        """What a host whose processes failed leaves behind."""
        if len(self._left) < most:
            self._left[answer.sender] = answer

    def forget(self, one: str) -> None:
        """It is not a member any more."""
        self._expected.discard(one)
        self._awaited.discard(one)
        _, before = self._newest.pop(one, (0, None))
        self._held -= 0 if before is None else len(before.data)
        self._found.pop(one, None)
        self._silent.discard(one)

    def turn(self, now: float) -> None:
        """See whether the round is over."""
        if self._done is None:
            return
        if self._awaited and now < self._until:
            return
        missing = self.missing()
        if not self.wanted:
            for one in missing:
                number, answer = self._newest.get(one, (-1, None))
                if answer is not None and number >= self.number - LATE_ROUNDS:
                    self._found[one] = answer
            missing = self.missing()
            self._silent |= missing  # nobody waits for them again till they say something
        self._over()

    def close(self) -> None:
        """Nobody waits for the round any more."""
        if self._done is not None:
            done, self._done = self._done, None
            done(None)

    def _over(self) -> None:
        assert self._done is not None
        twice = frozenset[str]().union(*(one.covers for one in self._found.values()))
        told = [one for name, one in self._found.items() if name not in twice]
        if not self.wanted:
            told += self._left.values()
        answers, total = [], 0
        for answer in told:
            total += len(answer.data)
            if total <= MOST_ROUND:
                answers.append(answer)
        done, self._done = self._done, None
        self.wanted = ()
        done(Gathered(self._term, tuple(answers)))


def joined(answers: Iterable[Answer]) -> bytes:
    """Answers as one body."""
    pieces = []
    for answer in answers:
        name = answer.sender.encode()
        pieces += [_PIECE.pack(answer.known, len(name), len(answer.data)), name, answer.data]
    return b"".join(pieces)


def parted(body: bytes) -> tuple[Answer, ...]:
    """The answers of a body. Raises Garbled."""
    found, at = [], 0
    try:
        while at < len(body):
            known, name, size = _PIECE.unpack_from(body, at)
            at += _PIECE.size
            if at + name + size > len(body):
                raise Garbled("an answer that is cut")
            sender = body[at : at + name].decode()
            at += name
            found.append(Answer(sender, bool(known), body[at : at + size]))
            at += size
    except (struct.error, UnicodeDecodeError) as error:
        raise Garbled("no answers") from error
    return tuple(found)
