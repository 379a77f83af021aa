"""Who still imports: the first call of a compiled or functional collective imports half of torch,
which takes a minute where many ranks read from one file server or share few processors.
"""

from __future__ import annotations

from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.evidence.waits.wait import Wait

LIMIT_NS, LIMITS = 60_000_000_000, 6
"""A stall begins so late then, and at most after so many times the usual limit."""
_MOVES_NS = 10_000_000_000
"""An import that stands at one line for longer hangs."""
_IMPORTS = "<frozen importlib"


def limit_ns(evidence: Evidence) -> int:
    """How long those who import are waited for."""
    return max(evidence.stall_ns, min(LIMIT_NS, LIMITS * evidence.stall_ns))


def is_waited_for(evidence: Evidence, wait: Wait) -> bool:
    """Whether all who are missing in a wait import, and it has not lasted too long for that."""
    return (
        bool(wait.targets)
        and not wait.absent
        and evidence.age_ns(wait.op) < limit_ns(evidence)
        and all(_imports(evidence, process) for process in wait.targets)
    )


def _imports(evidence: Evidence, process: int) -> bool:
    sample, end = evidence.samples.get(process), evidence.ends[process]
    return (
        sample is not None
        and end.how == ALIVE
        and end.held is None
        and evidence.cut_ns - sample.t_ns < _MOVES_NS
        and any(frame.file.startswith(_IMPORTS) for frame in sample.stack)
    )
