"""Whether a job would have hung, had nothing been let pass: judged by the rules for journals.

States are made of what journals hold up to where a replay stands, as if the job stood there.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import orjson

from disttrace_viewer.analysis import liveness
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import ERROR, RuleFinding
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.journals import Journal, gather
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.replay.sequences import ISSUE, WAIT, Action, Key, Script, Step, lines
from disttrace_viewer.replay.sequences import script as script_of
from disttrace_viewer.states.reduce import reduce, state_of
from disttrace_viewer.states.state import Merged, merge
from disttrace_viewer.trace.process import Process
from disttrace_viewer.trace.values import dataclass, field, replace
from disttrace_viewer.wording.sentences import REPLAYED

KIND = "would_hang"
_ENDS = ("exit", "failure", "handling", "rendezvous")
_LATER_NS = 3_600_000_000_000
"""So long all have stood: none is on the way any more."""

_LASTING = re.compile(r",? for \d[\d.]* (?:ms|s|min|h)(?: \d+ (?:s|min|h))?\b")
"""A replay takes no time."""


def strictly(
    found: Verdict, paths: Sequence[str | Files], *, streams: bool = False, stall_ns: int
) -> Verdict:
    """The verdict, and before it what would hang, if every operation waited for all who take part.

    Where something is broken already, that is the verdict. ``streams``: as if it had run on a
    device. Raises ViewerError where there are no journals.
    """
    processes = found.case.trace.processes
    if any(one.severity == ERROR for one in found.findings):
        return found
    problems = Problems()
    wanted = {process.id for process in processes}
    journals = [one for one in gather(evidence(paths, problems), problems) if one.id in wanted]
    scripts = [script_of(index, one, streams=streams) for index, one in enumerate(journals)]
    standing = Replay(scripts).run()
    if not standing:
        return found
    index = {process.id: process.index for process in processes}
    hung = _would_hang(scripts, standing, index, stall_ns)
    return replace(found, findings=(*hung, *found.findings))


def _would_hang(
    scripts: Sequence[Script],
    standing: Mapping[int, Standing],
    index: Mapping[str, int],
    stall_ns: int,
) -> tuple[RuleFinding, ...]:
    """The errors of the states that are cut, with the numbers in ``index`` for processes."""
    states, alive = _cut(scripts, standing)

    def look(process: Process) -> liveness.Observation:
        return liveness.Observation(True) if process.id in alive else liveness.GONE

    found = job.judged([], local=states, stall_ns=stall_ns, look=look)
    at = [index[one.id] for one in found.case.trace.processes]
    ops = [step.action for stands in standing.values() for step in stands.at.values()]
    ops += [action for stands in standing.values() for action in stands.awaited]
    why = _hint(
        {(one.call.get("op") or "", one.call.get("backend")) for one in ops},
        on_device=any(one.stream is not None for one in ops),
    )
    return tuple(
        replace(
            one,
            kind=KIND,
            because=(REPLAYED,),
            summary=f"Would hang: {_LASTING.sub('', one.summary)}",
            hint=f"{why} {one.hint}" if one.hint else why,
            culprits=tuple(at[i] for i in one.culprits),
            waiting=tuple(at[i] for i in one.waiting),
            cycle=one.cycle and tuple((at[a], what, at[b]) for a, what, b in one.cycle),
            locations=tuple(replace(place, process=at[place.process]) for place in one.locations),
        )
        for one in found.findings
        if one.severity == ERROR
    )


def _cut(scripts: Sequence[Script], standing: Mapping[int, Standing]) -> tuple[Merged, set[str]]:
    """The states of all, and the ids of those processes that stand or wait for such."""
    stuck = {scripts[index].journal.id for index in standing}
    parents = {one.journal.id: one.journal.definitions.process.get("parent") for one in scripts}
    above: set[str] = set()
    left = [*stuck]
    while left:
        parent = parents.get(left.pop())
        if parent in parents and parent not in above:
            above.add(parent)
            left.append(parent)
    at_ns = _LATER_NS + max(one.last_ns for one in scripts)
    found = []
    for one in scripts:
        if one.journal.id in stuck or one.journal.id in above:
            kept = _shortened(one, standing, at_ns)
            found.append(state_of(_unended(one.journal), kept))
        elif (state := reduce(one.journal.files, history=True)) is not None:
            found.append(state)
    return merge(found), stuck | above


def _unended(journal: Journal) -> Journal:
    """The journal without what its definitions hold of ends: its own, and of those it started."""
    definitions = copy.copy(journal.definitions)
    started = [one for one in definitions.listed["worker"] if one.get("event") == "started"]
    definitions.listed = {**definitions.listed, **{kind: [] for kind in _ENDS}, "worker": started}
    return replace(journal, definitions=definitions)


def _shortened(issued: Script, standing: Mapping[int, Standing], at_ns: int) -> Iterator[bytes]:
    """The lines of its journal up to where the process stands, and a sign of life after them."""
    stands = standing.get(issued.index, Standing({}, frozenset()))
    limits = {thread: step.place for thread, step in stands.at.items()}
    threads: dict[int, int] = {}
    begun: dict[int, int] = {}
    for place, (line, record) in enumerate(lines(issued.journal, Problems())):
        if not record or {"hb", "seg"} & record.keys():
            continue
        number, thread = _of(record, threads)
        limit = limits.get(thread)
        if limit is not None and place > limit:
            continue
        if "b" in record:
            begun.setdefault(number, record["t"])
        if number >= 0 and (number not in begun or number in stands.queued):
            continue
        if number in stands.pending and not {"b", "i", "w"} & record.keys():
            continue
        yield line
    at = at_ns - (issued.journal.definitions.process.get("unix_ns") or 0)
    for action in stands.awaited:
        yield orjson.dumps({"w": action.number, "d": at - _LATER_NS - begun[action.number]})
    yield orjson.dumps({"hb": at})


def _of(record: Mapping[str, Any], threads: dict[int, int]) -> tuple[int, int]:
    """The operation and the thread of a record; -1 for what is of none."""
    if "b" in record:
        threads[record["b"]] = record.get("h", 0)
        return record["b"], record.get("h", 0)
    if "at" in record:
        return -1, record.get("h", 0)
    number = next((record[key] for key in ("e", "i", "w", "c", "o", "l") if key in record), -1)
    return number, threads.get(number, -1)


def _hint(ops: Set[tuple[str, str | None]], *, on_device: bool) -> str:
    """Why it went well; ``ops`` are those that a rank stands in, with their backends."""
    names = {op for op, _ in ops}
    backend = next((name for _, name in sorted(ops, key=repr) if name), "the backend")
    rooted = sorted(names & {"broadcast", "reduce", "gather", "scatter", "gather_into_tensor"})
    if rooted:
        return f"{backend} let it pass since in {rooted[0]} not everybody waits for everybody."
    if on_device:
        return "It may go well as long as messages are small: a device runs them one by one."
    if "send" in names:
        return f"{backend} let it pass since the message was small, or nobody waited for it."
    return f"{backend} let it pass."


Thread = tuple[int, int]
"""Process and thread."""


@dataclass(slots=True)
class _Exchange:
    need: int
    begun: int = 0
    over: bool = False
    first_ns: int = 1 << 63
    """When the first member took part."""
    parts: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Standing:
    """The position of a process: by thread the step that it does not get past, and the numbers of
    operations that are not over.
    """

    at: Mapping[int, Step]
    pending: frozenset[int]
    queued: frozenset[int] = frozenset()
    """Of these, what a device has not begun, since it is at something else."""
    awaited: tuple[Action, ...] = ()
    """What it waits for without a record of it: what a device is at, and at the end of a process
    sends that were not received.
    """


@dataclass(slots=True)
class _Stream:
    """Of a device: the newest batch with its actions, those before it, and what has not begun, with
    what a thread waited for before it issued that.
    """

    batch: int | None = None
    newest: list[Action] = field(default_factory=list)
    before: list[Action] = field(default_factory=list)
    waiting: deque[tuple[Action, Sequence[Action]]] = field(default_factory=deque)


class Replay:
    """One replay of the scripts of a job."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self._scripts = scripts
        self._exchanges: dict[Key, _Exchange] = {}
        self._over: set[int] = set()
        """Ids of actions; an action is compared by identity."""
        self._place: dict[Thread, int] = {}
        self._streams: dict[tuple[int, Key], _Stream] = {}
        self._gates: dict[Thread, list[Action]] = {}
        """What a thread waited for on a device that is not over."""
        self._queued: set[int] = set()
        """Ids of actions that are issued and not begun."""
        self._prepare()

    def run(self) -> dict[int, Standing]:
        """Who stands in the end, by process."""
        threads = [(script.index, thread) for script in self._scripts for thread in script.threads]
        while True:
            moved = [self._advance(thread) for thread in threads]
            moved += map(self._launch, self._streams.values())
            if not any(moved):
                break
        found = ((script.index, self._standing(script)) for script in self._scripts)
        return {index: standing for index, standing in found if standing is not None}

    # -- before it begins ---------------------------------------------------------------------

    def _prepare(self) -> None:
        """Count the members that take part; those that are not known count as taking part."""
        seen: dict[Key, set[int]] = {}
        steps = (s for one in self._scripts for thread in one.threads.values() for s in thread)
        for action in (step.action for step in steps if step.what == ISSUE):
            if not action.key or action.refused:
                continue
            exchange = self._exchanges.setdefault(action.key, _Exchange(action.need))
            exchange.first_ns = min(exchange.first_ns, action.at_ns)
            seen.setdefault(action.key, set()).add(action.member)
        known: dict[str, dict[int, bool]] = {}
        for script in self._scripts:
            for gid, (rank, _) in script.groups.items():
                members = known.setdefault(gid, {})
                members[rank] = members.get(rank, True) and script.whole
        for key, exchange in self._exchanges.items():
            if key[0] == "store":
                continue
            missing = {*range(exchange.need)} - seen[key]
            ends = key[2:4] if key[0] == "message" else range(exchange.need)
            whole = known.get(key[1], {})
            exchange.begun = sum(not whole.get(ends[member], False) for member in missing)

    # -- as it runs ---------------------------------------------------------------------------

    def _advance(self, thread: Thread) -> bool:
        """Whether a thread has come further."""
        steps = self._scripts[thread[0]].threads[thread[1]]
        first = place = self._place.get(thread, 0)
        while place < len(steps):
            action = steps[place].action
            if action.refused or not action.key:
                pass
            elif steps[place].what == ISSUE:
                self._issue(thread, action)
            elif not action.broken and not self._is_over(action):
                if action.stream is None:
                    break
                self._gates.setdefault(thread, []).append(action)
            place += 1
        self._place[thread] = place
        return place > first

    def _is_over(self, action: Action) -> bool:
        if action.member < 0:  # a reader of the store, where nobody known sets the key
            exchange = self._exchanges.get(action.key or ())
            # Where nobody had set it by then, it was set by somebody who is not recorded.
            return exchange is None or exchange.over or exchange.first_ns > action.at_ns
        return id(action) in self._over

    def _issue(self, thread: Thread, action: Action) -> None:
        if action.stream is None:
            self._begin(action)
            return
        stream = self._streams.setdefault((action.process, action.stream), _Stream())
        if stream.batch is None or stream.batch != action.batch:
            stream.batch, stream.before, stream.newest = action.batch, stream.newest, []
        stream.newest.append(action)
        gates = self._gates[thread] = [
            one for one in self._gates.get(thread, ()) if not self._is_over(one)
        ]
        stream.waiting.append((action, (*stream.before, *gates)))
        self._queued.add(id(action))

    def _launch(self, stream: _Stream) -> bool:
        """Whether a device has begun anything more of a stream."""
        count = len(stream.waiting)
        while stream.waiting and all(map(self._is_over, stream.waiting[0][1])):
            action, _ = stream.waiting.popleft()
            self._queued.discard(id(action))
            self._begin(action)
        return len(stream.waiting) < count

    def _begin(self, action: Action) -> None:
        exchange = self._exchanges[action.key or ()]
        exchange.begun += 1
        exchange.parts.append(action)
        exchange.over = exchange.begun >= exchange.need
        if exchange.over:
            self._over.update(map(id, exchange.parts))
            exchange.parts.clear()

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
        queued = frozenset(number for number, a in pending.items() if id(a) in self._queued)
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
