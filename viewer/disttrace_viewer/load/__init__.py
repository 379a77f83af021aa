"""From folders of journals to a ``Trace``: find, read, match, align; every fault is a sentence."""

from __future__ import annotations

from disttrace_viewer.load.reader import load
from disttrace_viewer.load.survey import survey

__all__ = ["load", "survey"]
