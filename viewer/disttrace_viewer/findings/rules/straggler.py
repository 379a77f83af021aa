"""A rank makes others wait again and again at one line, or work is never waited for; and where the
source of what others wait in waits for the outside, as in the rounds before, that is no fault.

A server that receives no request is idle. An error stays what it is where the source stands at a
line that is new to it, in a lock, or for threads and processes of its own, and where others are
missing as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from disttrace.journal.code_files import BUILT_IN, is_library, waits_for_input
from disttrace_viewer.analysis.past import Late
from disttrace_viewer.analysis.process_ends import ALIVE, CLEAN, SILENT
from disttrace_viewer.analysis.sample import innermost, inside, site
from disttrace_viewer.evidence.store_keys import NUMBER
from disttrace_viewer.evidence.wait import COLLECTIVE, KEY, MESSAGE, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, RuleFinding, why
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.trace.model import CodeLocation, JobTrace
from disttrace_viewer.trace.operation import GROUPED
from disttrace_viewer.trace.process import Stack, StackSample
from disttrace_viewer.trace.values import replace
from disttrace_viewer.wording import sentences

LOOKING_NS = 100_000_000
WARN_NS = 10_000_000
"""A delay is worth a warning from here on, and above what the clocks leave open."""


def find(case: Case) -> Iterator[RuleFinding]:
    """One warning per process and line; only where nothing is broken."""
    if any(f.severity == ERROR for f in case.findings):
        return
    idle = {p for f in case.findings if f.kind == KIND for p in f.scope.roots}
    for late in case.past.late():
        worth = late.median_ns >= max(WARN_NS, 2 * late.error_ns)
        if worth and late.process not in idle and not _idle(late):
            yield _finding(case.trace, late)


def _idle(late: Late) -> bool:
    """Whether it is the source of what the others wait in, and waits for input before that. A
    moment's sleep is work, in a program that imitates it."""
    call = late.call
    if late.kind == "straggler" and (call.root is None or call.root != call.group_rank):
        return False
    idle = [
        for_input(stack) and (stack[0][::2] != (BUILT_IN, "sleep") or late.median_ns >= LOOKING_NS)
        for stack in late.stacks
    ]
    return 2 * sum(idle) > len(idle)


def _finding(trace: JobTrace, late: Late) -> RuleFinding:
    where = innermost(late.call.stack)
    at = "" if where is None else f" before {sentences.is_at(where)}"
    does = "sends late" if late.kind != "straggler" else f"comes late to {late.call.op}"
    return RuleFinding(
        kind=late.kind,
        severity=WARNING,
        because=why((late.apart, sentences.CLOCKS)),
        summary=f"{sentences.subject(trace, [late.process])} {does} by"
        f" {sentences.span(late.median_ns)} in {late.times} of {late.of} cases{at};"
        f" {sentences.processes(trace, late.others)} waited {sentences.span(late.waited_ns)} for it"
        " in total.",
        hint="Look at what this rank does between its communication before and this line: data"
        " loading, logging, a slower device, or more work than the others.",
        culprits=(late.process,),
        waiting=late.others,
        op=late.call.op,
        group=late.group,
        locations=() if where is None else (CodeLocation.at(late.process, where, late.call.op),),
        at_ns=late.first_ns,
    )


def find_unwaited(case: Case) -> Iterator[RuleFinding]:
    """One note per call site."""
    for found in case.past.unwaited():
        op = found.first
        again = f", {found.times:,} times" if found.times > 1 else ""
        yield RuleFinding(
            kind="unwaited_work",
            severity=NOTE,
            because=(sentences.KEPT,),
            summary=f"{sentences.subject(case.trace, found.processes)} never waited for"
            f" {op.call.op} at {sentences.line(op)}{again}, and dropped the Work.",
            hint="Keep the Work and wait for it before the tensors are used or freed.",
            culprits=found.processes,
            op=op.call.op,
            group=found.group,
            seq=op.seq,
            at_ns=op.begin_ns,
            locations=case.evidence.locations([op]),
        )


