"""A process in a kilobyte or two: journals reduced where they lie, states merged anywhere.

``reduce(files)`` gives the state of the process that wrote them, ``merge(states)`` puts states
together in any order, and ``diagnosis.verdict`` judges what was merged. None of it needs more than
orjson; ``pack`` and ``unpack`` make bytes of states.
"""

from __future__ import annotations

from disttrace_viewer.states.merged import Merged, merge
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import State, StateError, pack, unpack

__all__ = ["Merged", "State", "StateError", "merge", "pack", "reduce", "unpack"]
