"""Processes failed because communication broke: how, and what to look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disttrace_viewer.analysis.operation import frame
from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended

KEEP_SERVER = (
    "Keep the process that serves the store (rank 0) until all others are done: a barrier before it"
    " leaves."
)
WAIT = (
    "Wait for asynchronous work before the process ends (`for work in works: work.wait()`): what is"
    " under way then is lost with it."
)
LIMIT = (
    "See who comes there only after the time-out (`timeout=`, `rpc_timeout=`; 0 gives up at once),"
    " and what keeps it; else look at the network between the hosts."
)
LOOK = (
    "Look for a process that ended without a journal, for the network between the hosts, and at the"
    " first line of each rank's own output."
)


def summary(
    trace: Trace,
    failed: Mapping[int, End],
    broken: Sequence[Op],
    server: tuple[int, End] | None,
    left: Sequence[Op] = (),
    *,
    gave_up: bool,
) -> str:
    """How they failed, in which operations; ``server``: who served their store, and ended;
    ``left``: what others did not wait for before they ended; ``gave_up``: no connection broke, but
    a time-out was over.
    """
    alike = sentences.together((ended(end), process) for process, end in failed.items())
    text = "; ".join(
        f"{sentences.processes(trace, who)} {ended(failed[who[0]], many=len(who) > 1)}"
        for who in list(alike.values())[:3]
    )
    inside = dict.fromkeys(
        f"{sentences.operation(trace, op)}{sentences.aside(frame(op))}" for op in broken
    )
    where = f" in {sentences.listed(list(inside)[:3])}" if inside else ""
    what = "gave up" if gave_up else "lost contact"
    cause = f"no journal says who {'did not come' if gave_up else 'or what broke it'}"
    if server is not None:
        label = trace.processes[server[0]].label
        cause = f"the store that they use was served by {label}, which {ended(server[1])} before"
    if left:
        cause = sentences.listed(
            [
                f"{trace.processes[op.process].label} had ended before without waiting for its"
                f" {sentences.call(trace, op)}"
                for op in left[: sentences.MANY]
            ]
        )
    return f"{sentences.subject(trace, failed)} {what}{where}, and {cause}: {text}."


def hint(server: int | None, left: Sequence[Op], *, gave_up: bool) -> str:
    """What to do about who ended too early, or what to look for."""
    if left:
        return WAIT
    if gave_up:
        return LIMIT
    return LOOK if server is None else KEEP_SERVER