KIND = "waiting_for_input"
_KINDS = ("missing_participant", "unmatched_recv", "store_key_missing")
_OWN = ("/concurrent/futures/", "/multiprocessing/pool.py", "/subprocess.py", "/torch/", "/joblib/")
"""Between these and the program's line one waits for threads and processes of its own."""


def as_note(case: Case, finding: RuleFinding) -> RuleFinding:
    """The finding, as a note where only such sources do not come."""
    if finding.severity != ERROR or finding.kind not in _KINDS:
        return finding
    about = [w for w in case.open() if w.exchange in finding.scope.exchanges]
    sources = _sources(case, about)
    closing = not sources
    sources = _server(case, about) if closing else sources
    waits = {w: len(w.targets) for one in sources for w in case.awaiting(one) if w.holds}
    usual = all(set() < _sources(case, [w]) <= sources and _usual(case, w) for w in waits)
    idle = [_at_clients(case, p) if closing else _idle_at(case, p, about) for p in sources]
    at = {p: one for p, one in zip(sources, idle, strict=True) if one and _may_come(case, p)}
    if not waits or len(at) < len(sources) or not (closing or usual):
        return finding
    # Of those that are missing these have no part in it.
    if {p for w in about if w.kind != KEY for p in w.targets if case.outside(p)} - sources:
        return replace(finding, culprits=tuple(p for p in finding.culprits if p not in sources))
    return replace(
        finding,
        kind=KIND,
        severity=NOTE,
        because=(),
        summary=summary(case.trace, at, sorted(waits, key=waits.__getitem__), closing=closing),
        hint=None,
        culprits=(),
        waiting=tuple(dict.fromkeys(w.process for w in waits)),
        locations=outside.locations(case, at) + case.evidence.locations(w.op for w in waits),
        settles=(),
    )


def _sources(case: Case, waits: Sequence[Wait]) -> set[int]:
    """The roots and senders that these wait for, or who waits for a key itself; in place of one
    that waits as before, those it waits for. Empty where it has come."""
    found, todo, followed = set[int](), [*waits], {*waits}
    for wait in todo:
        op, own, sources = wait.op, wait.kind == KEY, set[int]()
        if wait.kind == COLLECTIVE and op.call.root is not None and op.call.group is not None:
            root = case.evidence.process_of(op.call.group, op.call.root)
            sources = {p for p in wait.targets if p == root}
        elif wait.kind == MESSAGE and op.call.op == "recv":
            sources = {*wait.targets}
        further = {w for p in sources for w in case.of_process.get(p, ())}
        apart = op.error or wait.behind or not (own or sources)
        if apart or not all(_usual(case, w) for w in further):
            return set()
        found |= {wait.process} if own else {p for p in sources if case.outside(p)}
        todo += further - followed
        followed |= further
    return found


def _server(case: Case, waits: Sequence[Wait]) -> set[int]:
    """The only one that lacks in a collective at a new line, if it was the others' source before
    and waited for input then: all have left the loop."""
    away = {p for w in waits for p in w.targets}
    if len(away) != 1 or any(w.kind != COLLECTIVE or w.absent or _usual(case, w) for w in waits):
        return set()
    (process,) = away
    idle = [s.t_ns for s in case.trace.processes[process].samples if for_input(s.stack)]
    served = any(
        op.call.root is not None
        and op.call.root == op.call.group_rank
        and op.status == "ok"
        and any(t_ns < op.begin_ns for t_ns in idle)
        for op in case.sample.of_process.get(process, ())
    )
    return away if served else set()


def _at_clients(case: Case, process: int) -> StackSample | None:
    """Where the main thread waits for a connection, or for a thread that does."""
    stands = case.evidence.samples.get(process)
    if stands is None:
        return None
    threads = case.trace.processes[process].latest_samples.values()
    joins = any(one.function == "join" for one in stands.stack[:4])
    waiting = [s for s in (threads if joins else [stands]) if for_input(s.stack)]
    connected = any(
        one.function.startswith(("recv", "accept", "select", "poll", "read"))
        if one.file == BUILT_IN
        else one.file.endswith(("/socket.py", "/ssl.py", "/selectors.py"))
        for one in (s.stack[0] for s in waiting)
    )
    return stands if connected else None


