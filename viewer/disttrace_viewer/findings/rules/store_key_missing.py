"""A key is awaited in a store that nobody has set."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Sequence

from disttrace_viewer.analysis.node_rendezvous import AGENT
from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.store_keys import ALIKE, NUMBER, Setters
from disttrace_viewer.analysis.wait_graph import KEY, Wait
from disttrace_viewer.findings.case import EARLY, Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR, LIKELY, Finding, Scope
from disttrace_viewer.findings.rules import late_arrivals, outside
from disttrace_viewer.wording import sentences

_SET_LATE = "Find what held it up before that call, or allow more time: the time-out of the store."


def find(case: Case) -> Iterator[Finding]:
    """One finding per key, or set of keys, that is awaited and not set.

    A thread beside the one that communicates may wait for a key all day, for "shutdown" say. Its
    wait counts only where nothing else is wrong and the main thread waits for that thread. Nor does
    a wait by asking count but where nothing else is wrong.
    """
    seen = set[Hashable]()

    def first(wait: Wait) -> bool:
        """Whether it is the first wait for a key that nobody has set."""
        if wait.exchange in seen or not _unset(case, wait):
            return False
        seen.add(wait.exchange)
        return not _waits_for_the_lost(case, wait)

    for wait in case.oldest():
        if first(wait):
            yield _finding(case, wait)
    if any(finding.severity == ERROR for finding in case.findings):
        return
    for wait in case.open():
        if (wait.polled or (wait.side and _joined(case, wait))) and first(wait):
            yield _finding(case, wait)


def _unset(case: Case, wait: Wait) -> bool:
    return wait.kind == KEY and wait.unknown and wait not in case.owner and case.old(wait)


def _waits_for_the_lost(case: Case, wait: Wait) -> bool:
    """Whether nobody is left to set the key but processes that are held up as other findings say,
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
    """Who might still set the key, once it goes on: those who use the store, do not wait for the
    key themselves, and did not end as if all were well.
    """
    place = case.evidence.trace.place_by_id.get(str(wait.exchange[1]))  # type: ignore[index]
    waiting = {w.process for w in case.inside(wait.exchange)}
    processes = case.evidence.trace.processes
    return [
        p
        for p in (place.processes if place else ())
        if p not in waiting and processes[p].role != AGENT and not case.clean(p)
    ]


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


def _finding(case: Case, wait: Wait) -> Finding:
    evidence, trace = case.evidence, case.evidence.trace
    exchange = wait.exchange
    assert isinstance(exchange, tuple)
    place, unset = exchange[1], exchange[2:]
    late = dict(wait.lateness)
    inside = [w for w in case.inside(wait.exchange) if bool(w.lateness) == bool(late)]
    who = list(dict.fromkeys(w.process for w in inside))
    key = str(unset[0])
    names = " and ".join(repr(k) for k in unset[:3])
    store = trace.place_by_id.get(str(place))
    op = wait.behind or wait.op
    at = sentences.place(frame(trace, op))
    behind = [w for w in inside if w.behind is not None]
    setters = Setters(evidence)
    known = setters.first
    near, setter = _near(known, place, key)
    before = known.get((str(place), key))
    pushed, popped = setters.queues.get((str(place), key), (0, 0))
    closest = "" if near is None else f"; the nearest key that was set is {near!r}"
    if setter is not None:
        closest += f", by {trace.processes[setter].label}"
    text = "nobody has set it"
    if before is not None and pushed:
        text = f"all that was pushed ({pushed:,}, first by {trace.processes[before].label}) was"
        text += f" popped ({popped:,})"
    elif before is not None:
        text = f"it was deleted after {trace.processes[before].label} had set it"
    elif not behind:
        text += closest
    others = [
        p
        for p in (store.processes if store else ())
        if p not in who and case.outside(p) and trace.processes[p].role != AGENT
    ]
    doing = f"; of those who use this store{outside.where(case, others)[1:]}" if others else ""
    early = all(case.early(w) for w in inside)
    age = sentences.span(max(evidence.age_ns(w.op) for w in behind or inside))
    text += _behind(case, behind)
    label = f"{sentences.capital(sentences.processes(trace, who))} {sentences.have(len(who))}"
    if wait.polled:
        said = f"{label} asked for {names} again and again for {age} ({op.call.op} at {at})"
        series = near is not None and NUMBER.sub("#", near) == NUMBER.sub("#", key)
        said += f"{'' if series or before is not None else closest}{doing}."
    elif late:
        by, them = sentences.span(min(late.values())), sentences.processes(trace, sorted(late))
        said = f"{sentences.capital(sentences.processes(trace, who))} waited in {op.call.op} of"
        said += f" {names} at {at} for {age} and gave up; {them} set it {by} later"
        said += f"{late_arrivals.words(case, wait)}."
    else:
        said = f"{label} been in {op.call.op} of {names} at {at} for {age}, and {text}{doing}."
    return Finding(
        kind="store_key_missing",
        summary=said,
        certainty=CERTAIN
        if store
        and not (early or wait.polled or late or _able(case, wait))
        and case.certain_journals(store.processes)
        else LIKELY,
        hint=outside.ASKED
        if wait.polled
        else _SET_LATE
        if late
        else _hint(before is not None and bool(pushed), behind),
        culprits=late_arrivals.answerable(case, wait, wait.targets) if late else (),
        waiting=tuple(who),
        op=op.call.op,
        key=key,
        locations=evidence.locations(w.op for w in inside) + outside.locations(case, others),
        at_ns=wait.op.begin_ns,
        scope=Scope(exchanges=frozenset({wait.exchange}), roots=frozenset(who)),
        settles=(EARLY,) if early else (),
    )


def _hint(popped: bool, behind: Sequence[Wait]) -> str:
    if behind:
        return (
            "A TCPStore serves one call at a time: give the thread that waits a connection of its"
            " own (store.clone(), or another TCPStore), or let it poll with check()."
        )
    if popped:
        return (
            "Find who should push once more, or who pops once too often: a count, a condition on"
            " the rank, a push that was left out."
        )
    return "Find who should set this key, and compare its spelling and its prefixes."


def _behind(case: Case, behind: Sequence[Wait]) -> str:
    """What cannot begin because the wait of another thread has the connection."""
    trace = case.evidence.trace
    calls: dict[tuple[str, str], list[int]] = {}
    for wait in behind:
        place = sentences.place(frame(trace, wait.op))
        calls.setdefault((wait.op.call.op, place), []).append(wait.process)
    shown = [f"{op} of {sentences.processes(trace, who)} ({at})" for (op, at), who in calls.items()]
    if not shown:
        return ""
    return (
        "; meanwhile that thread has its process's connection to the store, behind which"
        f" {sentences.listed(shown)} {'stand' if len(shown) > 1 else 'stands'}"
    )


def _near(known: object, place: object, key: str) -> tuple[str | None, int | None]:
    """The key of a place that looks most like ``key``, with who set it.

    One that bears the same numbers says more (``chekpoint/7``) than the last of a series does.
    """
    assert isinstance(known, dict)
    keys = {k: process for (where, k), process in known.items() if where == place}
    numbers = NUMBER.findall(key)
    for some in ([k for k in keys if numbers and NUMBER.findall(k) == numbers], keys):
        lower = {k.lower(): k for k in some}
        found = difflib.get_close_matches(key.lower(), list(lower), n=1, cutoff=ALIKE)
        if found:
            return lower[found[0]], keys[lower[found[0]]]
    return None, None
