"""What the page says of the whole run: what it would have taken otherwise, and its critical path.

The same answers as ``disttrace stats`` gives, in the same words.
"""

from __future__ import annotations

from typing import Any

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.analysis.timing.critical_path import critical_path
from disttrace_viewer.analysis.timing.schedule import Schedule
from disttrace_viewer.analysis.timing.wait_states import WaitStates
from disttrace_viewer.analysis.timing.what_if import WhatIf
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views import tables
from disttrace_viewer.wording.what_if import WHAT_IF, left_out, path_note, stretch

STRETCHES = 100
"""Of the critical path; the rest is one row."""
OPERATIONS = 500_000
"""Of more operations a page does not work this out, which takes longer than the page itself."""


def gains(trace: Trace, exchanges: Exchanges) -> dict[str, Any] | None:
    """``what_if`` and ``path``: a note, and rows, largest first; None where the run is too long."""
    if trace.operations.height > OPERATIONS:
        return None
    lines = tables.calls(trace, {"line"}).select("call", "line")
    schedule = Schedule(WaitStates(exchanges), lines)
    what_if = WhatIf(schedule)
    path = critical_path(schedule)
    whole = int(path["time_ns"].sum())
    return {
        "what_if": {
            "note": WHAT_IF,
            "rows": [
                {
                    "text": left_out(what_if, one, trace),
                    "rank": one.without.rank,
                    "line": one.without.line,
                    "host": one.without.host,
                    "wall": one.wall_ns,
                    "saved": one.saved_ns,
                    "share": one.saved_share,
                }
                for one in what_if.best
            ],
        },
        "path": {
            "note": path_note(whole),
            "rows": [
                {
                    "process": row["process"],
                    "text": stretch(row),
                    "line": row["line"],
                    "time": row["time_ns"],
                    "share": row["time_ns"] / whole,
                }
                for row in path.head(STRETCHES).to_dicts()
            ],
            "rest": int(path.slice(STRETCHES)["time_ns"].sum()),
        },
    }
