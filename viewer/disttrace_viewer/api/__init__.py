"""The Python API to read traces: what the commands use, and nothing else of the viewer.

``disttrace.load``, ``disttrace.diagnose`` and ``disttrace.stats`` lead here.
"""

from __future__ import annotations

from disttrace_viewer.api.live import follow, show, snapshot
from disttrace_viewer.api.reading import Paths, jobs, print_jobs
from disttrace_viewer.api.report import Finding, Location, Position, Report, diagnose
from disttrace_viewer.api.stats import Stats, stats
from disttrace_viewer.api.trace import Trace, load
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.views.jobs import Job

__all__ = [
    "Finding",
    "Job",
    "Location",
    "Paths",
    "Position",
    "Report",
    "Stats",
    "Trace",
    "ViewerError",
    "diagnose",
    "follow",
    "jobs",
    "load",
    "print_jobs",
    "show",
    "snapshot",
    "stats",
]
