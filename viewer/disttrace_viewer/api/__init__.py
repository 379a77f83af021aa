"""The Python API to read traces: what the commands use, and nothing else of the viewer.

``disttrace.load``, ``disttrace.diagnose`` and ``disttrace.stats`` lead here. What a name stands for
is imported at its first use: a verdict by states needs neither Polars nor the time it takes.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "disttrace_viewer.api.difference": ("Diff", "diff"),
    "disttrace_viewer.api.reading": ("Job", "jobs"),
    "disttrace_viewer.api.report": ("Finding", "Location", "Position", "Report"),
    "disttrace_viewer.api.statistics": ("Stats", "stats"),
    "disttrace_viewer.api.trace": ("Trace", "load"),
    "disttrace_viewer.api.verdict": ("diagnose",),
    "disttrace_viewer.load.problems": ("ViewerError",),
    "disttrace_viewer.views.prometheus": ("metrics", "serve"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            found = globals()[name] = getattr(importlib.import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
