"""Reports in the forms that CI systems read: annotations of GitHub, JUnit's XML."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from disttrace_viewer.findings.finding import ERROR, NOTE, WARNING

_COMMANDS = {ERROR: "error", WARNING: "warning", NOTE: "notice"}
HEALTHY = "nothing is wrong"
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def github(report: Mapping[str, Any], root: str) -> Iterator[str]:
    """Workflow commands of GitHub Actions (docs.github.com): a line per finding of the values of a
    report (``diagnose --json``), and one for a healthy job. Files below ``root``, the checkout, are
    named from there."""
    for finding in report["findings"]:
        at = _place(finding, root)
        sure = "" if finding["certainty"] == "certain" else " (likely)"
        fields = {**at, "title": f"disttrace: {finding['kind']}{sure}"}
        escaped = {
            name: _data(value).replace(":", "%3A").replace(",", "%2C")
            for name, value in fields.items()
        }
        properties = ",".join(f"{name}={value}" for name, value in escaped.items())
        text = "\n".join([finding["summary"], *filter(None, [finding["hint"]])])
        yield f"::{_COMMANDS[finding['severity']]} {properties}::{_data(text)}"
    if report["healthy"]:
        count = len(report["processes"])
        yield f"::notice title=disttrace::nothing is wrong with these {count} processes"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def junit(reports: Sequence[Mapping[str, Any]]) -> str:
    """JUnit's XML of the values of reports (``diagnose --json``): one suite per job, one test per
    finding, in the common form (github.com/testmoapp/junitxml)."""
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
        case = ElementTree.SubElement(suite, "testcase", classname="disttrace")
        # ``missing_participant at loader.py:34``, the same in each run: CI keeps a history by it.
        at = [f"{one['file'].rpartition('/')[2]}:{one['line']}" for one in finding["locations"][:1]]
        case.set("name", _text(" at ".join([finding["kind"], *at])))
        failure = ElementTree.SubElement(case, "failure", type=finding["kind"])
        failure.set("message", _text(finding["summary"]))
        failure.text = _text("\n".join(_lines(finding)))
    if not faults:
        ElementTree.SubElement(suite, "testcase", classname="disttrace", name=HEALTHY)
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
    sure = [
        ": because ".join(
            [f"{finding['severity']}, {finding['certainty']}", *finding.get("because", ())]
        )
    ]
    return [*sure, finding["summary"], *hint, *places, *finding["consequences"]]


def _text(text: str) -> str:
    """Without what XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _place(finding: Mapping[str, Any], root: str) -> dict[str, str]:
    """File and line of a culprit, else of another process that is concerned; nothing without one.
    Files below ``root`` come before others, where no annotation shows."""
    places = [one for one in finding["locations"] if one["file"] and one["line"]]
    mine = [one for one in places if one["process"] in finding["culprits"]]
    found = []
    for one in (*mine, *places):
        path = os.path.relpath(one["file"], root) if os.path.isabs(one["file"]) else one["file"]
        outside = path.startswith("..")
        found.append((outside, one["file"] if outside else path, str(one["line"])))
    found.sort(key=lambda one: one[0])
    return {"file": found[0][1], "line": found[0][2]} if found else {}
