"""Members of a group have other values than the rest, where all have to have the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.evidence.mismatches import minority
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import Finding, why
from disttrace_viewer.trace.model import Group, Location, Trace
from disttrace_viewer.trace.process import Digest
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.reasons import MAJORITY

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
        because=why((odd, MAJORITY)),
        summary=summary(trace, group, one, odd, case.by_rank(digests), places[:1]),
        hint=HINT,
        culprits=tuple(odd),
        op=one.op,
        group=one.group,
        seq=None,
        locations=tuple(places),
        at_ns=min(digest.t_ns for digest in digests.values()),
    )


HINT = (
    "Only checksums were compared. Before that call look for what one rank does otherwise: another"
    " seed, a step that was left out, an update outside of the optimizer; where the program is the"
    " same, test that host's memory and device. Do not trust what was computed since."
)


def summary(
    trace: Trace,
    group: Group | None,
    one: Digest,
    odd: Sequence[int],
    members: Sequence[int],
    places: Sequence[Location],
) -> str:
    """Who has other values than whom; ``odd``: nobody, where no majority tells."""
    what = f"the result of {one.op}" if one.name is None else f"'{one.name}'"
    where = "" if group is None else f" of {sentences.group(group, trace)}"
    at = f" at {sentences.place(places[0])}" if places else ""
    number = f" in its call {one.number:,}{where}{at}"
    if not odd:
        whom = sentences.processes(trace, members)
        return f"Values differ that have to be equal: {what} is not the same in {whom}{number}."
    rest = sentences.processes(trace, [p for p in members if p not in odd])
    who, have = sentences.subject(trace, odd), sentences.have(odd)
    return f"{who} {have} other values than {rest}, where they have to be equal: {what}{number}."
