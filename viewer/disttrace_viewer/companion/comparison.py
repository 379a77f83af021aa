"""The companion's duty of comparing hosts while the job gets on.

The one on the store's host requests of all others an excerpt of their calls and what makes ranks
late: one request and one answer every ``ASK_S`` seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from disttrace.journal.format import CALLS_SUFFIX, is_plain_name, opened_own
from disttrace.lifecycle.rendezvous_folder import place
from disttrace.recording.shown import FIRST_LINE, KEPT, Compared, Page, read, streams
from disttrace_viewer.companion import protocol, slow
from disttrace_viewer.companion.endpoint import ALONE, SEEKING, SERVER, PeerReply
from disttrace_viewer.companion.follower import Follower
from disttrace_viewer.companion.peers import WHOLE_S, Peers
from disttrace_viewer.companion.protocol import stores
from disttrace_viewer.companion.service import Task
from disttrace_viewer.companion.slow import HERE, Slowness
from disttrace_viewer.load.schema import Checker, maybe, number, numbers
from disttrace_viewer.trace.values import dataclass

MOST_STREAMS = 64
"""Of one host."""
MOST_LINES = 16_384
"""Of calls, in one answer: of more those that are longest ago are left out."""
FEWEST = 32
_EACH, _FURTHEST = 8, 64
"""Digests of each distance, and the largest distance."""
_LINE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Of one stream: ``where`` are the lines of its newest calls, of which hashes have 32 bits."""

    name: int
    newest: int
    where: Sequence[int]
    digests: Mapping[int, int]
    lines: frozenset[int]

    @property
    def first(self) -> int:
        return self.newest - len(self.where) + 1

    def places(self, numbers: Iterable[int]) -> Iterator[int]:
        return (self.where[number - self.first] for number in numbers)

    def under(self, most: int) -> Iterator[int]:
        """The numbers up to ``most`` under which the digest is known, newest first."""
        return (number for number in sorted(self.digests, reverse=True) if number <= most)

    def digest(self, number: int) -> int | None:
        """Of all calls up to one; None: it is not known."""
        return self.digests.get(number)


