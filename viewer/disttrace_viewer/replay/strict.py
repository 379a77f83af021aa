"""Replays what was issued under strict rules: who would stand, and at which line of its journal.

A collective is over when all of its members have issued it, a message when both of its ends have.
So every send waits for its receive, which large messages and most networks do and small messages
on some do not; and nobody leaves a rooted collective before the last has come. On a device the
operations of a stream run one after another, and the host goes on meanwhile: there whatever is
issued next waits for what was waited for. What others set in a store is waited for as well.

What the journals do not hold is taken to have gone well: who stands here stands by their evidence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from disttrace_viewer.replay.sequences import ISSUE, WAIT, Action, Key, Script, Step

Thread = tuple[int, int]
"""Process and thread."""


@dataclass(slots=True)
class _Exchange:
    need: int
    begun: int = 0
    over: bool = False
    first_ns: int = 1 << 63
    """When somebody first took part."""
    parts: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Standing:
    """Where a process stands: by thread the step that it does not get past, and the numbers of
    operations that are not over.
    """

    at: Mapping[int, Step]
    pending: frozenset[int]
    queued: frozenset[int] = frozenset()
    """Of these, what a device has not begun, since it is at something else."""
    awaited: tuple[Action, ...] = ()
    """What it waits for without having said so: what a device is at, and at the end of a process
    sends that nobody has received.
    """


class Replay:
    """One replay of the scripts of a job."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts
        self._exchanges: dict[Key, _Exchange] = {}
        self._over: set[int] = set()
        """Ids of actions; an action is compared by identity."""
        self._place: dict[Thread, int] = {}
        self._waiting: dict[int, list[Thread]] = {}
        """By action whom it holds up."""
        self._ready: deque[Thread] = deque()
        self._streams: dict[tuple[int, Key], tuple[int | None, list[Action], list[Action]]] = {}
        """Of a process and stream the newest batch, its actions, and those before it."""
        self._gates: dict[Thread, list[Action]] = {}
        """What a thread waited for on a device that is not over."""
        self._held: dict[int, int] = {}
        """By action that is issued and not begun, what it waits for: how many."""
        self._after: dict[int, list[Action]] = {}
        self._prepare()

    def run(self) -> dict[int, Standing]:
        """Who stands in the end, by process."""
        self._ready.extend(
            (script.index, thread) for script in self._scripts for thread in script.threads
        )
        while self._ready:
            self._advance(self._ready.popleft())
        found = ((script.index, self._standing(script)) for script in self._scripts)
        return {index: standing for index, standing in found if standing is not None}

    # -- before it begins ---------------------------------------------------------------------

    def _prepare(self) -> None:
        """Count whoever takes part, and for those of whom nothing is known that they did."""
        seen: dict[Key, set[int]] = {}
        for action in self._actions(ISSUE):
            exchange = self._exchanges.setdefault(action.key or (), _Exchange(action.need))
            exchange.first_ns = min(exchange.first_ns, action.at_ns)
            seen.setdefault(action.key or (), set()).add(action.member)
        known: dict[str, dict[int, bool]] = {}
        for script in self._scripts:
            for gid, (rank, _) in script.groups.items():
                members = known.setdefault(gid, {})
                members[rank] = members.get(rank, True) and script.whole
        for key, exchange in self._exchanges.items():
            if key[:1] == ("store",) or not key:
                continue
            missing = {*range(exchange.need)} - seen[key]
            ends = key[2:4] if key[0] == "message" else range(exchange.need)
            whole = known.get(key[1], {})
            exchange.begun = sum(not whole.get(ends[member], False) for member in missing)

    def _actions(self, what: str) -> Iterable[Action]:
        for script in self._scripts:
            for steps in script.threads.values():
                for step in steps:
                    if step.what == what and step.action.key and not step.action.refused:
                        yield step.action

    # -- as it runs ---------------------------------------------------------------------------

    def _advance(self, thread: Thread) -> None:
        steps = self._scripts[thread[0]].threads[thread[1]]
        place = self._place.get(thread, 0)
        while place < len(steps):
            action = steps[place].action
            if action.refused or not action.key:
                pass
            elif steps[place].what == ISSUE:
                self._issue(thread, action)
            elif not action.broken and not self._is_over(action):
                if action.stream is None:
                    self._place[thread] = place
                    self._waiting.setdefault(self._mark(action), []).append(thread)
                    return
                self._gates.setdefault(thread, []).append(action)
            place += 1
        self._place[thread] = place

    def _is_over(self, action: Action) -> bool:
        if action.member < 0:  # a reader of the store, where nobody known sets the key
            exchange = self._exchanges.get(action.key or ())
            # Where nobody had set it by then, it was set by somebody who is not recorded.
            return exchange is None or exchange.over or exchange.first_ns > action.at_ns
        return id(action) in self._over

    def _mark(self, action: Action) -> int:
        """Whatever becomes over: readers of a store wait for the exchange itself."""
        return id(self._exchanges[action.key or ()]) if action.member < 0 else id(action)

    def _issue(self, thread: Thread, action: Action) -> None:
        if action.stream is None:
            self._begin(action)
            return
        tail = self._streams.setdefault((action.process, action.stream), (None, [], []))
        if tail[0] is None or tail[0] != action.batch:
            tail = (action.batch, [], tail[1])
            self._streams[action.process, action.stream] = tail
        tail[1].append(action)
        gates = self._gates[thread] = [
            one for one in self._gates.get(thread, ()) if not self._is_over(one)
        ]
        before = {id(one): one for one in (*tail[2], *gates) if not self._is_over(one)}
        for one in before:
            self._after.setdefault(one, []).append(action)
        if before:
            self._held[id(action)] = len(before)
        else:
            self._begin(action)

    def _begin(self, action: Action) -> None:
        pending = [action]
        while pending:
            one = pending.pop()
            exchange = self._exchanges[one.key or ()]
            exchange.begun += 1
            exchange.parts.append(one)
            if exchange.over or exchange.begun >= exchange.need:
                if not exchange.over:
                    exchange.over = True
                    self._ready.extend(self._waiting.pop(id(exchange), ()))
                for part in exchange.parts:
                    pending += self._end(part)
                exchange.parts.clear()

    def _end(self, action: Action) -> Iterable[Action]:
        """Whatever may begin since this is over."""
        self._over.add(id(action))
        self._ready.extend(self._waiting.pop(id(action), ()))
        for one in self._after.pop(id(action), ()):
            self._held[id(one)] -= 1
            if not self._held[id(one)]:
                del self._held[id(one)]
                yield one

    # -- in the end ---------------------------------------------------------------------------

    def _standing(self, script: Script) -> Standing | None:
        at: dict[int, Step] = {}
        for thread, steps in script.threads.items():
            reached = self._place.get((script.index, thread), 0)
            for step in steps[: reached + 1]:
                # On a device a thread is shown where it waits first, as if the host waited too.
                action = step.action
                counts = step.what == WAIT and action.key and not action.refused
                if counts and not action.broken and not self._is_over(action):
                    at[thread] = step
                    break
        issued = [a for a in script.actions.values() if a.key and not a.refused and not a.broken]
        pending = {a.number: a for a in issued if id(a) not in self._over}
        queued = frozenset(number for number, a in pending.items() if id(a) in self._held)
        heads = {step.action.number for step in at.values()} & queued
        awaited = [
            a
            for number, a in pending.items()
            if (heads and a.stream is not None and number not in queued)
            or (not at and a.call.get("op") == "send" and script.whole)
        ]
        if not at and not awaited:
            return None
        return Standing(at, frozenset(pending), queued, tuple(awaited))
