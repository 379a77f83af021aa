"""Compares what `diagnose --json` said with what should have been said; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from faults.expectation import Expected, Row, marked_lines

Finding = Mapping[str, Any]


def serious(report: Mapping[str, Any]) -> list[Finding]:
    return [one for one in report["findings"] if one["severity"] in ("error", "warning")]


def brief(finding: Finding) -> str:
    return f"{finding['kind']} {sorted(finding['culprit_ranks'])}"


def _line_problems(expected: Expected, finding: Finding, row: Row) -> list[str]:
    markers = marked_lines(row.path)
    place = f"/{row.path.parent.name}/{row.path.name}"
    problems = []
    for rank, accepted in expected.lines.items():
        wanted = {markers[marker] for marker in accepted}
        shown = {
            one["line"]
            for one in finding["locations"]
            if one["rank"] == rank and str(one["file"]).endswith(place)
        }
        if not wanted & shown:
            problems.append(
                f"{finding['kind']}: rank {rank} should stand at {sorted(wanted)}, "
                f"shown are {sorted(shown)}"
            )
    return problems


def _match(expected: Expected, finding: Finding, row: Row) -> list[str]:
    """What is wrong with a finding of the right kind."""
    problems = []
    culprits = tuple(sorted(finding["culprit_ranks"]))
    if culprits not in expected.culprits:
        problems.append(f"{finding['kind']} blames {culprits}, not {expected.culprits}")
    if expected.waiting is not None:
        waiting = tuple(sorted(finding["waiting_ranks"]))
        if waiting != expected.waiting:
            problems.append(f"{finding['kind']}: waiting {waiting}, not {expected.waiting}")
    told = " ".join(
        [finding["summary"], finding["hint"] or "", *(str(one) for one in finding["consequences"])]
    ).lower()
    problems += [
        f"{finding['kind']} does not mention {word!r}"
        for word in expected.words
        if word.lower() not in told
    ]
    return problems + _line_problems(expected, finding, row)


def _wrongly_blamed(row: Row, findings: Sequence[Finding]) -> list[str]:
    """Ranks named as culprits by anything at all that did nothing wrong."""
    guilty = {rank for one in row.expected for ranks in one.culprits for rank in ranks}
    blamed = {rank for one in findings for rank in one["culprit_ranks"]}
    return [f"rank {rank} is blamed and did nothing" for rank in sorted(blamed - guilty)]


def judge(row: Row, report: Mapping[str, Any], code: int) -> list[str]:
    """Everything that is wrong with a report; empty if it is right."""
    findings = serious(report)
    problems = _wrongly_blamed(row, findings)
    rest = list(findings)
    for expected in row.expected:
        candidates = [one for one in rest if one["kind"] in expected.kinds]
        if not candidates:
            said = ", ".join(map(brief, findings)) or "nothing"
            problems.append(f"no {' or '.join(expected.kinds)}; said was: {said}")
            continue
        best = min(candidates, key=lambda one: len(_match(expected, one, row)))
        problems += _match(expected, best, row)
        rest.remove(best)
    problems += [f"also said: {brief(one)}" for one in rest if one["kind"] not in row.tolerated]
    if report["healthy"] is bool(findings) or code != (1 if findings else 0):
        problems.append(
            f"healthy is {report['healthy']} and the exit code {code} with {len(findings)} findings"
        )
    return problems
