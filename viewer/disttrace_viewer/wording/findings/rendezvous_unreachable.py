"""A client dials an address where no traced process listens: who does, and who listens where."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.trace.model import Store, Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended

HINT = (
    "Compare MASTER_ADDR and MASTER_PORT (of nodes: --rdzv-endpoint) of all processes, see that"
    " rank 0 is started, and that no firewall is between the hosts."
)
NO_AGENT = "no agent that listens was seen"
NOT_COME = "rank 0, which should listen, has not come to it"
NOBODY = "nobody claims rank 0, which should listen"
OTHERS_DIAL, NOBODY_DIALS = ", where the others dial", ", where nobody else dials"


def summary(
    trace: Trace, who: Sequence[int], op: Op, store: Store, waited_ns: int, listeners: str
) -> str:
    """``op``: the first of those that dial; ``listeners``: one of the clauses of this file."""
    return (
        f"{sentences.have_been(trace, who)} dialling {store.host}:{store.port}"
        f" ({sentences.line(op)}) for {sentences.span(waited_ns)}, where no traced process"
        f" listens: {listeners}."
    )


def before(trace: Trace, process: int, end: End) -> str:
    """Who listened there, and ended."""
    return f"{trace.processes[process].label} listened there before and {ended(end)}"


def listens(trace: Trace, process: int, store: Store, dialled: str) -> str:
    """Who listens elsewhere, and whom that suits."""
    return f"{trace.processes[process].label} listens at {store.host}:{store.port}{dialled}"


def dials_itself(elsewhere: Store | None) -> str:
    """Rank 0 is a client as well, of the same address or of another one."""
    at = "it" if elsewhere is None else f"{elsewhere.host}:{elsewhere.port}"
    return f"rank 0, which should listen, dials {at} itself"
