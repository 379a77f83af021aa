"""A process failed or vanished, and others depend on it: the first failure, not what follows.

What passes on that communication broke is distinguished in ``analysis.process_ends``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from disttrace.journal.format import ABORTED, STOPPED
from disttrace_viewer.analysis.liveness import signal_name
from disttrace_viewer.analysis.process_ends import (
    CASCADE,
    CRASHES,
    MISSED_NS,
    OWN,
    SILENT,
    STOPPED_AGENT,
    TOGETHER_NS,
    End,
)
from disttrace_viewer.analysis.sample import frame, innermost
from disttrace_viewer.evidence.endings import end_of
from disttrace_viewer.evidence.mismatches import minority
from disttrace_viewer.evidence.recorded import STUCK_NS
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, RuleFinding, Scope, why
from disttrace_viewer.findings.rules import outside
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.values import together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.names import parameters, unusual

MOMENT_NS = 2_000_000_000
"""Those who are seen to be gone within this went at one moment."""
_QUOTED = re.compile(r"\'[^\']*\'|\"[^\"]*\"")
_OF_ONE = re.compile(r"[\d/]")
"""In an exception's text what may differ by rank: names in quotes, numbers, paths."""


def find(case: Case) -> Iterator[RuleFinding]:
    """The first failure of its own. Those of one type, line and words are one finding, and crashes
    by one signal after one call; others are findings of their own unless they followed from it."""
    left = [p for p in case.own_failures() if counts(case, p) and not _gave_up(case, p)]
    order = case.by_rank(left + _gone(case))
    order.sort(key=lambda p: case.ends[p].t_ns)
    place = {p: number for number, p in enumerate(order)}
    same = together((_signature(case, process), process) for process in order)
    received = set[int]()
    for first in order:
        if first in received or first in case.end_owner:
            continue
        end = case.ends[first]  # and who fell silent with it, with the same code
        silent = case.witnesses.silent_with(first) if end.how == SILENT else ()
        like = {*same[_signature(case, first)]}
        like |= {p for p in silent if case.ends[p].code == end.code}
        like = {one for one in like if one in place and one not in received}
        alike = sorted(like - case.end_owner.keys(), key=place.__getitem__)
        received.update(alike)
        yield _finding(case, alike)


def counts(case: Case, process: int) -> bool:
    """An agent fails because its workers did, or was stopped; a parent as its children did."""
    mine = case.trace.processes[process]
    failure = case.ends[process].failure
    if mine.is_agent and failure is not None and failure.type == STOPPED_AGENT:
        return False
    return not any(
        case.ends[c].how in (OWN, CASCADE, SILENT) and case.ends[c].t_ns <= case.ends[process].t_ns
        for c in case.trace.children.get(mine.id, ())
    )


def _gave_up(case: Case, process: int) -> bool:
    """Whether a thread ended it (``os._exit``) over a long wait: a watchdog of the program's."""
    end = case.ends[process]
    # The one that it waited for lived until then, or was ended in consequence.
    return end.exit_word == "os._exit" and any(
        case.evidence.age_ns(wait.op) >= STUCK_NS
        and any(case.old(other) for other in case.inside(wait.exchange))
        and any(
            case.outside(t) and (case.ends[t].t_ns >= end.t_ns - TOGETHER_NS or t in case.cut_off)
            for t in wait.targets
        )
        for wait in case.at(process)
    )


def _signature(case: Case, process: int) -> object:
    end = case.ends[process]
    where = innermost(end.asked_at if end.failure is None else end.failure.stack)
    if end.failure is None and where is None:
        if end.code not in CRASHES:
            return process
        last = case.last(process)
        return (end.code, None if last is None else (last.call.op, frame(last)))
    if end.failure is None:
        return (end.code, where and (where.file, where.line))
    words_of = frozenset(
        word for word in _QUOTED.sub("", end.failure.text).split() if not _OF_ONE.search(word)
    )
    return (end.failure.type, where and (where.file, where.line), words_of)


def _gone(case: Case) -> list[int]:
    """Processes that stopped without an exit record, where that was what broke the job.

    A process that others wait for in vain while its connections stay open has not ended: whatever
    ended it came later, and most often the whole job was ended.
    """
    evidence = case.evidence
    broken = {
        p.index
        for p in evidence.trace.processes
        if p.is_rank and (evidence.ends[p.index].how in (OWN, SILENT) or p.index in case.end_owner)
    }
    silent = {
        i
        for i, end in enumerate(evidence.ends)
        if end.how == SILENT
        and not end.interrupted
        and (not end.told_to_end or (broken <= {i} and _singled_out(case, i)))
        and not evidence.trace.processes[i].is_agent
        and i not in case.end_owner
        and i not in evidence.followed
    }
    return [
        i for i in sorted(silent) if _died(case, i, silent) and not case.witnesses.awaited_before(i)
    ]


def _singled_out(case: Case, process: int) -> bool:
    """Whether its launcher ended it alone, and all others, with journals, broke by its loss."""
    workers = sum(p.is_rank for p in case.trace.processes) + len(case.trace.elsewhere)
    size = max((group.size or 0 for group in case.trace.groups if group.default), default=0)
    return workers >= size and case.witnesses.noticed(process)


