"""A key is awaited in a store, and was never set."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from disttrace_viewer.evidence.store_keys import ALIKE, NUMBER, Key
from disttrace_viewer.evidence.wait import KEY, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import late_arrivals, outside
from disttrace_viewer.findings.rules.deadlock import SET_FIRST
from disttrace_viewer.trace.model import JobTrace, lead_of
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences


def find(case: Case) -> Iterator[RuleFinding]:
    """One finding per key, or set of keys, that is awaited and not set.

    A thread beside the one that communicates may wait for "shutdown" all day: it counts only where
    nothing else is wrong and the main thread waits for it. Nor does one count that asks and holds
    up none, or whose process ended well.
    """
    seen = set[Hashable]()

    def first(wait: Wait) -> bool:
        """Whether it is the first wait for a key that none has set."""
        if wait.exchange in seen or not _unset(case, wait):
            return False
        seen.add(wait.exchange)
        return not _waits_for_the_lost(case, wait)

    for wait in case.oldest():
        counts = not wait.polled or wait.targets or case.holds_up(wait.process)
        if counts and first(wait):
            yield _finding(case, wait)
    if any(finding.severity == ERROR for finding in case.findings):
        return
    for wait in case.open():
        if (wait.polled or (wait.side and _joined(case, wait))) and first(wait):
            yield _finding(case, wait)


def _unset(case: Case, wait: Wait) -> bool:
    if wait.kind != KEY or not wait.unknown or wait in case.owner or not case.old(wait):
        return False
    return not (wait.polled and case.clean(wait.process))


def _waits_for_the_lost(case: Case, wait: Wait) -> bool:
    """Whether none is left to set the key but processes that are held up as other findings tell,
    and among them one that never came out of what a finding is about.

    Inside a collective whose sizes differ a backend may end a process, or hold it up, and nothing
    else tells that it did.
    """
    lost = {p for one in case.findings if one.severity == ERROR for p in one.scope.members}
    able = _able(case, wait)
    return not lost.isdisjoint(able) and all(
        p in lost if case.outside(p) else all(w in case.owner for w in case.of_process[p])
        for p in able
    )


def _able(case: Case, wait: Wait) -> list[int]:
    """Users of the store that may yet set the key: neither waiting for it nor ended well."""
    able = case.setters.able(str(wait.exchange[1]))  # type: ignore[index]
    return sorted(able - {w.process for w in case.inside(wait.exchange)})


def _joined(case: Case, wait: Wait) -> bool:
    """Whether the main thread is in no wait of its own and stands where it joins a thread."""
    stack = case.evidence.stack(wait.process)
    inner = stack[0] if stack else None
    return (
        inner is not None
        and case.outside(wait.process)
        and inner.file.endswith("/threading.py")
        and inner.function in ("join", "_wait_for_tstate_lock", "_shutdown", "wait")
    )


def _finding(case: Case, wait: Wait) -> RuleFinding:
    evidence, trace, setters = case.evidence, case.trace, case.setters
    assert isinstance(wait.exchange, tuple)
    place, *unset = wait.exchange[1:]
    key = (str(place), str(unset[0]))
    late = late_arrivals.held_up_by(case, wait)
    is_late = bool(wait.lateness)
    inside = [w for w in case.inside(wait.exchange) if bool(w.lateness) == is_late]
    who = list(dict.fromkeys(w.process for w in inside))
    op = wait.behind or wait.op
    behind = [w for w in inside if w.behind is not None]
    series = [] if is_late or behind else _of_its_form(case, wait)
    turns = None if is_late or behind or wait.polled else setters.turns(key)
    odd, past = _odd(case, key, who, wait.op.begin_ns) if turns else ([], None)
    near = None if series or odd else _near(case, op, key)
    before = setters.set_by.get(key)
    if wait.polled and near is not None and NUMBER.sub("#", near[0]) == NUMBER.sub("#", key[1]):
        near = None  # of a series another one is always near
    store = trace.place_by_id.get(str(place))
    out = sorted({*(store.processes if store else ())} - case.of_process.keys() - {*who})
    others = [p for p in out if not trace.processes[p].is_agent]
    early = all(case.early(w) for w in inside)
    names, at = " and ".join(repr(one) for one in unset[:3]), sentences.line(op)
    age = sentences.span(max(evidence.age_ns(w.op) for w in behind or inside))
    subject, have = sentences.subject(trace, who), sentences.have(who)
    where = outside.where(case, others, since_ns=wait.op.begin_ns)[1:]
    doing = f"; of those who use this store{where}" if others else ""
    closest = ""
    if near is not None and before is None and not behind:
        label = trace.processes[near[1]].label
        closest = f"; the nearest key that was set is {near[0]!r}, by {label}"
    became, found = _became(case, wait.process, key, closest)
    held = [] if behind or before or found else _held_up(case, wait, who)
    if wait.polled:
        holder = setters.holder(key) if op.call.op == "store.compare_set" else None
        hint = outside.POLLED_HINT
        if holder is not None and holder.process not in who:
            hint = "Find why it never gives the lock back: a delete_key left out, or an exception."
            closest = (
                f"; {trace.processes[holder.process].label} has it since its {holder.call.op} at"
                f" {sentences.line(holder)}, and no process has deleted it since"
            )
        summary = (
            f"{subject} {have} asked for {names} again and again for {age} ({op.call.op} at {at})"
            f"{closest}{doing}."
        )
    elif is_late:
        hint = "Find what held it up before that call, or allow more time: the store's time-out."
        by = dict(wait.lateness)
        summary = (
            f"{subject} waited in {op.call.op} of {names} at {at} for {age} and gave up;"
            f" {sentences.processes(trace, sorted(by))} set it"
            f" {sentences.span(min(by.values()))} later{late_arrivals.words(case, late)}."
        )
    else:
        hint = found or "Find who should set this key, and compare its spelling and its prefixes."
        if turns and odd:
            where = outside.where(case, odd, since_ns=wait.op.begin_ns, named=True)
            doing = _turns_text(trace, odd, who, turns[1], past) + where * (not held)
        if behind:
            hint = (
                "A TCPStore serves one call at a time: give the thread that waits a connection of"
                " its own (store.clone(), or another TCPStore), or let it poll with check()."
            )
        elif not found and (odd or (series and not others)):
            # Where others use the store too, the one that sets them all may be among those.
            hint = (
                "These keys differ in a number only: see whether a rank is a step ahead or behind"
                " (a counter, an epoch, a call that was left out), and whether each sets its own"
                " key before it waits."
            )
        elif held and near is None:
            hint = (
                "Find what should set this key: all processes that use this store wait for it,"
                f" or for one that waits for it. {SET_FIRST}"
            )
        summary = (
            f"{subject} {have} been in {op.call.op} of {names} at {at} for {age}, and"
            f" {became}{_series(trace, series)}{_behind(trace, behind)}"
            f"{_able_text(trace, who, held)}{doing}."
        )
    return RuleFinding(
        kind="store_key_missing",
        summary=summary,
        because=why(
            (not store or _able(case, wait), sentences.STORE_KEY),
            (early, sentences.SOON),
            (wait.polled, sentences.POLLED),
            (is_late, sentences.LATE),
            (store and not case.certain_journals(store.processes), sentences.NOT_WHOLE),
        ),
        hint=hint,
        culprits=late_arrivals.answerable(late, wait.targets) if is_late else tuple(odd),
        waiting=tuple(dict.fromkeys([*who, *(w.process for w in series)])),
        op=op.call.op,
        key=key[1],
        locations=late_arrivals.locations(case, wait, late)
        + evidence.locations(w.op for w in (*inside, *held, *series))
        + outside.locations(case, others),
        at_ns=wait.op.begin_ns,
        scope=Scope.of((wait, *series), roots=[*who, *(w.process for w in series)]),
        settles=(outside.EARLY,) if early else (),
    )


def _became(case: Case, waiter: int, key: Key, closest: str) -> tuple[str, str | None]:
    """What became of a key that is not set, and what to look for, if that tells it. ``closest``:
    the nearest key that was set.
    """
    setters, trace = case.setters, case.trace
    processes = trace.processes
    for (where, name), op in setters.set_by.items() if key not in setters.set_by else ():
        other = trace.place_by_id.get(where or "")
        same = processes[op.process].attempt == processes[waiter].attempt
        if name == key[1] and other is not None and same:
            hint = (
                "Give all of them one store: the same path, or the same host and port, and none"
                " that lives in one process only (HashStore)."
            )
            text = f"{processes[op.process].label} has set it in another store, {other.name}"
            return f"nobody has set it there; {text}", hint
    before = setters.set_by.get(key)
    if before is None:
        return f"nobody has set it{closest}", None
    first, (pushed, popped) = processes[before.process].label, setters.queues.get(key, (0, 0))
    if pushed:
        hint = (
            "Find who should push once more, or who pops once too often: a count, a condition on"
            " the rank, a push that was left out."
        )
        return f"all that was pushed ({pushed:,}, first by {first}) was popped ({popped:,})", hint
    deleted = setters.deleted.get(key)
    if deleted is None:
        return f"it was deleted after {first} had set it", None
    by, at = processes[deleted.process].label, sentences.line(deleted)
    hint = (
        "To a rank that comes later a deleted key is one that was never set: delete it when"
        " all have read it (after a barrier), or leave it."
    )
    set_at = sentences.line(before)
    return f"it is gone: {first} set it at {set_at}, and {by} deleted it at {at}", hint


def _of_its_form(case: Case, wait: Wait) -> list[Wait]:
    """Other waits for keys that differ in numbers only: a barrier made by hand, out of step."""

    def form(one: Wait) -> list[str]:
        return [str(one.exchange[1]), *(NUMBER.sub("#", str(k)) for k in one.exchange[2:])]  # type: ignore[index]

    if wait.polled or "#" not in "".join(form(wait)[1:]):
        return []
    return [
        other
        for other in case.oldest()
        if other.exchange != wait.exchange
        and _unset(case, other)
        and not (other.polled or other.lateness or other.behind)
        and form(other) == form(wait)
    ]


def _held_up(case: Case, wait: Wait, who: list[int]) -> list[Wait]:
    """Where all that could set the key are, if each waits, also through others, for the waiter."""
    able = _able(case, wait)
    if not able or not case.setters.whole(str(wait.exchange[1])):  # type: ignore[index]
        return []
    found: dict[int, Wait] = {}
    reached = [*who]
    for process in reached:
        for one in case.awaiting(process):
            new = one.process not in found and one.process not in who
            if new and one.holds and not one.any_of:
                found[one.process] = one
                reached.append(one.process)
    return [found[p] for p in able] if found.keys() >= {*able} else []


def _near(case: Case, op: Op, wanted: Key) -> tuple[str, int] | None:
    """The key of a place that looks most like the ``wanted`` one of an operation, with who set it.

    One that bears the same numbers counts for more (``chekpoint/7``) than the last of a series
    does. That keys begin with the same prefixes of stores does not make them alike, and torch's own
    keys (addresses of a mesh, what makes a group) are not what anybody looked for.
    """
    setters, (place, key) = case.setters, wanted
    by_lead: dict[str, dict[str, tuple[str, int]]] = {}
    for (where, k), setter in setters.set_by.items():
        if where == place and not setters.of_torch(setter):
            lead = _shared(case, op, setter)
            by_lead.setdefault(lead, {})[k[len(lead) :].lower()] = k, setter.process
    numbers = NUMBER.findall(key)
    for like in (True, False) if numbers else (False,):
        for lead, keys in sorted(by_lead.items(), reverse=True):  # those with more in common first
            some = [k for k in keys if not like or NUMBER.findall(keys[k][0]) == numbers]
            if best := difflib.get_close_matches(key[len(lead) :].lower(), some, 1, ALIKE):
                return keys[best[0]]
    return None


def _shared(case: Case, one: Op, two: Op) -> str:
    """The prefixes with which the stores of two operations begin alike, as in front of a key."""
    stores = (case.trace.store_of(op.call) for op in (one, two))
    chains = (() if store is None else store.prefix for store in stores)
    same = itertools.takewhile(lambda parts: parts[0] == parts[1], zip(*chains, strict=False))
    return lead_of(part for part, _ in same)


def _series(trace: JobTrace, series: Sequence[Wait]) -> str:
    def awaited(wait: Wait) -> str:
        names = " and ".join(repr(key) for key in wait.exchange[2:5])  # type: ignore[index]
        return f"{names} ({sentences.line(wait.op)})"

    reported = [(awaited(wait), wait.process) for wait in series]
    return f"; {sentences.sides(trace, reported, 'waits for', 'wait for')}" * bool(series)


def _odd(case: Case, key: Key, who: Sequence[int], since_ns: int) -> tuple[list[int], Wait | None]:
    """Who is behind the turns of the others, or ahead of them: who has to set ``key``, unless that
    one waits for others. If it waits for some of those that wait for ``key``, where most members
    have come to the exchange, they left that out; where it came alone, it is the odd one.
    """
    seen = set[int]()
    while (turns := case.setters.turns(key)) and (setter := turns[0]) not in seen:
        seen.add(setter)
        wait = next(iter(case.of_process.get(setter, ())), None)
        if wait is None:  # who asks a store again and again waits as well
            polls = case.at_work(setter, since_ns)
            return [] if polls is not None and polls.call.kind == "store" else [setter], None
        if wait.kind == KEY:
            key = str(wait.exchange[1]), str(wait.exchange[2])  # type: ignore[index]
        elif not {*who}.issuperset(wait.targets):
            break
        elif len(wait.targets) < len(wait.arrived):
            return case.by_rank(wait.targets), wait
        else:
            return [setter] * (len(wait.targets) > len(wait.arrived) == 1), None
    return [], None


def _turns_text(
    trace: JobTrace, odd: list[int], who: list[int], turns: Mapping[int, Any], past: Wait | None
) -> str:
    """Whose turns differ: the last number that changes tells a turn. ``past``: was left out."""
    at = max(i for i, seen in enumerate(zip(*turns.values(), strict=True)) if len({*seen}) > 1)
    rest = f", {sentences.processes(trace, who)} to {turns[who[0]][at]}"
    if past is not None:
        rest = f" without {sentences.call(trace, past.op)}"
    came = f"{sentences.processes(trace, odd)} came to turn {turns[odd[0]][at]}{rest}"
    return f"; each rank sets such keys in turns, and {came}"


def _able_text(trace: JobTrace, who: Sequence[int], able: Sequence[Wait]) -> str:
    """Where all who could set it are, each of which waits for those who wait for it."""
    reported = ((f"in {sentences.call(trace, w.op)}", w.process) for w in able)
    where = [f"{sentences.processes(trace, of)} {text}" for text, of in together(reported).items()]
    return (
        f"; all others who use this store wait for {sentences.processes(trace, who)} themselves:"
        f" {sentences.listed(where)}"
    ) * bool(able)


def _behind(trace: JobTrace, behind: Sequence[Wait]) -> str:
    calls = together(((w.op.call.op, sentences.line(w.op)), w.process) for w in behind)
    shown = [f"{op} of {sentences.processes(trace, who)} ({at})" for (op, at), who in calls.items()]
    if not shown:
        return ""
    return (
        "; meanwhile that thread holds its process's connection to the store, for which"
        f" {sentences.listed(shown)} {'wait' if len(shown) > 1 else 'waits'}"
    )
