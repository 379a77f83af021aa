"""The verdict on what was read with tables of all operations: the judge's, with what these tell."""

from __future__ import annotations

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.liveness import Look, look
from disttrace_viewer.diagnosis.job import judged
from disttrace_viewer.diagnosis.said import with_said
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.recorded import STALL_NS
from disttrace_viewer.history.past import Read
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace


def verdict_on(
    trace: Trace,
    exchanges: Exchanges | None = None,
    *,
    stall_ns: int = STALL_NS,
    look: Look = look,
) -> Verdict:
    """The verdict on the processes of a trace, which bear the same numbers in it; ``exchanges`` are
    those of the trace, where they are at hand.

    Raises:
        ViewerError: where the journals are not there any more.
    """
    ids = {p.id for p in trace.processes}
    found = looking_back(
        judged(trace.paths, only=ids, stall_ns=stall_ns, look=look), exchanges or Exchanges(trace)
    )
    if found is None:
        raise ViewerError(f"{', '.join(trace.paths)} changed while it was read.")
    return with_said(found)


def looking_back(found: Verdict, exchanges: Exchanges) -> Verdict | None:
    """The verdict with what is over looked at as well; None where others were read than judged."""
    trace = found.case.evidence.trace
    if [p.id for p in trace.processes] != [p.id for p in exchanges.trace.processes]:
        return None
    return found.looking_back(Read(exchanges, trace))
