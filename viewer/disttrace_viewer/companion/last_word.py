"""The last word on a job, for the process that ends it: what it failed of, or that it went on.

What was reported live is repeated where less is known now. The process that ends prints our one
line (``disttrace/lifecycle/last_word.py``).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.companion import activity
from disttrace_viewer.companion.reading import beside, is_alone, of_job
from disttrace_viewer.companion.words import objects, those_of
from disttrace_viewer.diagnosis.announced import (
    FAILED,
    GOING_ON,
    STALLED,
    announced_beside,
    standing,
)
from disttrace_viewer.diagnosis.job import judged
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.findings.finding import ERROR, LIKELY
from disttrace_viewer.load.announcements import keep, path_of
from disttrace_viewer.merge.jobs import closure
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, merge, newest_try
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.values import dataclass

_TOGETHER_S, _LOOK_S = 1.5, 0.1
"""Ranks that went on together end together; of those that live on the companion reports."""
_LONGEST = 32 << 10
"""Bytes of a finding that goes with the line: it names every rank."""


@dataclass(frozen=True, slots=True)
class EndOrder:
    """What the process that ends asks for."""

    directory: str
    job: str
    in_names: str
    """With which the names of the job's files begin."""
    stall_s: float
    process: str
    """The id of the process that asks."""
    failed: bool
    """Whether the job ended badly, as far as that process knows."""
    alone: bool
    """Say nothing while others of the job live here: they end later."""
    root: str
    """The folder of all journals: ``directory``, or what that of one job and host lies in."""


def word(order: EndOrder) -> dict[str, Any] | None:
    """The word, for people and for programs; None: nothing."""
    until = time.monotonic() + (0.0 if order.failed else _TOGETHER_S)
    while True:
        files = of_job(order.root, order.in_names)
        local = newest_try(folder.of_journals(files, window=WINDOW), order.job)
        # Of those that use its store under other names.
        alone = is_alone(trace_of(local)[0])
        beside_us = beside(order.root, order.in_names, local, ()) if alone else ()
        whole = merge([local, Merged({state.id: state for state in beside_us})])
        trace, _ = trace_of(whole)
        if not any(order.process in (p.id, p.parent) for p in trace.processes):
            return None
        others = (p for p in trace.processes if p.id != order.process and p.exit is None)
        ends = not any(look(p).alive for p in others)
        if ends or time.monotonic() > until:
            break
        time.sleep(_LOOK_S)
    if not ends and (order.alone or not order.failed):
        return None
    if order.failed:  # what the verdict rests on is for those who judge later too
        activity.note(trace.processes)
    mine = {p.index for p in trace.processes if order.process in (p.id, p.parent)}
    found = judged(
        of_job(order.root, order.in_names),
        choose=lambda jobs: [
            one.id
            for one in closure(jobs, [j.id for j in jobs if not mine.isdisjoint(j.processes)])
        ],
        stall_ns=round(order.stall_s * 1e9),
        local=local,
        others=Merged({state.id: state for state in beside_us}),
    )
    names = {str(state.process.get("job", order.job)) for state in whole.states.values()}
    return _kept(order, trace, found, sorted(names))


def _kept(
    order: EndOrder, trace: JobTrace, found: Verdict, names: Sequence[str]
) -> dict[str, Any] | None:
    """The word, unless another process of the job has had it. ``names``: of the job."""
    since = min(p.start_ns for p in trace.processes) / 1e9

    def before() -> list[dict[str, Any]]:
        mine = announced_beside(found.bases, found.case.evidence.trace)
        return [one for one in mine if float(one["at"]) >= since]

    def is_reported() -> bool:
        kinds = [one.get("kind") for one in before()]
        return FAILED in kinds or (not order.failed and kinds[-1:] == [GOING_ON])

    values = _values(order, trace, found, before())
    if values is None:
        return None
    one = {"disttrace": 1, "at": time.time(), **values}
    whose = {"process": found.case.evidence.trace.processes[0].id}
    path = path_of(order.directory, names[0], order.root)
    if not keep(path, [{**one, **whose}], is_reported):
        return None
    unsure = " (likely)" if one.get("certainty") == LIKELY and one["kind"] == FAILED else ""
    if len(json.dumps(one)) > _LONGEST:
        one.pop("finding", None)
    return {"lines": [f"{one['kind']}: {one['summary']}{unsure}"], "objects": [one]}


def _values(
    order: EndOrder, trace: JobTrace, found: Verdict, before: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    stands = standing(before)
    first = next((f for f in found.findings if f.severity == ERROR), None)
    if not order.failed:
        over = first is None and not found.incomplete  # an end that is missing: no exchange came
        if stands is None or stands["kind"] != STALLED or not over:
            return None
        who, _ = those_of(trace, range(len(trace.processes)))
        return {"kind": GOING_ON, "summary": f"{who} went on and ended."}
    known = first is not None and bool(first.culprits or first.absent_ranks)
    if stands is not None and not known and (first is None or stands.get("culprit_ranks")):
        return {**stands, "kind": FAILED, "at": time.time()}
    return None if first is None else {"kind": FAILED, **objects(found.case, [first])[0]}


def main(argv: list[str]) -> None:
    """Print the word as one line of JSON, or nothing."""
    found = word(EndOrder(**json.loads(argv[0])))
    if found is not None:
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
