"""Reports as JUnit's XML, which CI systems show as tests: one suite per job, one test per finding.

An error or a warning is a test that failed, a job in which nothing is wrong one that passed; notes
are its output. The form is the common one (github.com/testmoapp/junitxml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from disttrace_viewer.findings.finding import NOTE

HEALTHY = "nothing is wrong"
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(reports: Sequence[Mapping[str, Any]]) -> str:
    """The XML of the values of reports (``diagnose --json``), one per job."""
    root = ElementTree.Element("testsuites", name="disttrace")
    for report in reports:
        root.append(_suite(report))
    for name in ("tests", "failures"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(report: Mapping[str, Any]) -> ElementTree.Element:
    jobs = sorted({one["job"] for one in report["processes"] if one["job"]})
    job = _text(", ".join(jobs) or "job")
    faults = [one for one in report["findings"] if one["severity"] != NOTE]
    notes = [one for one in report["findings"] if one["severity"] == NOTE]
    suite = ElementTree.Element("testsuite", name=f"disttrace {job}")
    suite.set("tests", str(max(1, len(faults))))
    suite.set("failures", str(len(faults)))
    suite.set("errors", "0")
    for finding in faults:
        case = ElementTree.SubElement(suite, "testcase", classname=f"disttrace.{job}")
        case.set("name", _text(f"{finding['kind']}: {finding['summary']}"))
        failure = ElementTree.SubElement(case, "failure", type=finding["kind"])
        failure.set("message", _text(finding["summary"]))
        failure.text = _text("\n".join(_lines(finding)))
    if not faults:
        ElementTree.SubElement(suite, "testcase", classname=f"disttrace.{job}", name=HEALTHY)
    if notes:
        output = ElementTree.SubElement(suite, "system-out")
        output.text = _text("\n".join(one["summary"] for one in notes))
    return suite


def _lines(finding: Mapping[str, Any]) -> list[str]:
    places = []
    for one in finding["locations"]:
        who = one["process"] if one["rank"] is None else f"rank {one['rank']}"
        places.append(f"{who} at {one['file']}:{one['line']} in {one['function']}")
    hint = [finding["hint"]] if finding["hint"] else []
    sure = [f"{finding['severity']}, {finding['certainty']}"]
    return [*sure, finding["summary"], *hint, *places, *finding["consequences"]]


def _text(text: str) -> str:
    """Without what XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
