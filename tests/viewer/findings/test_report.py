"""The report: the JSON contract, the exit code, and the text for people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from disttrace.cli import main
from disttrace_viewer.diagnosis.report import report
from disttrace_viewer.findings.finding import KINDS
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.views.terminal.diagnosis import lines
from support.journals import MS, training
from support.scenes import beat, stand, steps, verdict

FINDING = {
    "kind", "severity", "certainty", "summary", "hint", "culprits", "culprit_ranks", "waiting",
    "waiting_ranks", "op", "group", "seq", "key", "cycle", "locations", "consequences",
}  # fmt: skip
PROCESS = {
    "id", "job", "role", "rank", "local_rank", "world_size", "host", "pid", "attempt", "state",
    "last",
}  # fmt: skip
ROOT = Path(__file__).parents[3]


def hang(folder: Path) -> None:
    """Rank 1 of two stands outside."""
    for journal, group in steps(folder, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            stand(journal, 9000 * MS, "/src/loader.py", 9, "load")
        beat(journal, 20)


def as_json(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> tuple[int, Any]:
    """Exit code and report of the command."""
    code = main(["diagnose", str(folder), "--json"])
    return code, json.loads(capsysbinary.readouterr().out)


def test_every_key_of_the_contract_is_there(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Also those that do not apply."""
    hang(tmp_path)
    code, told = as_json(tmp_path, capsysbinary)
    assert (code, told["format"], told["healthy"]) == (1, 1, False)
    assert set(told) == {"format", "healthy", "processes", "findings", "coverage"}
    (finding,) = told["findings"]
    assert set(finding) == FINDING
    assert (finding["culprit_ranks"], finding["waiting_ranks"]) == ([1], [0])
    assert (finding["cycle"], finding["key"]) == (None, None)
    first = finding["locations"][0]
    assert set(first) == {"process", "rank", "file", "line", "function", "op"}
    assert (first["rank"], first["file"], first["line"]) == (1, "/src/loader.py", 9)
    by_rank = {p["rank"]: p for p in told["processes"]}
    assert all(set(p) == PROCESS for p in told["processes"])
    assert finding["culprits"] == [by_rank[1]["id"]]
    assert by_rank[0]["state"] == "running"
    assert by_rank[0]["last"]["status"] == "in_flight"
    assert (by_rank[0]["last"]["op"], by_rank[0]["last"]["seq"]) == ("all_reduce", 3)
    assert set(told["coverage"]) >= {"journals", "missing_ranks", "dropped", "clock_error_ns"}


def test_a_healthy_job_exits_with_0(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Nothing is found and that is said."""
    training(tmp_path)
    code, told = as_json(tmp_path, capsysbinary)
    assert (code, told["healthy"], told["findings"]) == (0, True, [])
    assert {p["state"] for p in told["processes"]} == {"exited"}


def test_nothing_to_read_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that says what to do."""
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "no journals in" in capsys.readouterr().err


def test_the_text_leads_with_the_finding_and_shows_everybody(tmp_path: Path) -> None:
    """One sentence first, then a line per process, then what to do."""
    hang(tmp_path)
    case, found = verdict(tmp_path)
    text = list(lines(case, found))
    assert text[0].startswith("1. ERROR missing_participant: Rank 1 never joined all_reduce #3")
    where = text.index("Where everybody is:")
    shown = {line.split()[1]: line for line in text[where + 1 : where + 3]}
    assert "in all_reduce #3 of the default group for 19.8 s at train.py:10 in main" in shown["0"]
    assert "outside communication, at loader.py:9 in load" in shown["1"]
    assert any(line.startswith("   What to do: ") for line in text)
    assert text[-1].startswith("Read: 2 journals, 5 operations of 1 job.")


def test_what_is_read_and_what_is_missing_is_said(tmp_path: Path) -> None:
    """A rank without a journal is in the coverage."""
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 2:
            for path in (journal.definitions, *journal.segments):
                path.unlink()
    case, found = verdict(tmp_path)
    told = report(case, found)["coverage"]
    assert told["missing_ranks"] == [2]
    assert [j["state"] for j in told["journals"]] == ["whole", "whole"]


def test_each_kind_has_its_section_in_the_docs() -> None:
    """And there are no sections of kinds that do not exist."""
    text = (ROOT / "docs" / "findings.md").read_text()
    assert sorted(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == sorted(KINDS)
    for section in text.split("\n## ")[1:]:
        for part in ("**Means.**", "**Recognised.**", "**Cannot tell.**", "**Do.**"):
            assert part in section, section.split("\n", 1)[0]


def test_each_rule_is_in_a_file_of_its_own() -> None:
    """The table is in order of precedence and holds nothing twice."""
    modules = [rule.__module__ for rule in RULES]
    assert len(set(modules)) == len(modules)
    assert modules.index("disttrace_viewer.findings.rules.process_failed") < modules.index(
        "disttrace_viewer.findings.rules.missing_participant"
    )
