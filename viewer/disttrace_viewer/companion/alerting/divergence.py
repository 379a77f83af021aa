"""What is said where ranks call different things, before anybody waits for it.

Ranks of a host compare themselves (``disttrace/lifecycle/in_step.py``), companions of several hosts
do (``companion/between/``), and both only suspect. Whether it is so
is told by the rules of ``diagnose`` from the ends of the journals, of which each call is known here
with its arguments, also of exchanges that are over and whose results were mixed.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.companion.alerting.words import for_command, lines, objects, reached, voices
from disttrace_viewer.diagnosis.job import MOST_COMPARED
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.findings.finding import NOTE
from disttrace_viewer.load.discover import Files
from disttrace_viewer.states import folder
from disttrace_viewer.states.merged import Merged, merge
from disttrace_viewer.states.state import State

KINDS = frozenset(
    {
        "divergence",
        "value_divergence",
        "op_mismatch",
        "shape_mismatch",
        "dtype_mismatch",
        "reduce_op_mismatch",
        "root_mismatch",
    }
)
"""What is told at once: results are mixed, or about to be."""
MOST_BYTES, MOST_EACH = 16 << 20, 4 << 20
"""Of the ends of journals that are read, together and of each."""


def newest(local: Merged, files: Sequence[Files]) -> Merged:
    """The states of processes of this host with their newest calls."""
    bases = {state.base for state in local.states.values()}
    ours = [one for one in files if one.base in bases][:MOST_COMPARED]
    window = min(MOST_EACH, MOST_BYTES // max(1, len(ours)))
    found = folder.of_journals(ours, window=window, history=True)
    return merge([local, Merged(found.states)])


@folder.no_cycles()
def judged(
    local: Merged, files: Sequence[Files], others: Sequence[State] = (), look: Look = look
) -> Verdict:
    """The verdict on processes of this host, and on ``others``, by their newest calls."""
    return verdict(merge([newest(local, files), *others]), look=look)


def told(
    found: Verdict, said: Sequence[str], job: str, directory: str, elsewhere: Set[str] = frozenset()
) -> dict[str, Any]:
    """What is to be said of it, as of a stall. ``diverged``: the groups (ids) that it is about;
    ``said``: those of which it was said; ``elsewhere``: processes (ids) of other hosts.
    """
    case = found.case
    new = [f for f in found.findings if f.kind in KINDS and f.group not in said]
    errors = [f for f in new if f.severity != NOTE]
    return {
        "diverged": sorted({one.group for one in errors if one.group is not None}),
        "lines": lines(case, errors, directory, word="diverged"),
        "said": objects(case, errors),
        "voices": voices(case, elsewhere, reached(case, errors), anywhere=True),
        "alert": for_command(case, found.findings, errors, job, directory, elsewhere),
    }
