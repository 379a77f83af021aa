"""What makes a note of a finding: a handled error, an attempt that is over, others get on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from disttrace_viewer.analysis.process_ends import ALIVE, CASCADE, CLEAN, OWN, SILENT
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.evidence import mismatches
from disttrace_viewer.evidence.polling import ASKED_NS
from disttrace_viewer.evidence.recorded import STUCK_NS
from disttrace_viewer.evidence.wait import KEY, Wait
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, NOTE, RuleFinding
from disttrace_viewer.findings.rules.outside import OF_ABSENCE
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.operation import GROUPED, Op, is_connection_error
from disttrace_viewer.trace.process import Failure, Process
from disttrace_viewer.trace.values import replace, together
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import LEFTOVER, MAY_END, raised

_KINDS = mismatches.KINDS | {
    *("missing_participant", "size_mismatch", "unmatched_send", "unmatched_recv", "deadlock"),
    *("store_key_missing", "rendezvous_incomplete", "group_mismatch"),
}


def with_handled(case: Case, finding: RuleFinding) -> RuleFinding:
    """A finding with what those to blame handle; where none is, with what anybody does."""
    if finding.severity != ERROR or finding.kind not in _KINDS:
        return finding
    about = finding.culprits or (*sorted(finding.scope.roots), *finding.waiting)
    found = dict(_handled(case, dict.fromkeys(about)))
    new = {p: one for p, one in found.items() if raised(one) not in finding.summary}
    if not new:
        return finding
    trace = case.trace
    at = {p: f"{raised(one)}{sentences.aside(innermost(one.stack))}" for p, one in new.items()}
    alike = together((what, process) for process, what in at.items())
    texts = [
        f"{sentences.subject(trace, who)} handle{'s' * (len(who) == 1)} {what} there."
        for what, who in alike.items()
    ]
    hint = (
        f"Find why {sentences.processes(trace, new)} raised {sentences.listed([*alike])}. What runs"
        " in `except`, `finally` and at the end of a `with` runs on the ranks that raised alone: do"
        " not communicate or wait there where the others are elsewhere."
    )
    return replace(
        finding,
        summary=" ".join([finding.summary, *texts]),
        hint=hint if {*finding.culprits} <= {*new} else finding.hint,
    )


def _handled(case: Case, processes: Iterable[int]) -> Iterator[tuple[int, Failure]]:
    """What their main threads handle where they are; lost peers are an effect and no reason."""
    for process in processes:
        if case.ends[process].failure is not None:
            continue  # that is reported, and of what it was raised from
        for failure in case.trace.processes[process].handling:
            kept = case.sample.of_process.get(process, ())
            moved = any(op.thread == 0 and op.begin_ns > failure.t_ns for op in kept)
            if failure.thread == 0 and not moved and not is_connection_error(failure.chain[0]):
                yield process, failure


_LEFT_OVER = {
    *("duplicate_rank", "missing_participant", "no_progress", "process_failed"),
    "rendezvous_incomplete",
}
"""What those run into who meet in such a place."""


def traced_to(case: Case, findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """The findings, with a store's file, or its keys, that an earlier run left as the cause."""
    about = [f for f in findings if f.severity == ERROR and f.kind in _LEFT_OVER]
    if not about:
        return [*findings]
    before = {stuck: [*met_before(case, stuck=stuck)] for stuck in (False, True)}
    constructors = case.rendezvous.constructors
    broken = [(op.process, one.place) for op, one in constructors if op.pending or op.error]
    left = [
        (store, {p for p, place in broken if place == case.trace.place_of(store.call)})
        for store in _left_over(case)
    ]
    found = []
    for one in findings:
        concerned = {*one.culprits, *one.waiting, *one.scope.members} if one in about else {-1}
        met = before[one.kind == "no_progress"]
        attempt = next((attempt for op, attempt in met if op.process in concerned), None)
        store = next((store for store, inside in left if inside & concerned), None)
        found.append(_traced(one, attempt, store))
    return found


def _traced(finding: RuleFinding, attempt: int | None, store: Op | None) -> RuleFinding:
    if attempt is not None:
        what = (
            f"attempt {attempt} made this group under the same keys of the same store, which still"
            " holds its addresses."
        )
        hint = (
            "Give each attempt keys of its own: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun,"
            " or a PrefixStore with TORCHELASTIC_RESTART_COUNT in its name."
        )
    elif store is not None:
        path = store.call.args.get("path")
        what = f"{path} is left over from an earlier run: the file still holds its addresses."
        hint = "Delete that file before each run, or give each run a file of its own (init_method)."
    else:
        return finding
    summary = f"{finding.summary.removesuffix('.')}; {what}"
    return finding.doubted(LEFTOVER, summary=summary, hint=hint, culprits=())


