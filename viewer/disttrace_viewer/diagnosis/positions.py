"""Where the processes of a job are: equal places folded into ranges of ranks, culprits first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from disttrace.journal.format import STOPPED
from disttrace_viewer.analysis.process_ends import ALIVE, RUNNING, SILENT
from disttrace_viewer.analysis.sample import frame
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.wait import MOVES, SPINS, STANDS, RankActivity, activity, deadline
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING, RuleFinding
from disttrace_viewer.findings.rules.communicator_creation import is_start
from disttrace_viewer.findings.rules.downgraded import ABOUT_WAITS
from disttrace_viewer.findings.rules.outside import frozen_ns
from disttrace_viewer.trace.model import JobTrace, Reported
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import dataclass, field, replace
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import clock_time, size
from disttrace_viewer.wording.sentences import BY, ENDED, HELD, NOWHERE, ended, pattern, state

SEVERAL = 8
"""Of more places than this those in groups of one kind (a mesh has many) are one."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """What some processes do, and where in the program."""

    doing: str
    """Nothing of one that ended well: its state show it."""
    at: str
    state: str
    word: str
    """The state as text has it: ``silent for 28 min``."""
    processes: tuple[int, ...]
    longest_ns: int
    culprit: bool
    waits: bool = False
    """A rank there waits in a finding."""
    briefly: tuple[str, ...] = ()
    """Words for ``doing`` where room is scarce, the shortest last; none: only those."""
    attempt: int | None = None
    """Which one they are of, where their launcher made several."""
    reported: tuple[int, ...] = ()
    """Further ranks there, of which no states are at hand."""

    @property
    def count(self) -> int:
        """How many are there."""
        return len(self.processes) + len(self.reported)

    def who(self, trace: JobTrace) -> str:
        """``ranks 0-60, 62, 63``, ``rank 1 (attempt 0)``."""
        of = "" if self.attempt is None else f" (attempt {self.attempt})"
        return sentences.processes(trace, self.processes, self.reported) + of

    def line(self, case: Case) -> str:
        """``ranks 0-60, 62, 63  in all_reduce #6 of the default group  train.py:10  52.6 s``."""
        who = self.who(case.trace)
        age = sentences.span(self.longest_ns) if self.longest_ns else ""
        parts = (who, "" if self.state == RUNNING else self.word, self.doing, self.at, age)
        return "  ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Doing:
    """What a process does, and where; ``op``: the operation in which it waits."""

    text: str
    at: str = ""
    age_ns: int = 0
    """For how long that has lasted."""
    op: Op | None = None
    named: tuple[str, Op] | None = None
    """Of what ``text`` is the long name: ``in`` or ``last``, and the operation."""
    pattern: str = ""
    """What those that are shown as one have in common, where not ``text``."""


@dataclass(slots=True)
class _There:
    """Those that do the same, by process, and those that were reported to do it with these."""

    doing: _Doing
    members: dict[int, _Doing] = field(default_factory=dict)
    reported: list[Reported] = field(default_factory=list)
    more: int = 0
    """In so many groups the reported ones are."""


_Key = tuple[bool, str, str, str, "int | None"]
"""Whether a rank is named, what is done where, the state, and the attempt where that matters."""


def places(case: Case, findings: Sequence[RuleFinding]) -> list[RankPlace]:
    """Processes that do the same in the same place as one, culprits first, then the fewest."""
    culprits = {i for f in findings for i in f.culprits}
    waiting = {i for f in findings for i in f.waiting}
    found: dict[_Key, _There] = {}
    of_all = case.trace.processes
    again = len({p.attempt for p in of_all if p.attempt is not None}) > 1
    for process in (of_all[i] for i in case.by_rank(range(len(of_all)))):
        if process.rank is None and process.source == "log":
            continue  # of all ranks, or of one that is not known
        if process.is_agent and process.index not in culprits | waiting:
            continue  # it looks after its workers, wherever it is
        one = _doing(case, process.index)
        key = (
            process.index in culprits,
            one.pattern or one.text,
            one.at,
            case.ends[process.index].state,
            process.attempt if again else None,
        )
        found.setdefault(key, _There(one)).members[process.index] = one
        for more in case.trace.reported_by.get(process.index, ()):
            if one.op is None or one.op.call.group != more.group or more.groups < 0:
                continue  # it waits in something else than the one with which they were compared
            if not more.groups:
                found[key].reported.append(more)
            else:  # in groups of that make, of which only the number is known
                of = (False, str(_kind(case, one.op, apart=True)), *key[2:])
                there = found.setdefault(of, _There(one))
                there.reported.append(more)
                there.more += more.groups
    first = set(findings[0].waiting) if findings else set()
    alike: dict[tuple[Any, ...], list[_There]] = {}
    for key, there in found.items():
        is_named = key[0] or not first.isdisjoint(there.members)
        kind = None if is_named else _kind(case, there.doing.op, apart=not there.members)
        folded = kind is not None and (len(found) > SEVERAL or not there.members)
        alike.setdefault((kind, *key[2:]) if folded else key, []).append(there)
    places = []
    for place, together in alike.items():
        *_, at, how, attempt = place
        doing = together[0].doing.text
        if any(one.text != doing for one in together[0].members.values()):
            doing += " (numbers differ)"
        members = tuple(sorted(process for there in together for process in there.members))
        reported = [more for there in together for more in there.reported]
        named = together[0].doing.named
        briefly = () if named is None else _brief(case.trace, *named)
        if len(together) > 1 or not members:
            doing, briefly = _in_groups(case, together), ()
        every = (one for there in together for one in (there.doing, *there.members.values()))
        longest = max(one.age_ns for one in every)
        waits = bool(waiting & set(members))
        ends = [case.ends[process] for process in members or reported[0].like]
        word = state(max(ends, key=lambda end: (not end.told_to_end, end.silent_ns or 0)))
        ranks = tuple(rank for more in reported for rank in more.ranks)
        culprit = not culprits.isdisjoint(members)
        places.append(
            RankPlace(
                doing, at, how, word, members, longest, culprit, waits, briefly, attempt, ranks
            )
        )
    return sorted(
        places,
        key=lambda p: (
            not p.culprit,
            not p.waits,
            not first & set(p.processes),
            p.count,
            p.processes,
        ),
    )


