"""The report on a folder in which several jobs lived at one time, made of the reports on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING

SEVERITIES = (ERROR, WARNING, NOTE)
"""In the order in which they are told."""
_LISTED = ("journals", "incomplete", "not_captured", "problems")
_COUNTED = ("dropped", "whole", "records")


def combined(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of the values of several (``diagnose --json``), that on the newest job first.

    Whatever is of one process or one finding says of which job it is. The rest, ``missing_ranks``
    too, is the newest job's; those of the others are in ``jobs``.
    """
    first, *others = reports
    if not others:
        return dict(first)
    findings = [one for report in reports for one in report["findings"]]
    found = {
        **first,
        "healthy": all(report["healthy"] for report in reports),
        "evidence": sorted({one for report in reports for one in report["evidence"]}),
        "processes": [one for report in reports for one in report["processes"]],
        "findings": sorted(findings, key=lambda one: SEVERITIES.index(one["severity"])),
        "jobs": [one for report in reports for one in report["jobs"]],
        "said": sorted((one for r in reports for one in r["said"]), key=lambda one: one["at"]),
        "coverage": _coverage([report["coverage"] for report in reports]),
    }
    if any(report.get("folded") for report in reports):
        found["folded"] = True
    return found


def _coverage(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(parts[0])
    for name in _LISTED:
        found[name] = _once(one for part in parts for one in part[name])
    for name in _COUNTED:
        if any(name in part for part in parts):
            found[name] = sum(part.get(name, 0) for part in parts)
    found["clock_error_ns"] = max(part["clock_error_ns"] for part in parts)
    return found


def _once(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    texts: set[str] = set()
    for value in values:
        if not isinstance(value, str) or value not in texts:
            found.append(value)
            if isinstance(value, str):
                texts.add(value)
    return found