def _died(case: Case, process: int, silent: Set[int]) -> bool:
    evidence, witnesses = case.evidence, case.witnesses
    together = silent & witnesses.silent_with(process)
    received = evidence.trace.processes[process].reported
    reported = received is not None and received.event == "failed"
    own = case.at(process)
    if own:
        # It was waiting itself, and most often that is why something ended it. It broke the job
        # where others lost it soon after it had begun to wait.
        soon = all(evidence.age_ns(w.op) < evidence.stall_ns and w.op.error is None for w in own)
        return soon and (reported or witnesses.noticed(process, together))
    if reported or witnesses.noticed(process, together) or process in evidence.abandoned:
        return True
    if evidence.ends[process].held == STOPPED:
        return False  # it stood still before
    if _after_its_launcher(case, process):
        return False  # the one that ends a job by SIGKILL ends one after the other
    whole = len(together) > 1 and not witnesses.outlived(process, together)
    # One after the other is seen to be gone while those after it still live.
    gone = [ns for p in together if (ns := evidence.seen[p].gone_ns)]
    at_once = whole and gone and max(gone) - min(gone) <= MOMENT_NS
    if evidence.seen_gone(process) and not at_once:
        return True
    if whole:
        return False  # ended from outside, all at one time: what stood before is the verdict
    outlived = evidence.cut_ns - evidence.ends[process].t_ns > MISSED_NS
    return outlived and not witnesses.kept_open(process)


def _after_its_launcher(case: Case, process: int) -> bool:
    """Whether its launcher was gone without a word when it was seen to be gone, or soon after."""
    trace, seen = case.trace, case.evidence.seen
    launcher = trace.parent_of(trace.processes[process])
    if launcher is None or not launcher.is_agent:
        return False
    end = case.ends[launcher.index]
    gone_ns = seen[launcher.index].gone_ns or end.t_ns
    until_ns = seen[process].gone_ns or case.ends[process].t_ns
    return end.how == SILENT and not end.interrupted and gone_ns <= until_ns + TOGETHER_NS


def _finding(case: Case, alike: list[int]) -> RuleFinding:
    """``alike``: in the order in which they failed."""
    end, last = case.ends[alike[0]], case.last(alike[0])
    sure = all(_surely_over(case, process, {*alike}) for process in alike)
    odd = _odd_models(case, alike)
    ops = case.evidence.given.of_process.get(alike[0], ()) if end.failure is not None else ()
    late = (op for op in reversed(ops) if op.thread == 0 and op.pending)
    # What its main thread is in since its exception, which it calls at its end.
    ending = next((o for o in late if end.failure and o.begin_ns >= end.failure.t_ns), None)
    named, of_them = _parameters(case, alike, models=odd is not None)
    others = any(not p.is_agent and p.index not in {*alike} for p in case.trace.processes)
    # Whether none of the others is known to have failed before.
    is_first = others and case.knows("moments", range(len(case.ends)))
    is_first &= not any(f.kind == "process_failed" and f.severity == ERROR for f in case.findings)
    how = summary(case, alike, ending, surely=sure, first=is_first)
    # Theirs is what follows: agents and parents.
    parents = (case.trace.parent_of(case.trace.processes[p]) for p in alike)
    failed = frozenset(p.index for p in parents if p and case.ends[p.index].how == OWN)
    return RuleFinding(
        kind="process_failed",
        summary=" ".join([how, *of_them]),
        because=why((not sure, sentences.ENDED_SILENTLY)),
        hint=hint(end, others=others, ending=ending),
        culprits=tuple(alike) if odd is None else odd,
        op=None if last is None else last.call.op,
        parameters=named,
        locations=outside.locations(case, alike),
        at_ns=end.t_ns,
        scope=Scope.of(roots=alike, members=failed | case.witnesses.broke_after(alike)),
    )


def _surely_over(case: Case, process: int, alike: Set[int]) -> bool:
    """Whether it is known that a process ended, and not by its launcher."""
    end = case.ends[process]
    return not end.told_to_end and (
        end.how != SILENT
        or end.code is not None
        or (case.evidence.alive_here and end.known_dead)
        or case.evidence.seen_gone(process)
        or case.witnesses.noticed(process, alike)
    )


_PARAMETERS = re.compile(
    r"Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params"
)


def _odd_models(case: Case, alike: list[int]) -> tuple[int, ...] | None:
    """Those whose number of parameters, by DDP's error, is outside a strict majority; or None."""
    counts: dict[int, int] = {}
    for process in alike:
        failure = case.ends[process].failure
        found = None if failure is None else _PARAMETERS.search(failure.text)
        if found is None:
            return None
        one, has, two, other = map(int, found.groups())
        counts |= {one: has, two: other}
    odd = minority(counts, len(counts))
    return tuple(p for p in alike if case.trace.processes[p].rank in odd)


