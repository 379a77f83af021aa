"""Members of a group have other values than the rest, where all have to have the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.evidence.mismatches import minority
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, LIKELY, Finding
from disttrace_viewer.trace.model import Location
from disttrace_viewer.trace.process import Digest
from disttrace_viewer.wording.findings import value_divergence as words

_Kind = tuple[str, str, str | None]


def find(case: Case) -> Iterator[Finding]:
    """Of each group and kind of result the first one that differs."""
    taken: dict[_Kind, dict[int, dict[int, Digest]]] = {}
    for process in case.evidence.trace.processes:
        for one in process.digests:
            of = taken.setdefault((one.group, one.op, one.name), {})
            of.setdefault(one.number, {})[process.index] = one
    for numbers in taken.values():
        for number in sorted(numbers):
            if len({one.value for one in numbers[number].values()}) > 1:
                yield _finding(case, numbers[number])
                break


def _finding(case: Case, digests: dict[int, Digest]) -> Finding:
    trace = case.evidence.trace
    one = next(iter(digests.values()))
    group = trace.group_by_id.get(one.group)
    size = len(digests) if group is None or group.size is None else group.size
    odd = case.by_rank(minority({p: d.value for p, d in digests.items()}, size))
    places = []
    for process in odd or case.by_rank(digests):
        frame = innermost(digests[process].stack)
        if frame is not None:
            places.append(Location.at(process, frame, one.op))
    return Finding(
        kind="value_divergence",
        # That they differ is sure, and not that a majority is right.
        certainty=LIKELY if odd else CERTAIN,
        summary=words.summary(trace, group, one, odd, case.by_rank(digests), places[:1]),
        hint=words.HINT,
        culprits=tuple(odd),
        op=one.op,
        group=one.group,
        seq=None,
        locations=tuple(places),
        at_ns=min(digest.t_ns for digest in digests.values()),
    )
