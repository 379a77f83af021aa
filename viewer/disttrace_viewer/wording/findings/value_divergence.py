"""Values that differ where they have to be equal: of what, in whom, since when."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.model import Group, Location, Trace
from disttrace_viewer.trace.process import Digest
from disttrace_viewer.wording import sentences

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