def _kind(case: Case, op: Op | None, *, apart: bool = False) -> tuple[str, str] | None:
    """What operations in groups of one kind share, as all tensor-parallel ones of a mesh;
    ``apart``: of groups that are known by name alone."""
    if op is None or op.call.kind != "collective" or op.call.group is None:
        return None
    group = case.trace.groups[op.call.group]
    return (op.call.op, group.desc or "") if apart or (group.desc and not group.default) else None


def _in_groups(case: Case, together: Sequence[_There]) -> str:
    """``in all_reduce #8 of 32 groups (tp)``."""
    ops = [there.doing.op for there in together if there.doing.op is not None]
    numbers = {op.seq for op in ops}
    number = f" #{ops[0].seq}" if len(numbers) == 1 and ops[0].seq is not None else ""
    every = (one.op for there in together for one in there.members.values())
    count = len({op.call.group for op in every if op is not None})
    count += sum(there.more for there in together)
    desc = case.trace.groups[ops[0].call.group or 0].desc
    return f"in {ops[0].call.op}{number} of {count} groups" + (f" ({desc})" if desc else "")


def _fresh(case: Case, index: int) -> Op | None:
    """The exchange that holds the main thread, although not for long enough to count as a wait."""
    end = case.ends[index]
    # Of some that are over nothing but that is known.
    over = end.over and (end.how != SILENT or case.evidence.stands(index) is None)
    if end.held is not None or over:
        return None
    own = (op for op in case.evidence.blocking if (op.process, op.thread) == (index, 0))
    open_ = (op for op in own if op.call.kind in _EXCHANGES and op.pending)
    return next((op for op in open_ if not op.on_device), None)


_EXCHANGES = ("collective", "message", "constructor")


def _doing(case: Case, index: int) -> _Doing:
    evidence, trace = case.evidence, case.trace
    waits = case.of_process.get(index)
    op = waits[0].op if waits else _fresh(case, index)
    if op is not None:
        where = frame(op)
        at = "" if where is None else sentences.is_at(where)
        return _Doing(_named(trace, "in", op), at, evidence.waited_ns([op]) or 0, op, ("in", op))
    end = evidence.ends[index]
    if end.over and end.how != SILENT:
        gone = end_of(evidence, index)
        text = ended(gone).removeprefix(f"{end.state} with ")  # the state stands beside it
        raised = None if gone.failure is None else evidence.whereabouts(index)
        at = "" if raised is None else sentences.is_at(raised)
        return _Doing("" if text == ENDED else text, at, pattern=pattern(gone))
    sample = evidence.stands(index)
    if end.held is not None or sample is not None or end.over:
        since = 0
        last = case.last(index)
        if sample is not None and last is not None and not end.over:
            since = max(0, evidence.cut_ns - (last.end_ns or last.begin_ns))
        at = "" if sample is None else sentences.is_at(sample, evidence.inside(index))
        if end.interrupted and sample is None:
            at = "" if (place := evidence.whereabouts(index)) is None else sentences.is_at(place)
        silent = ended(end_of(evidence, index)) if end.over and sample is None else NOWHERE
        doing = HELD.get(end.held or "", silent)
        return _Doing(f"by {BY}" if end.state == STOPPED else doing, at, since)
    last = case.last(index)
    if last is None:
        return _Doing("no operation yet")
    done = "in" if last.pending else "last"
    at = sentences.line(last)
    return _Doing(_named(trace, done, last), at, named=(done, last))


def _named(trace: JobTrace, done: str, op: Op, *, brief: bool = False) -> str:
    return f"{done} {sentences.operation(trace, op, brief=brief)}"


def _brief(trace: JobTrace, done: str, op: Op) -> tuple[str, ...]:
    """Of the default group the short name states all that the long one does."""
    group = trace.group_of(op.call)
    brief = _named(trace, done, op, brief=True)
    return (brief,) if group is not None and group.default else (_named(trace, done, op), brief)


