"""Reports for CI systems: annotations at the line, tests that failed, no commands from texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from disttrace import cli
from disttrace_viewer.views.ci import github, junit
from support.journals import MS, workers


def finding(**changes: Any) -> dict[str, Any]:
    """One of a report's, with the keys that forms read."""
    at = {"process": "p1", "rank": 1, "file": "/src/pkg/train.py", "line": 34, "function": "load"}
    other = {**at, "process": "p0", "rank": 0, "line": 7}
    return {
        "kind": "missing_participant", "severity": "error", "certainty": "certain",
        "summary": "Rank 1 never joined.", "hint": "Look there.", "culprits": ["p1"],
        "locations": [other, at], "consequences": ["Rank 0 waits."], **changes,
    }  # fmt: skip


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    """The values of a report on a job of two."""
    healthy = all(one["severity"] == "note" for one in findings)
    processes = [{"job": "job_a"}, {"job": "job_a"}]
    return {"healthy": healthy, "processes": processes, "findings": list(findings)}


def test_an_annotation_stands_at_the_culprits_line() -> None:
    """Named from the checkout, with what to do on the next line."""
    (line,) = github(report(finding()), "/src")
    assert line == (
        "::error file=pkg/train.py,line=34,title=disttrace%3A missing_participant"
        "::Rank 1 never joined.%0ALook there."
    )


def test_a_line_outside_the_checkout_comes_last() -> None:
    """GitHub shows no annotation there: a rank that waits in it is better than a library's line."""
    waits, culprit = finding()["locations"]
    away = {**culprit, "file": "/usr/lib/python3/site-packages/torch/x.py"}
    (line,) = github(report(finding(locations=[waits, away])), "/src")
    assert line.startswith("::error file=pkg/train.py,line=7,")
    (line,) = github(report(finding(locations=[away])), "/src")
    assert line.startswith("::error file=/usr/lib/python3/site-packages/torch/x.py,line=34,")


@pytest.mark.parametrize(
    ("changes", "begin"),
    [
        ({"severity": "warning"}, "::warning file=pkg/train.py"),
        ({"severity": "note"}, "::notice file=pkg/train.py"),
        ({"culprits": []}, "::error file=pkg/train.py,line=7,"),
        ({"locations": []}, "::error title=disttrace%3A missing_participant::"),
        ({"certainty": "likely"}, "::error file=pkg/train.py,line=34,title=disttrace%3A missing"),
    ],
)
def test_severity_and_place_of_an_annotation(changes: dict[str, Any], begin: str) -> None:
    """GitHub's three levels; without a culprit a line of those who wait, without a line none."""
    lines = list(github(report(finding(**changes)), "/src"))
    assert lines[0].startswith(begin)
    assert ("(likely)" in lines[0]) == (changes.get("certainty") == "likely")


def test_a_text_of_the_program_gives_no_command() -> None:
    """Neither by a new line nor in the name of a file."""
    evil = "x\n::set-output name=a::b\r%"
    at = {"process": "p1", "rank": 1, "file": "/src/a,b:c\n::d.py", "line": 1, "function": "f"}
    found = list(github(report(finding(summary=evil, locations=[at])), "/src"))
    assert len(found) == 1
    assert "\n" not in found[0]
    assert "file=a%2Cb%3Ac%0A%3A%3Ad.py,line=1" in found[0]
    assert "x%0A::set-output name=a::b%0D%25" in found[0]


def test_a_fault_is_a_test_that_failed() -> None:
    """Notes are output and fail nothing; what XML cannot hold is replaced."""
    text = junit([report(finding(summary="a\x00b <&>"), finding(severity="note"))])
    root = ElementTree.fromstring(text)
    assert (root.get("tests"), root.get("failures")) == ("1", "1")
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "a\ufffdb <&>"
    assert "rank 1 at /src/pkg/train.py:34 in load" in (failure.text or "")
    assert root.findtext("testsuite/system-out") == "Rank 1 never joined."


def test_a_healthy_job_is_a_test_that_passed() -> None:
    """One per job, whatever notes there are."""
    root = ElementTree.fromstring(junit([report(), report(finding(severity="note"))]))
    assert (root.get("tests"), root.get("failures")) == ("2", "0")
    assert [one.get("name") for one in root.iter("testcase")] == ["nothing is wrong"] * 2


def test_the_command_gives_all(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Exit code 1 for a fault in all of them; ``--json`` is one of them."""
    first, second = workers(tmp_path, 2)
    first.begin(first.collective(first.world(), "all_gather"), 100 * MS, q=1)
    second.run(second.collective(second.world()), 100 * MS, MS, q=1)
    second.leave(200 * MS)
    found = {}
    for arguments in (["--json"], ["--format", "json"], ["--format", "github"]):
        assert cli.main(["diagnose", str(tmp_path), *arguments]) == 1
        found[arguments[-1]] = capfdbinary.readouterr().out
    assert list(orjson.loads(found["--json"])) == list(orjson.loads(found["json"]))
    assert found["github"].startswith(b"::error ")
    assert cli.main(["diagnose", str(tmp_path), "--format", "junit"]) == 1
    assert ElementTree.fromstring(capfdbinary.readouterr().out).get("failures") == "1"