def _left_over(case: Case) -> Iterator[Op]:
    """Constructors of stores whose file was written before the first who uses it had begun."""
    processes, gone = case.trace.processes, case.evidence.followed
    made = [one for one in case.rendezvous.constructors if one[0].call.op == "FileStore"]
    # Two runs are in one place where clocks do not part them.
    users = [(one.place, processes[one.process]) for one in case.trace.stores if made]
    starts = together(((place, p.job), p.start_ns) for place, p in users if p.index not in gone)
    began = {key: min(of) for key, of in starts.items()}
    for op, store in made:
        written = op.call.args.get("written")
        if not isinstance(written, int) or op.process in gone:
            continue
        if written < began[store.place, processes[op.process].job]:
            yield op


def met_before(case: Case, *, stuck: bool = False) -> Iterator[tuple[Op, int]]:
    """Groups that broke while they were made (``stuck``: or still are), where an earlier attempt of
    the launcher made one under the same keys of one store: what it set is found first."""
    made: dict[Hashable, int] = {}
    broken: list[tuple[Hashable, Op]] = []
    again = any(process.attempt for process in case.trace.processes)
    for op, store in case.rendezvous.constructors if again else ():
        attempt = case.trace.processes[op.process].attempt
        if attempt is None or not op.call.op.startswith("ProcessGroup"):
            continue
        key: Hashable = (store.place, store.prefix, case.trace.processes[op.process].parent)
        # One in flight may wait for a rank that does not come.
        if op.error is not None or (stuck and op.pending):
            broken.append((key, op))
        elif not op.pending:
            made[key] = min(attempt, made.get(key, attempt))
    for key, op in broken:
        before = made.get(key)
        if before is not None and before < (case.trace.processes[op.process].attempt or 0):
            yield op, before


def resolved(case: Case, finding: RuleFinding) -> RuleFinding:
    """The finding, as a note where all concerned are of an attempt whose successor ended well."""
    attempt, later = attempts(case, finding)
    if finding.severity != ERROR:
        return finding
    failed, starter = finding.summary.rstrip("."), _went_on(case, finding)
    if starter is not None:
        label = sentences.processes(case.trace, [starter])
        summary = (
            f"One of several runs that {label} started failed ({failed}); later ones, and {label}"
            " itself, ended well."
        )
        hint = (
            "The program went on without that run. If a failed run must count as a failure, let the"
            " program exit with another code."
        )
    elif later is not None and _ran_to_its_end(case, later, _launchers(case, finding)):
        summary = f"Attempt {attempt} failed ({failed}); attempt {later} ran to its end."
        hint = (
            "Nothing is lost but the time of that attempt; if it comes again, read why it failed."
        )
    else:
        return finding
    return replace(finding, severity=NOTE, summary=summary, hint=hint)


def attempts(case: Case, finding: RuleFinding) -> tuple[int | None, int | None]:
    """The attempt of all concerned, and the last one that all their launchers began after it."""
    own = {case.trace.processes[i].attempt for i in (*finding.culprits, *finding.waiting)}
    if len(own) != 1 or None in own:
        return None, None
    (attempt,) = own
    launchers = (one for one in _launchers(case, finding) if one in case.trace.children)
    last = [_last(case.trace, launcher) for launcher in launchers]
    return attempt, max(last) if last and min(last) > (attempt or 0) else None


def _went_on(case: Case, finding: RuleFinding) -> int | None:
    """The process that started all concerned as ranks, then others who all ended well, and ended
    well itself (a sweep); no launcher, whose end counts its attempts."""
    concerned = [case.trace.processes[i] for i in (*finding.culprits, *finding.waiting)]
    parents = {one.parent for one in concerned}
    starter = case.trace.by_id.get(parents.pop() or "") if len(parents) == 1 else None
    if starter is None or starter.is_agent or case.ends[starter.index].how != CLEAN:
        return None
    over_ns = max(case.ends[one.index].t_ns for one in concerned)
    begun = (case.trace.processes[i] for i in case.trace.children[starter.id])
    later = [p for p in begun if p.rank is not None and p.start_ns > over_ns]
    return starter.index if _ended_well(case, later) else None


def _ended_well(case: Case, ranks: Sequence[Process]) -> bool:
    """Whether these are all ranks of a job, and each ended as if all were well."""
    size = max((p.world_size or 0 for p in ranks), default=0)
    whole = size > 0 and {p.rank for p in ranks} == {*range(size)}
    return whole and all(case.clean(p.index) for p in ranks)


