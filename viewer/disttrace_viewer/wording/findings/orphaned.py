"""A launcher was killed, and the ranks that it had started lived on."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.ends import ended

HINT = (
    "Nobody starts these ranks anew or ends them with the others of the job: end them by hand if"
    " they hold ports or devices still."
)


def summary(trace: Trace, launcher: Process, end: End, left: Sequence[int]) -> str:
    """``Agent 4711 was ended by SIGKILL, and rank 1 lived on.``"""
    who = sentences.subject(trace, [launcher.index])
    return f"{who} {ended(end, surely=True)}, and {sentences.processes(trace, left)} lived on."
