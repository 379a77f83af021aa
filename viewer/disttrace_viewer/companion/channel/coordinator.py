"""Who leads, decided at one place: order decides, not speed, and each lead has a term of its own.

The lowest order that has joined leads. Another one does only when that one has left, cannot speak
or rests, or was seen and has then been silent for ``PATIENCE_S``. Whoever wants to speak asks first
whether its term is still the one that counts, so of each term there is at most one voice.
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_S = 4.0
FIRST_S = 1.5
"""So long the lowest order has to begin to lead, before the next ones may."""
GATHER_S = 1.5
"""So long nobody leads after a meeting began, or two became one: others are about to come."""
ALL_S = 0.8
"""The same, where all who met before have come: it is known by then who answers by way of whom."""
PLACES = 8
STEP_S, MOST_STEPS = 0.2, 10
"""The second one may after that, the third one later by a step, and so on."""


@dataclass(slots=True)
class Member:
    """One that joined; ``heard`` when it last said anything, ``lost`` whether it is cut off."""

    order: int
    heard: float
    mute: bool = False
    rests: bool = False
    lost: bool = False
    silent: bool = False
    """It led, and was not heard for too long."""


class Coordinator:
    """The members of a meeting, and the one that leads."""

    def __init__(self, term: int, place: int, now: float, *, former: int = 0) -> None:
        """``term``: the newest of former meetings; ``place``: of the one that decides among those
        that may, from 0. Where the network has fallen apart several do, so each gives terms that
        no other one gives. ``former``: how many are left of the meeting before.
        """
        self.term = term
        self._place = place
        self._former = former
        self._all_at = now + ALL_S
        self._open_at = now + GATHER_S
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self._claimed_since: float | None = None
        """When the first one wanted to lead, since nobody does."""

    def join(self, one: str, order: int, now: float, *, term: int = 0) -> None:
        """One more member, which knows of terms up to ``term``."""
        known = self.members.get(one)
        self.members[one] = Member(order, now)
        if known is not None:
            self.members[one].mute, self.members[one].rests = known.mute, known.rests
        if term > self.term:  # of another part of the job that was cut off: neither lead counts
            self.term = term
            self._open_at = now + GATHER_S
            self._former = 0
            self._vacate()
        elif self._former and len(self.members) >= self._former:
            self._open_at = min(self._open_at, self._all_at)

    def heard(self, one: str, now: float) -> None:
        """It lives."""
        if (member := self.members.get(one)) is not None:
            member.heard, member.silent = now, False

    def lost(self, one: str) -> None:
        """It is cut off: if it leads, it may be back before it is taken for gone."""
        if one == self.leader:
            self.members[one].lost = True
        else:
            self.leave(one)

    def leave(self, one: str) -> None:
        """It needs nobody any more."""
        self.members.pop(one, None)
        if one == self.leader:
            self._vacate()

    def change(self, one: str, *, mute: bool, rests: bool) -> None:
        """It cannot speak, or needs nobody for now: another one has to lead then."""
        if (member := self.members.get(one)) is None:
            return
        member.mute, member.rests = mute, rests
        if one == self.leader and (mute or rests):
            self._vacate()

    def is_open(self, now: float) -> bool:
        """Whether anybody may lead: those who were about to come have come."""
        return now >= self._open_at

    def claim(self, one: str, now: float) -> int | None:
        """The term in which it leads, or None."""
        member = self.members.get(one)
        if member is None:
            return None
        self.heard(one, now)
        if member.mute or member.rests or not self.is_open(now):
            return None
        if self.leader == one:
            return self.term
        if self.leader is not None:
            leader = self.members[self.leader]
            if now - leader.heard < PATIENCE_S:
                return None
            leader.silent = True
            if leader.lost:
                del self.members[self.leader]
            self._vacate()
        able = {
            name: other
            for name, other in self.members.items()
            if not (other.mute or other.rests or other.silent)
        }
        place = sum((m.order, n) < (member.order, one) for n, m in able.items())
        wait = FIRST_S + STEP_S * min(place, MOST_STEPS) if place else 0.0
        if self._claimed_since is None:
            self._claimed_since = now
        if now - self._claimed_since < wait:
            return None
        self.term += 1 + (self._place - self.term - 1) % PLACES
        self.leader = one
        return self.term

    def leads(self, one: str, term: int) -> bool:
        """Whether it may speak: nobody has led since."""
        return one == self.leader and term == self.term

    def _vacate(self) -> None:
        self.leader = self._claimed_since = None