def _ran_to_its_end(case: Case, attempt: int, launchers: set[str]) -> bool:
    known = [case.trace.by_id.get(launcher) for launcher in launchers]
    ends = {None if one is None else case.ends[one.index].how for one in known}
    if ends == {CLEAN} or ends & {OWN, CASCADE}:
        return ends == {CLEAN}
    # Nothing tells of a launcher's end; that of the whole job is in all ranks of its last attempt.
    processes = case.trace.processes
    ranks = [p for p in processes if p.attempt == attempt and p.rank is not None]
    return attempt == max(p.attempt or 0 for p in processes) and _ended_well(case, ranks)


def _launchers(case: Case, finding: RuleFinding) -> set[str]:
    """Ids of the processes that started those concerned, whose journals may be lost; an empty one
    for which nothing traced has started. Who was killed with its node begins nothing anew: in its
    place those count that started the others of that attempt, as a job may go on with fewer nodes.
    """
    trace = case.trace
    concerned = [trace.processes[i] for i in (*finding.culprits, *finding.waiting)]
    found = {one.parent or "" for one in concerned}
    if not any(_killed_in(case, one.parent, one.attempt) for one in concerned):
        return found
    tries = {(one.job, one.attempt) for one in concerned}
    together = [p for p in trace.processes if p.role == "worker" and (p.job, p.attempt) in tries]
    return {p.parent or "" for p in together if not _killed_in(case, p.parent, p.attempt)}


def _killed_in(case: Case, launcher: str | None, attempt: int | None) -> bool:
    """Whether a launcher has gone without a word, and began nothing after this attempt."""
    one = case.trace.by_id.get(launcher or "")
    if one is None or case.ends[one.index].how != SILENT:
        return False
    return _last(case.trace, one.id) <= (attempt or 0)


def _last(trace: JobTrace, launcher: str) -> int:
    """The last attempt that a launcher began."""
    return max(trace.processes[i].attempt or 0 for i in trace.children[launcher])


KINDS = OF_ABSENCE | {"store_key_missing"}
"""Kinds that are about a rank that does not come."""
ABOUT_WAITS = KINDS | {"rendezvous_incomplete", "no_progress"}
"""Kinds of what may still come about."""
_ROUNDS = 3
"""So many exchanges of one sort are more than a step on the way to somewhere else."""


def as_note(case: Case, finding: RuleFinding) -> RuleFinding:
    """The finding, as a note where every rank that is waited for gets on."""
    if finding.severity != ERROR or finding.kind not in KINDS or finding.absent_ranks:
        return finding
    waits = [w for w in case.open() if w.exchange in finding.scope.exchanges]
    if not waits or any(w.op.error is not None or w.absent or w.behind for w in waits):
        return finding
    since_ns = min(w.op.since_ns for w in waits)
    awaited = {p for wait in waits for p in _awaited(case, wait)} - {w.process for w in waits}
    if not awaited or not all(_gets_on(case, p, since_ns) for p in awaited):
        return finding
    hint = (
        "No rank is stuck: those that are waited for still make other calls. If this wait is not"
        " intended, see whether they reach this call, or skipped it."
    )
    return finding.doubted(MAY_END, severity=NOTE, hint=hint, culprits=())


def is_waiting(finding: RuleFinding) -> bool:
    """Whether a finding is such a note."""
    return finding.severity == NOTE and finding.kind in {*KINDS, "waiting_for_input"}


def _awaited(case: Case, wait: Wait) -> Iterator[int]:
    """All that a rank waits for, or that may set the key that it waits for."""
    yield from wait.targets
    if wait.kind == KEY and wait.unknown and isinstance(wait.exchange, tuple):
        yield from case.setters.able(str(wait.exchange[1]))


def _gets_on(case: Case, process: int, since_ns: int) -> bool:
    """Whether a process exchanges something with others again and again: long after others began to
    wait it came through a call, or is in one that it has come through before, and that not for so
    long that it stands still itself.
    """
    end = case.ends[process]
    lives = end.how == ALIVE and end.held is None and process not in case.evidence.timeless
    if not lives and not (end.how == SILENT and process in case.cut_off):
        return False
    kept = [op for op in case.sample.of_process.get(process, ()) if op.call.kind in GROUPED]
    of_main = [op for op in kept if op.thread == 0]  # else of the thread that communicates
    op = max(of_main or kept, key=lambda one: one.number, default=None)
    if op is None or op.error is not None or op.begin_ns - since_ns < STUCK_NS:
        return False
    limit_ns = max(case.evidence.stalled_after_ns, ASKED_NS)
    if op.end_ns is None:
        return case.evidence.longest_ns(op) > 0 and case.evidence.age_ns(op) < limit_ns
    return (op.seq or 0) >= _ROUNDS and case.evidence.until_ns(process) - op.end_ns < limit_ns
