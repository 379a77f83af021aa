"""A process in a kilobyte or two: journals reduced where they lie, states merged anywhere.

``reduce(files)`` gives the state of the process that wrote them, ``merge(states)`` puts states
together in any order, ``verdict(merged)`` finds what is wrong and says it. None of it needs more
than orjson; ``pack`` and ``unpack`` make bytes of a state.
"""

from __future__ import annotations

from disttrace_viewer.states.form.state import State, StateError, pack, unpack
from disttrace_viewer.states.merged import Merged, merge
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.verdict import Verdict, verdict

__all__ = [
    "Merged",
    "State",
    "StateError",
    "Verdict",
    "merge",
    "pack",
    "reduce",
    "unpack",
    "verdict",
]
