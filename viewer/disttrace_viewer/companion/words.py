"""Announcements of a stall, and of ranks that call different things, also for a command."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence, Set
from typing import Any

from disttrace_viewer.analysis.liveness import look
from disttrace_viewer.analysis.process_ends import TOGETHER_NS
from disttrace_viewer.diagnosis.job import MOST_COMPARED
from disttrace_viewer.diagnosis.live import living
from disttrace_viewer.diagnosis.positions import places, time_left
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.mismatches import KINDS
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import LIKELY, NOTE, RuleFinding
from disttrace_viewer.load.discover import Files
from disttrace_viewer.merge.jobs import ties
from disttrace_viewer.states import folder
from disttrace_viewer.states.state import Merged, merge
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.views.terminal.diagnosis import lines as report_lines
from disttrace_viewer.wording import names, sentences

MOST_FINDINGS = 3
MOST_POSITIONS = 4
MOST_PROCESSES = 64
LONGEST_LINE = 400


def lines(
    case: Case,
    found: list[RuleFinding],
    directory: str,
    *,
    word: str = "stalled",
    apart: bool = False,
) -> list[str]:
    """At most ten lines. ``word`` comes first; ``apart``: some journals lie on other hosts."""
    if not found:
        return []
    doubted = word in ("stalled", "diverged")
    result = [f"{word}{_marked(found[0])}" if doubted else f"{word}: {found[0].summary}"]
    result += [f"also{_marked(finding)}" for finding in found[1:MOST_FINDINGS]]
    if len(found) > MOST_FINDINGS:
        result.append(f"and {len(found) - MOST_FINDINGS} more findings")
    if (left := time_left(case, found[0])) is not None:
        result.append(left)
    where = [place.line(case) for place in places(case, found)]
    most = MOST_POSITIONS - (left is not None)
    result += [f"  {line}" for line in where[:most]]
    if len(where) > most:
        result.append(f"  and {len(where) - most} more places")
    if found[0].hint is not None:
        result.append(found[0].hint)
    path = shlex.quote(directory)
    first = f" (of all hosts: disttrace collect {path} on each first)" if apart else ""
    result.append(f"more: disttrace diagnose {path}{first}")
    return [
        line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..." for line in result
    ]


def objects(case: Case, found: Sequence[RuleFinding]) -> list[dict[str, Any]]:
    """The same for programs."""
    values = [as_values(case, one) for one in found[:MOST_FINDINGS]]
    keys = ("certainty", "summary", "culprit_ranks")
    return [{**{key: one[key] for key in keys}, "finding": one} for one in values]


def for_command(
    case: Case,
    findings: Sequence[RuleFinding],
    new: Sequence[RuleFinding],
    job: str,
    directory: str,
    elsewhere: Set[str],
) -> dict[str, Any]:
    """What a command needs to act on ``new`` findings: where to look, the whole report, and the
    processes of the first one, culprits first. ``elsewhere``: ids of processes of other hosts."""
    concerned = dict.fromkeys(i for one in new[:1] for i in (*one.culprits, *one.waiting))
    processes = case.evidence.trace.processes
    return {
        "job": job,
        "directory": directory,
        "processes": [
            {
                "id": one.id,
                "rank": one.rank,
                "host": one.host,
                "pid": one.pid,
                "culprit": one.index in new[0].culprits,
                "here": one.id not in elsewhere and bool(look(one).alive),
            }
            for one in (processes[i] for i in [*concerned][:MOST_PROCESSES])
        ],
        "report": "\n".join(report_lines(case, findings)) + "\n",
    }


def those_of(trace: JobTrace, job: Collection[int]) -> tuple[str, int]:
    """``Ranks 0-2``, and how many; launchers count only where none has a rank."""
    ranks = {*trace.ranks_of([i for i in job if not trace.processes[i].is_agent])}
    if ranks:
        return sentences.capital(sentences.ranks(ranks)), len(ranks)
    return f"{names.number(len(job), 'process', 'processes')} of the job", len(job)


def reached(
    case: Case, findings: Sequence[RuleFinding], reported: Collection[str] = ()
) -> set[int]:
    """Processes that more than a name joins to those that findings are about, and to those (ids)
    that were ``reported``: these may print it, and be ended for it. All where there are none.
    """
    trace = case.evidence.trace
    roots = ties(trace.processes, trace.places, trace.groups)
    about = {i for f in findings for i in (*f.culprits, *f.waiting)}
    about |= {p.index for p in trace.processes if p.id in reported}
    met = {roots[i] for i in about}
    return {i for i, root in enumerate(roots) if root in met or not about}


def _marked(finding: RuleFinding) -> str:
    return f"{' (likely)' if finding.certainty == LIKELY else ''}: {finding.summary}"


def announcers(case: Case, elsewhere: Set[str], reached: Set[int], *, anywhere: bool) -> list[str]:
    """Who may speak of those that are ``reached``: torchrun's agent, else the lowest rank; last
    those in which nothing runs now.

    None if another companion has that one, unless that is not known (``anywhere``): of the
    companions who ask each other only the one that leads gets this far.
    """
    evidence = case.evidence
    ends = evidence.ends
    able = [p for p in living(case) if p.index in reached]
    newest = max((p.last_ns for p in able), default=0)

    def order(process: Process) -> tuple[object, ...]:
        held = ends[process.index].held is not None or ends[process.index].lingers
        silent = held or newest - process.last_ns > TOGETHER_NS
        rank = process.rank
        return silent, not process.is_agent, rank is None, rank or 0, process.start_ns

    able.sort(key=order)
    here = [p for p in able if p.id not in elsewhere and evidence.look(p).alive]
    if not here or (here[0] is not able[0] and not anywhere):
        return []
    return [p.id for p in here]


DIVERGENCES = KINDS | {"divergence", "value_divergence"}
"""Reported at once: results are mixed, or about to be."""
MOST_BYTES, MOST_EACH = 16 << 20, 4 << 20
"""Of the ends of journals that are read, together and of each."""


def newest_calls(local: Merged, files: Sequence[Files]) -> Merged:
    """The states of processes of this host with their newest calls."""
    bases = {state.base for state in local.states.values()}
    ours = [one for one in files if one.base in bases][:MOST_COMPARED]
    window = min(MOST_EACH, MOST_BYTES // max(1, len(ours)))
    found = folder.of_journals(ours, window=window, history=True)
    return merge([local, Merged(found.states)])


def divergence(
    found: Verdict,
    known: Sequence[str],
    job: str,
    directory: str,
    elsewhere: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The announcement, as of a stall. ``diverged``: the groups (ids) that it is about; ``known``:
    those that were reported; ``elsewhere``: processes (ids) of other hosts."""
    case = found.case
    new = [f for f in found.findings if f.kind in DIVERGENCES and f.group not in known]
    errors = [f for f in new if f.severity != NOTE]
    return {
        "diverged": sorted({one.group for one in errors if one.group is not None}),
        "lines": lines(case, errors, directory, word="diverged"),
        "objects": objects(case, errors),
        "announcers": announcers(case, elsewhere, reached(case, errors), anywhere=True),
        "alert": for_command(case, found.findings, errors, job, directory, elsewhere),
    }
