"""A rendezvous that an earlier run has left in a file, or an earlier attempt in the store that both
have: its addresses are of processes long gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace

from disttrace_viewer.analysis.operation import Op
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, LIKELY, Finding
from disttrace_viewer.wording.findings import left_over as words

KINDS = (
    "duplicate_rank",
    "missing_participant",
    "no_progress",
    "process_failed",
    "rendezvous_incomplete",
)
"""What those run into who meet in such a place."""
GROUPS = "ProcessGroup"
"""How the constructors of backends begin."""


def traced_to(case: Case, finding: Finding) -> Finding:
    """The finding; of one about a rendezvous in a file that was written before any of its processes
    began with that file, of one about keys that an earlier attempt set too with these, and nobody
    to blame.
    """
    if finding.severity != ERROR or finding.kind not in KINDS:
        return finding
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.members}
    stuck = finding.kind == "no_progress"
    for op, before in met_before(case, stuck=stuck):
        if op.process in concerned:
            return replace(
                finding,
                summary=words.of_attempt(finding.summary, before),
                hint=words.OWN_STORE,
                culprits=(),
                certainty=LIKELY,
            )
    for store in _left_over(case):
        inside = {op.process for op in _broken(case, store)} & concerned
        if inside:
            return replace(
                finding,
                summary=words.summary(finding.summary, str(store.call.args.get("path"))),
                hint=words.HINT,
                culprits=(),
                certainty=LIKELY,
            )
    return finding


def _left_over(case: Case) -> Iterator[Op]:
    """Constructors of stores whose file was written before the first who uses it had begun."""
    trace = case.evidence.trace
    began: dict[tuple[str, str], int] = {}
    for store in trace.stores:
        one = trace.processes[store.process]
        if one.index in case.evidence.followed:
            continue
        key = store.place, one.job  # two runs are in one place where clocks do not part them
        began[key] = min(began.get(key, one.start_ns), one.start_ns)
    for op in case.rendezvous.constructors:
        written = op.call.args.get("written")
        if op.call.op != "FileStore" or op.call.store is None or not isinstance(written, int):
            continue
        if op.process in case.evidence.followed:
            continue
        if written < began[trace.stores[op.call.store].place, trace.processes[op.process].job]:
            yield op


def met_before(case: Case, *, stuck: bool = False) -> Iterator[tuple[Op, int]]:
    """Groups that broke while they were made, where an earlier attempt of the same launcher made
    one under the same keys of one store: what it set is found before it is set anew. ``stuck``: or
    are still made, though all have come.
    """
    trace = case.evidence.trace
    made: dict[Hashable, int] = {}
    broken: list[tuple[Hashable, Op]] = []
    for op in case.rendezvous.constructors:
        attempt = trace.processes[op.process].attempt
        if op.call.store is None or attempt is None or not op.call.op.startswith(GROUPS):
            continue
        store = trace.stores[op.call.store]
        key: Hashable = (store.place, store.prefix, trace.processes[op.process].parent)
        # One in flight may wait for a rank that does not come.
        if op.error is not None or (stuck and op.pending):
            broken.append((key, op))
        elif not op.pending:
            made[key] = min(attempt, made.get(key, attempt))
    for key, op in broken:
        before = made.get(key)
        if before is not None and before < (trace.processes[op.process].attempt or 0):
            yield op, before


def _broken(case: Case, store: Op) -> Iterator[Op]:
    """What is in flight, or failed, of the coming together over a store: its own constructor, and
    those of groups made in the same call.
    """
    trace = case.evidence.trace
    place = trace.stores[store.call.store or 0].place
    for op in case.rendezvous.constructors:
        if op.call.store is None or (not op.pending and op.error is None):
            continue
        if trace.stores[op.call.store].place == place:
            yield op
