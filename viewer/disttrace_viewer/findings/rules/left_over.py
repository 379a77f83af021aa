"""A rendezvous that an earlier run has left in a file, or an earlier attempt in the store that both
have: its addresses are of processes long gone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording.reasons import LEFTOVER

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


def traced_to(case: Case, findings: Sequence[Finding]) -> list[Finding]:
    """The findings; one about a rendezvous in a file that was written before any of its processes
    began with that file, one about keys that an earlier attempt set too with these, and nobody to
    blame.
    """
    if not any(_may_be(one) for one in findings):
        return [*findings]
    before = {stuck: [*met_before(case, stuck=stuck)] for stuck in (False, True)}
    left = [(store, {op.process for op in _broken(case, store)}) for store in _left_over(case)]
    return [_traced(one, before, left) if _may_be(one) else one for one in findings]


def _may_be(finding: Finding) -> bool:
    return finding.severity == ERROR and finding.kind in KINDS


def _traced(
    finding: Finding,
    before: Mapping[bool, Sequence[tuple[Op, int]]],
    left: Sequence[tuple[Op, Set[int]]],
) -> Finding:
    concerned = {*finding.culprits, *finding.waiting, *finding.scope.members}
    for op, attempt in before[finding.kind == "no_progress"]:
        if op.process in concerned:
            return finding.doubted(
                LEFTOVER, summary=of_attempt(finding.summary, attempt), hint=OWN_STORE, culprits=()
            )
    for store, inside in left:
        if inside & concerned:
            return finding.doubted(
                LEFTOVER,
                summary=summary(finding.summary, str(store.call.args.get("path"))),
                hint=HINT,
                culprits=(),
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
    for op, store in case.rendezvous.constructors:
        written = op.call.args.get("written")
        if op.call.op != "FileStore" or not isinstance(written, int):
            continue
        if op.process in case.evidence.followed:
            continue
        if written < began[store.place, trace.processes[op.process].job]:
            yield op


def met_before(case: Case, *, stuck: bool = False) -> Iterator[tuple[Op, int]]:
    """Groups that broke while they were made, where an earlier attempt of the same launcher made
    one under the same keys of one store: what it set is found before it is set anew. ``stuck``: or
    are still made, though all have come.
    """
    trace = case.evidence.trace
    made: dict[Hashable, int] = {}
    broken: list[tuple[Hashable, Op]] = []
    for op, store in case.rendezvous.constructors:
        attempt = trace.processes[op.process].attempt
        if attempt is None or not op.call.op.startswith(GROUPS):
            continue
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
    place = case.evidence.trace.place_of(store.call)
    for op, theirs in case.rendezvous.constructors:
        if theirs.place == place and (op.pending or op.error is not None):
            yield op


HINT = "Delete that file before each run, or give each run a file of its own (init_method)."

OWN_STORE = (
    "Give each attempt keys of its own: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, or a"
    " PrefixStore with TORCHELASTIC_RESTART_COUNT in its name."
)


def summary(found: str, path: str) -> str:
    """What was found, and where it comes from."""
    return (
        f"{found.removesuffix('.')}; {path} is left over from an earlier run: the file still holds"
        " its addresses."
    )


def of_attempt(found: str, before: int) -> str:
    """What was found, and in which attempt it comes from."""
    return (
        f"{found.removesuffix('.')}; attempt {before} made this group under the same keys of the"
        " same store, which still holds its addresses."
    )
