"""The Python API to read traces: what the commands use, and nothing else of the viewer.

``disttrace.load``, ``disttrace.diagnose`` and ``disttrace.stats`` lead here. What a name stands for
is imported at its first use: a verdict by states needs neither Polars nor the time it takes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disttrace_viewer.api.diff import Diff as Diff
    from disttrace_viewer.api.diff import diff as diff
    from disttrace_viewer.api.reading import Job as Job
    from disttrace_viewer.api.reading import jobs as jobs
    from disttrace_viewer.api.report import Finding as Finding
    from disttrace_viewer.api.report import Location as Location
    from disttrace_viewer.api.report import Position as Position
    from disttrace_viewer.api.report import Report as Report
    from disttrace_viewer.api.statistics import Stats as Stats
    from disttrace_viewer.api.statistics import stats as stats
    from disttrace_viewer.api.trace import Trace as Trace
    from disttrace_viewer.api.trace import load as load
    from disttrace_viewer.api.verdict import diagnose as diagnose
    from disttrace_viewer.load.problems import ViewerError as ViewerError
    from disttrace_viewer.views.prometheus import metrics as metrics
    from disttrace_viewer.views.prometheus import serve as serve

_FROM = {
    "disttrace_viewer.api.diff": ("Diff", "diff"),
    "disttrace_viewer.api.reading": ("Job", "jobs"),
    "disttrace_viewer.api.report": ("Finding", "Location", "Position", "Report"),
    "disttrace_viewer.api.statistics": ("Stats", "stats"),
    "disttrace_viewer.api.trace": ("Trace", "load"),
    "disttrace_viewer.api.verdict": ("diagnose",),
    "disttrace_viewer.load.problems": ("ViewerError",),
    "disttrace_viewer.views.prometheus": ("metrics", "serve"),
}
_MODULES = {name: module for module, names in _FROM.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return list(_MODULES)