MOST = 2
"""Ranks of which a summary states what they do."""
SHOWN = 1_000_000
"""Bytes that are worth a word."""
NEAR_S, OF_LIMIT = 60.0, 4
"""So long before a time limit strikes, and that part of it at most, who is at work is late."""


def outlook(case: Case, finding: RuleFinding) -> RuleFinding:
    """The finding with what the missing do and the time left; a warning while all are at work."""
    starts = finding.severity == NOTE and is_start(finding)
    if not starts and (finding.kind not in ABOUT_WAITS or finding.severity != ERROR):
        return finding
    waits = [w for p in finding.waiting for w in case.at(p)]
    open_waits = [w for w in waits if w.op.error is None]
    found = deadline(case.evidence, [w.op for w in open_waits])
    missing = finding.culprits or tuple(sorted(finding.scope.roots))
    if not waits or starts or finding.kind == "no_progress" or not missing:
        return replace(finding, deadline=found)
    since_ns = min(w.op.since_ns for w in waits)
    until_ns = max(w.op.end_ns or case.evidence.cut_ns for w in waits)
    done = tuple(
        activity(case.evidence, p, since_ns, until_ns, frozen_ns(case, p))
        for p in case.by_rank(missing)
        if case.ends[p].exit_word is None  # what became of it (exec) is not its doing
    )
    text_of = " ".join(_sentence(case, one) for one in done[:MOST] if one.usage is not None)
    finding = replace(
        finding,
        activity=done,
        deadline=found,
        summary=f"{finding.summary} {text_of}" if text_of else finding.summary,
    )
    lives = len(done) == len(missing)
    lives &= all(case.ends[p].how in (ALIVE, SILENT) for p in missing)
    works = lives and len(open_waits) == len(waits) and all(one.state == MOVES for one in done)
    if not works or finding.absent_ranks or any(w.absent for w in waits):
        return finding
    now_s = case.evidence.cut_ns / 1e9
    near = found is not None and found.at_s - now_s < near_s(found.limit_s)
    hint = (
        "Nothing stands still, unless this never ends. If it takes longer than the time limit"
        " allows, have all ranks do that work, or allow more time: timeout= of the group, or"
        " disttrace.allow(minutes) on all ranks."
    )
    return replace(finding, severity=ERROR if near else WARNING, hint=hint)


def near_s(limit_s: float) -> float:
    """So long before a time limit strikes it is near."""
    return min(NEAR_S, limit_s / OF_LIMIT)


def marks(findings: Iterable[RuleFinding]) -> list[float]:
    """Unix times to report the first limit again: at its half, and when it is near."""
    limit = next((f.deadline for f in findings), None)
    if limit is None:
        return []
    return [limit.at_s - limit.limit_s / 2, limit.at_s - near_s(limit.limit_s)]


def _sentence(case: Case, one: RankActivity) -> str:
    """``Rank 0 is at work in tokenize at data.py:12: 97 % of a core in the last 10 s.``"""
    usage = one.usage
    assert usage is not None
    now = case.evidence.live
    subject = sentences.subject(case.trace, [one.process])
    at = f" at {sentences.is_at(one.lines[0])}" if one.lines else ""
    over = sentences.span(usage.over_ns)
    share = f"{one.cpu:.0%} of a core".replace("%", " %")
    if one.state == STANDS:
        cpu = "no CPU time" if usage.cpu_ns < usage.over_ns / 100 else share
        ended = "; a process that it started has ended badly" * usage.failed
        return f"{subject} {'stands' if now else 'stood'}{at}, {cpu} for {over}{ended}."
    if one.state == SPINS:
        verb = "spins" if now else "spun"
        return f"{subject} {verb}{at}: {share} for {over}, without any effect."
    if one.state != MOVES:
        return ""
    counts = {"read": usage.read, "written": usage.written, "received": usage.received}
    moved = [f"{size(n)} {word}" for word, n in counts.items() if n is not None and n >= SHOWN]
    used = ", ".join([share, *moved])
    place = one.lines[0] if one.lines else None
    if place is not None:
        function = "" if place.function == "<module>" else f" in {place.function}"
        at = f"{function} at {sentences.place(place)}"
    of = ", with processes that it started" if usage.others else ""
    return f"{subject} {'is' if now else 'was'} at work{at}: {used} in the last {over}{of}."


def time_left(case: Case, finding: RuleFinding) -> str | None:
    """``gloo's limit of 30 min ends this in 19:40, at 17:12:05: then gloo raises ...``."""
    limit = finding.deadline
    left_s = 0 if limit is None else round(limit.at_s - case.evidence.cut_ns / 1e9)
    if limit is None or left_s <= 0 or not case.evidence.live:
        return None
    minutes, seconds = divmod(left_s, 60)
    at = clock_time(round(limit.at_s) * 10**9).rpartition(" ")[2]
    given = f"{limit.limit_s:g} s"
    if limit.limit_s >= 60 and limit.limit_s % 60 == 0:
        given = f"{limit.limit_s / 60:g} min"
    return (
        f"{limit.what} of {given} ends this in {minutes}:{seconds:02d}, at {at}: then {limit.then}."
    )
