"""Works out verdicts on a job that stands still: ``python -m ... DIR JOB PREFIX STALL_S``.

It answers each line on standard input with one line of JSON. A child of the companion, so that
what reading and judging take of memory, and whatever goes wrong in it, is gone when it ends. It
judges states (``states/``): of each journal the end is read, of the suspects' all, and nothing is
needed beyond what the recorder needs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from disttrace.journal.format import DEFS_SUFFIX, OPS_SUFFIX
from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.diagnosis.positions import positions
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import ERROR, Finding
from disttrace_viewer.merge.jobs import closure
from disttrace_viewer.states.job import judged
from disttrace_viewer.wording import quantities

MOST_FINDINGS = 3
MOST_POSITIONS = 4
HABIT = 2
"""Who has waited at a place for so long before is given as many times that."""
SOONEST_S = 0.3
LONGEST_LINE = 400


def verdict(directory: str, job: str, prefix: str, stall_s: float) -> dict[str, Any]:
    """What is to be said now.

    ``signature`` tells one picture from another and is empty where nothing is stalled; ``lines``
    are for stderr, ``text`` is the whole report; ``voices`` are ids of processes of this host that
    may speak, best first, and none where another host has the word; ``waiting`` says that somebody
    waits, ``pids`` are the processes of this host, ``next_s`` says when the longest of these waits
    reaches the limit.
    """
    judgement = judged(
        journals(directory, prefix),
        choose=lambda jobs: [one.id for one in closure(jobs, [job])],
        stall_ns=round(stall_s * 1e9),
    )
    case, found, trace = judgement.case, judgement.findings, judgement.case.evidence.trace
    errors = [f for f in found if f.severity == ERROR and not _habitual(case, f)]
    ages = [case.evidence.age_ns(op) / 1e9 for op in case.evidence.blocking]
    rest = [stall_s - age for age in ages if age < stall_s]
    return {
        "signature": [[f.kind, sorted(f.culprits), f.group, f.seq, f.key] for f in errors],
        "lines": _lines(case, errors, directory),
        "going_on": f"{quantities.number(len(trace.processes), 'process', 'processes')}"
        " of the job communicate again.",
        "text": "\n".join(judgement.lines()) + "\n",
        "voices": _voices(case),
        "pids": [p.pid for p in trace.processes if p.pid and case.evidence.look(p).alive],
        "waiting": bool(ages),
        "next_s": max(SOONEST_S, min(rest, default=stall_s)),
    }


def journals(directory: str, prefix: str) -> list[str]:
    """The files of the job's journals: other jobs in the folder are nobody's business here."""
    return [
        os.path.join(directory, name)
        for name in os.listdir(directory)
        if name.startswith(prefix) and name.endswith((DEFS_SUFFIX, OPS_SUFFIX))
    ]


def _habitual(case: Case, finding: Finding) -> bool:
    """Whether all who wait have waited at that place for about as long before: a checkpoint."""
    waits = [case.of_process[p][0] for p in finding.waiting if case.of_process.get(p)]
    return bool(waits) and all(
        case.evidence.age_ns(w.op) < HABIT * case.evidence.longest_ns(w.op) for w in waits
    )


def _lines(case: Case, found: list[Finding], directory: str) -> list[str]:
    """At most ten lines, whatever the number of ranks."""
    if not found:
        return []
    said = [f"stalled: {found[0].summary}"]
    said += [f"also: {finding.summary}" for finding in found[1:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        said.append(f"and {len(found) - MOST_FINDINGS} more findings")
    where = positions(case, found)
    said += [f"  {line}" for line in where[:MOST_POSITIONS]]
    if len(where) > MOST_POSITIONS:
        said.append(f"  and {len(where) - MOST_POSITIONS} more places")
    if found[0].hint is not None:
        said.append(found[0].hint)
    said.append(f"more: disttrace diagnose {directory}")
    return [
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..." for line in said
    ]


def _voices(case: Case) -> list[str]:
    """Who may speak: torchrun's agent, else the lowest rank; nobody if that is on another host."""
    evidence = case.evidence
    living = [p for p in evidence.trace.processes if evidence.ends[p.index].how == ALIVE]
    living.sort(key=lambda p: (p.role != "agent", p.rank is None, p.rank or 0, p.start_ns))
    here = [p for p in living if evidence.look(p).alive]
    if not here or here[0].host != living[0].host:
        return []
    return [p.id for p in here]


def main(argv: list[str]) -> None:
    """Answer until standard input ends."""
    directory, job, prefix, stall_s = argv
    for _ in sys.stdin:
        print(json.dumps(verdict(directory, job, prefix, float(stall_s))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
