"""A rendezvous in a file that an earlier run has left: its addresses are of processes long gone."""

from __future__ import annotations

from collections.abc import Iterator
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
"""What those run into who meet in such a file."""


def traced_to(case: Case, finding: Finding) -> Finding:
    """The finding; of one about a rendezvous in a file that was written before any of its processes
    began with that file, and nobody to blame.
    """
    if finding.severity != ERROR or finding.kind not in KINDS:
        return finding
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.members}
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
