"""Reports as SARIF 2.1.0 (OASIS), which code scanning and editors read: one run, a result each.

A result stands at the line of whoever is to blame, files below the checkout are named from there.
A note is a result of level ``note``; a healthy job is a run without results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from disttrace_viewer.views.ci.place import place

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(reports: Sequence[Mapping[str, Any]], root: str) -> dict[str, Any]:
    """The values of reports (``diagnose --json``), one per job. ``root``: the checkout."""
    findings = [finding for report in reports for finding in report["findings"]]
    kinds = sorted({finding["kind"] for finding in findings})
    driver = {
        "name": "disttrace",
        "version": version("disttrace"),
        "rules": [{"id": kind} for kind in kinds],
    }
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "results": [_result(one, kinds, root) for one in findings],
            }
        ],
    }


def _result(finding: Mapping[str, Any], kinds: Sequence[str], root: str) -> dict[str, Any]:
    text = "\n".join([finding["summary"], *filter(None, [finding["hint"]])])
    at = place(finding, root)
    physical = (
        {
            "artifactLocation": {"uri": quote(at["file"])},
            "region": {"startLine": max(1, int(at["line"]))},
        }
        if at
        else None
    )
    return {
        "ruleId": finding["kind"],
        "ruleIndex": kinds.index(finding["kind"]),
        "level": finding["severity"],
        "message": {"text": text},
        "locations": [{"physicalLocation": physical}] if physical else [],
        "properties": {
            "certainty": finding["certainty"],
            "culprit_ranks": finding.get("culprit_ranks", []),
        },
    }