def _may_come(case: Case, process: int) -> bool:
    """Whether it lives, and no thread or process of its own is known to have failed."""
    end, mine = case.ends[process], case.trace.processes[process]
    if end.held is not None or outside.frozen_ns(case, process):
        return False
    if end.how != ALIVE and not (end.how == SILENT and process in case.cut_off):
        return False
    children = case.trace.children.get(mine.id, ())
    return not (
        any(outside.failed_threads(case, process))
        or any(worker.code for worker in mine.workers)
        or any(usage.failed for usage in mine.usage)
        or any(case.ends[c].how not in (ALIVE, CLEAN, end.how) for c in children)
    )


def _usual(case: Case, wait: Wait) -> bool:
    """Whether it came through this very line before."""
    trace, here = case.trace, site(wait.op.call)
    return any(
        process == wait.process and site(trace.call(call)) == here
        for process, call in case.sample.longest
    )


def _idle_at(case: Case, process: int, about: Sequence[Wait]) -> StackSample | None:
    """Where it waits for the outside, if it did so there before and came through."""
    evidence = case.evidence
    grouped = [op for op in evidence.sample.of_process.get(process, ()) if op.call.kind in GROUPED]
    newest = max(grouped, key=lambda op: op.number, default=None)
    if newest is None or newest.end_ns is None or newest.error is not None:
        return None
    requested = [w for w in about if w.kind == KEY]
    if requested and not all(_by_others(case, w) for w in requested):
        return None
    waits = [w.op for w in requested if not w.polled and evidence.longest_ns(w.op)]
    if waits:
        return StackSample(waits[0].begin_ns, waits[0].call.stack)
    stands = evidence.samples.get(process)
    asking = {w.process for w in case.waits if w.kind == KEY}
    if stands is None and (outside.asks(case, process) or process in asking):
        stands = evidence.trace.processes[process].latest_samples.get(0)  # between two questions
    if stands is None or not newest.end_ns <= stands.t_ns or stands.first_ns >= newest.begin_ns:
        return None
    return stands if for_input(stands.stack) else None


def _by_others(case: Case, wait: Wait) -> bool:
    """Whether no other rank, and no process that failed, sets keys that differ in numbers only."""
    evidence = case.evidence
    place, *keys = wait.exchange[1:]  # type: ignore[index]
    forms = {NUMBER.sub("#", str(key)) for key in keys}
    setters = {
        op.process
        for (where, key), op in case.setters.set_by.items()
        if where == place and NUMBER.sub("#", key) in forms
    }
    return all(
        p == wait.process
        or (not evidence.trace.processes[p].is_rank and evidence.ends[p].how in (ALIVE, CLEAN))
        for p in setters
    )


def for_input(stack: Stack) -> bool:
    """Whether a thread waits there for a descriptor, queue or condition, or polls slowly."""
    within = [*takewhile(lambda one: is_library(one.file), stack)]
    own = any(part in one.file or one.function == "join" for one in within for part in _OWN)
    return bool(within) and not own and waits_for_input(within[0].file, within[0].function)


def summary(
    trace: JobTrace, at: Mapping[int, StackSample], waits: Sequence[Wait], *, closing: bool = False
) -> str:
    """Who waits for what, and who for it; ``closing``: for the end of its clients."""
    op = waits[0].op
    lines = sentences.listed([*dict.fromkeys(sentences.line(w.op) for w in waits)])
    places = [(where, inside(one.stack)) for one in at.values() if (where := innermost(one.stack))]
    shown = [sentences.is_at(*place) for place in dict.fromkeys(places)]
    place = f" at {sentences.listed(shown)}" if shown else ""
    who, name = [w.process for w in waits], sentences.operation(trace, op)
    them, many = ("it", "") if len(at) == 1 else ("them", "s")
    wait = f"{sentences.processes(trace, who)} {'wait' if len(who) > 1 else 'waits'} for {them}"
    of, what, within = (name, f"input{place}, as in the rounds before", "")
    if closing:
        of, what, within = "the rounds before", f"its clients{place}", f" in {name}"
    does = f"the source{many} of {of}, wait{'' if many else 's'} for {what}"
    return f"{sentences.subject(trace, at)}, {does}: {wait}{within} at {lines}."