class Excerpts:
    """Of the processes of this host whose journals lie in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._told: dict[int, int] = {}
        """By stream the newest number of the last time."""

    def of(self, bases: Iterable[str]) -> list[Excerpt]:
        """Of each stream that of the first process that shows it."""
        found: dict[int, Page] = {}
        around = place(self._directory)
        for base in bases:
            if len(found) < MOST_STREAMS and is_plain_name(base):
                self._read(f"{around}{base}{CALLS_SUFFIX}", found)
        shown = sorted(found.items())[:MOST_STREAMS]
        room = MOST_LINES // max(1, len(shown))
        return [self._excerpt(name, page, room) for name, page in shown]

    def _read(self, path: str, found: dict[int, Page]) -> None:
        try:
            with opened_own(path, os.O_RDONLY) as fd:
                for name, at in streams(fd):
                    if name not in found:
                        found[name] = read(fd, at)
        except OSError:
            return  # it shows nothing, or has ended

    def _excerpt(self, name: int, page: Page, room: int) -> Excerpt:
        since = page.newest - self._told.get(name, 0)
        self._told[name] = page.newest
        count = min(room, max(FEWEST, since + FEWEST), page.newest - page.first + 1)
        numbers = range(page.newest - max(0, count) + 1, page.newest + 1)
        return Excerpt(
            name,
            page.newest,
            [line & _LINE for line in page.places(numbers)],
            {n: d for n in _spread(page.newest) if (d := page.digest(n)) is not None},
            frozenset(line & _LINE for line in page.lines),
        )


def _spread(newest: int) -> Iterator[int]:
    distance = 1
    while distance <= _FURTHEST:
        last = newest - newest % distance
        yield from range(last, last - _EACH * distance, -distance)
        distance *= 2


def values_of(excerpts: Iterable[Excerpt]) -> list[list[Any]]:
    """Excerpts as values of JSON."""
    return [
        [one.name, one.newest, one.where, [*one.digests.items()], sorted(one.lines)]
        for one in excerpts
    ]


_WORD = number(0, (1 << 64) - 1)
_EXCERPT = protocol.row(
    _WORD,
    _WORD,
    numbers(0, _LINE, KEPT),
    protocol.rows(protocol.row(_WORD, _WORD)),
    numbers(0, _LINE, KEPT - FIRST_LINE),
)


def _excerpt_of(checker: Checker, value: Any) -> Excerpt:
    name, newest, where, digests, lines = _EXCERPT(checker, value)
    return Excerpt(name, newest, where[-newest:], dict(digests), frozenset(lines))


CALLS_FORM = protocol.rows(_excerpt_of, MOST_STREAMS)


MOST_KNOWN = 100_000
"""Streams of hosts; the memory of all is lost beyond, and so is what was a habit."""


class OutOfStep:
    """What is known of each stream of each host beside the first host that has it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Compared] = {}

    def receive(self, reports: Mapping[str, Sequence[Excerpt]]) -> list[str]:
        """The hosts whose calls are to be judged together, in the order of ``reports``: those that
        differ, then others: two do not tell which is the odd one."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        first: dict[int, tuple[str, Excerpt]] = {}
        suspects: set[str] = set()
        streams: set[int] = set()
        for host, excerpts in reports.items():
            for theirs in excerpts:
                ahead, ours = first.setdefault(theirs.name, (host, theirs))
                if ahead != host and self._differ((ahead, host, theirs.name), ours, theirs):
                    suspects |= {ahead, host}
                    streams.add(theirs.name)
        beside = {
            h for h, known in reports.items() if not streams.isdisjoint(e.name for e in known)
        }
        return sorted(
            suspects | beside, key=lambda host: (host not in suspects, [*reports].index(host))
        )

    def _differ(self, key: tuple[str, str, int], ours: Excerpt, theirs: Excerpt) -> bool:
        known, newest = self._known.get(key), (ours.newest, theirs.newest)
        if known is None or newest[0] < known.newest[0] or newest[1] < known.newest[1]:
            known = self._known[key] = Compared()  # the ranks of another try
        if newest == known.newest and not known.asked:
            return False
        known.newest = newest
        return known.suspicious(ours, theirs)


TURN_S = 0.75
ASK_S, TIMES = 1.5, 10
"""Between two requests to all hosts: so long, and so many times what reading the answers took."""
ABOUT = " between"
CALLS = "calls"
"""The first word of a request for what is to be judged."""
MOST_ANSWER = 512 << 10
MOST_JUDGED = 16
"""Hosts that differ, judged together."""
_ANSWER = protocol.fields(slow=maybe(slow.FORM), calls=CALLS_FORM)
"""Of one that gets on: of ranks that are late, and of calls."""


class Talk(Task):
    """The duty; ``calls`` reads what is sent where hosts differ, and ``judge`` has judged what came
    of them; ``meet`` makes the connection to other hosts."""

    pause_s = 0.0

    def __init__(
        self,
        directory: str,
        slowness: Slowness | None,
        calls: Callable[[], bytes],
        judge: Callable[[Sequence[PeerReply]], None],
        meet: Callable[[Callable[[Sequence[str]], bytes]], Peers],
    ) -> None:
        self._directory = directory
        self._slowness, self._calls, self._judge = slowness, calls, judge
        self._followers: dict[str, Follower] = {}
        self._shifts: dict[str, int] = {}
        self._excerpts, self._out_of_step = Excerpts(directory), OutOfStep()
        self._ask_at = 0.0
        self._others = meet(self._answer)

    def follow(self, base: str) -> None:
        if base not in self._followers:
            self._followers[base] = Follower(self._directory, base, self._shifts)

    def ended(self, base: str) -> None:
        if (gone := self._followers.pop(base, None)) is not None:
            gone.close()

    def turn(self) -> None:
        """Look once, then answer others until the next look is due."""
        due = time.monotonic() + TURN_S
        self.look()
        while (rest := due - time.monotonic()) > 0:
            self._others.attend(rest)

    def finish(self) -> None:
        self._others.close()
        for one in self._followers.values():
            one.close()
        if self._slowness is not None:
            self._slowness.finish()

    def look(self) -> None:
        """Do what is due: read, request, and judge what came."""
        for one in self._followers.values():
            one.definitions.read()
        if self._slowness is not None:
            self._slowness.turn(self._followers)
        self._ask()

    def _ask(self) -> None:
        now = time.monotonic()
        answers: list[PeerReply] = []
        serves = self._is_everybody or self._meets()
        if serves and not self._is_everybody and now >= self._ask_at:
            words = [] if self._slowness is None else self._slowness.question()
            answers = self._others.request(words, most=MOST_ANSWER)
            self._ask_at = now + ASK_S
        began = time.monotonic()
        parts = {
            one.sender: found
            for one in answers
            if (found := protocol.opened(one.data, _ANSWER)) is not None
        }
        if self._slowness is not None:
            if serves:
                self._slowness.receive({host: one["slow"] for host, one in parts.items()})
            else:
                self._slowness.led()
        suspects: list[str] = []
        if parts:
            others = {host: one["calls"] for host, one in sorted(parts.items())}
            suspects = self._out_of_step.receive({HERE: self._excerpt(), **others})[:MOST_JUDGED]
            self._ask_at = max(self._ask_at, began + TIMES * (time.monotonic() - began))
        of = [one for one in suspects if one != HERE]
        if of and (calls := self._others.request([CALLS], of=of, within_s=WHOLE_S)):
            self._judge(calls)

    @property
    def _ranks(self) -> list[tuple[int, str]]:
        """The ranks of this host, with their journals."""
        ranks = ((one.definitions.rank, base) for base, one in self._followers.items())
        return sorted((rank, base) for rank, base in ranks if rank is not None)

    @property
    def _is_everybody(self) -> bool:
        """Whether all ranks of the job are on this host, as far as is known."""
        worlds = (one.definitions.world_size or 0 for one in self._followers.values())
        return len({rank for rank, _ in self._ranks}) >= max(worlds, default=0)

    def _meets(self) -> bool:
        """Whether it is for us to judge: we are the server, or there is none."""
        known = (one.definitions for one in self._followers.values())
        places = stores((one.numbered, one.env, one.is_agent) for one in known)
        ranks = self._ranks
        if not ranks or not self._others.join(places, 2 * ranks[0][0]):
            return True
        return self._others.role in (SERVER, SEEKING, ALONE)

    def _excerpt(self) -> list[Excerpt]:
        return self._excerpts.of(base for _, base in self._ranks)

    # -- what is requested of us ---------------------------------------------------------------

    def _answer(self, words: Sequence[str]) -> bytes:
        if list(words[:1]) == [CALLS]:
            return self._calls()
        slow_ranks = None if self._slowness is None else self._slowness.answer(words)
        return protocol.packed({"slow": slow_ranks, "calls": values_of(self._excerpt())})
