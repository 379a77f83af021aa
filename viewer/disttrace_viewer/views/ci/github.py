"""A report as workflow commands of GitHub Actions: each finding is shown at its line.

The form is GitHub's (docs.github.com, "Workflow commands for GitHub Actions"). A text that comes
from the program cannot give a command of its own, for its line ends are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING
from disttrace_viewer.views.ci.place import place

_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}


def annotations_of(report: Mapping[str, Any], root: str) -> Iterator[str]:
    """A line per finding of a report's values (``diagnose --json``), and one for a healthy job.

    ``root`` is the checkout: files below it are named from there, so that GitHub finds them.
    """
    for finding in report["findings"]:
        at = place(finding, root)
        sure = "" if finding["certainty"] == "certain" else " (likely)"
        fields = {**at, "title": f"disttrace: {finding['kind']}{sure}"}
        said = ",".join(f"{name}={_property(value)}" for name, value in fields.items())
        text = "\n".join([finding["summary"], *filter(None, [finding["hint"]])])
        yield f"::{_COMMANDS[finding['severity']]} {said}::{_data(text)}"
    if report["healthy"]:
        count = len(report["processes"])
        yield f"::notice title=disttrace::nothing is wrong with these {count} processes"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