def _parameters(
    case: Case, alike: list[int], *, models: bool
) -> tuple[tuple[tuple[int, tuple[str, ...]], ...], list[str]]:
    """By process, the parameters that DDP's error is about, and sentences on them."""
    named = {p: one.parameters for p in alike if (one := case.ends[p].failure) is not None}
    if not models:
        found = tuple((p, names) for p, names in named.items() if names)
        return found, [f"In the model: {parameters(names)}." for _, names in found[:1]]
    if not all(named.values()):
        return (), []
    received = list[str]()
    apart = unusual(named)
    for p, (lacking, beyond) in apart.items():
        parts = [f"lacks, or has frozen, {parameters(lacking)}"] * bool(lacking)
        parts += [f"has {parameters(beyond)} beside the others'"] * bool(beyond)
        label = case.trace.processes[p].label
        received.append(f"The model of {label} {' and '.join(parts)}.")
    return tuple((p, (*lacking, *beyond)) for p, (lacking, beyond) in apart.items()), received


NATIVE = (
    "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or a crash in native"
    " code"
)
"""Where the signal is not known."""
_CRASH = "Look for a crash in native code"
_OF_SIGNAL = {
    "SIGKILL": "Look for the kernel's out-of-memory killer (dmesg), a scheduler's limit, or"
    " a kill -9 by hand",
    "SIGXCPU": "Look for a limit of CPU time: ulimit -t, or a scheduler's",
    "SIGXFSZ": "Look for a limit of the size of files: ulimit -f",
    "SIGALRM": "Look for signal.alarm, or setitimer, without a handler",
    "SIGPIPE": "Look for who read what it wrote (a pipe, a socket), and has ended",
    **dict.fromkeys(
        ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2"),
        "Look for who sent it: a scheduler, a supervisor, or a shell",
    ),
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP"), _CRASH),
    "SIGBUS": f"{_CRASH}, or a full /dev/shm (of a data loader's workers)",
}
_HELPERS = re.compile(
    r"[/\\]torch[/\\](multiprocessing[/\\]reductions|utils[/\\]data[/\\]dataloader)\.py$"
)
_GONE = ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError")


def summary(case: Case, who: Sequence[int], ending: Op | None, *, surely: bool, first: bool) -> str:
    """``Rank 1 failed first: ValueError: no data (fail.py:5)``; ``ending``: what it is in since."""
    trace, end, many = case.trace, end_of(case.evidence, who[0]), len(who) > 1
    where, last = case.evidence.whereabouts(who[0]), case.last(who[0])
    on = f"; {'they live' if many else 'it lives'} on, for another thread still runs" * end.lingers
    if ending is not None:
        on = f"; at {'their' if many else 'its'} end in {sentences.call(trace, ending)}"
    if end.failure is not None and not end.interrupted and end.exit_word != ABORTED:
        at = "" if where is None else sentences.place(where)
        at += sentences.came_about(end.failure, ", " * bool(at))
        return (
            f"{sentences.subject(trace, who)} failed{' first' * first}:"
            f" {sentences.raised(end.failure)}{f' ({at})' * bool(at)}{on}."
        )
    how = sentences.ended(end, many=many, surely=surely)
    at = before = ""
    if where is not None and (end.failure is not None or end.asked_at):
        at = f" at {sentences.is_at(where)}"
    if last is not None and end.failure is None:
        before = f", after {sentences.operation(trace, last)}"
    return f"{sentences.subject(trace, who)} {how}{at}{before}{on}."


def look_for(code: int | None) -> str:
    """What ends a process by this signal (``-9``), or by one that it is not known."""
    return _OF_SIGNAL.get(signal_name(code), NATIVE) if code else NATIVE


def hint(end: End, *, others: bool, ending: Op | None = None) -> str:
    """What to read first; ``others``: there are ranks that did not fail so."""
    if ending is not None:
        return (
            "Read this exception first. What runs after it (sys.excepthook, atexit) runs on the"
            " ranks that raised alone: do not communicate or wait there."
        )
    if end.lingers:
        return (
            "Read this exception first. The process does not end, because a thread that is no"
            " daemon still runs: end it, or make it a daemon."
        )
    failure = end.failure
    if failure and failure.type in _GONE and any(_HELPERS.search(f.file) for f in failure.stack):
        return (
            "The other end of this connection is a process of this host that passes tensors, mostly"
            " a worker of the rank's DataLoader, and it has ended: look at its output, for the"
            " out-of-memory killer (dmesg), and whether /dev/shm is full."
        )
    if end.failure is not None:
        rest = "; what the other ranks report follows from it" * others
        return f"Read this exception first{rest}."
    if end.told_to_end:
        return "Find why it was ended while the other ranks were at work."
    if (end.code is not None and end.code < 0) or end.how == SILENT:
        what = look_for(end.code)
        # It writes where the program stood on these signals.
        run = " (run with PYTHONFAULTHANDLER=1)" if "native" in what else ""
        return f"{what}{run}."
    if not others:
        return "All ranks ended with this code: what started them takes it for a failure."
    return "Find who calls exit there; the other ranks were still at work."
