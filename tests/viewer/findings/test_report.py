"""The report of a verdict, and where its sentences stand."""

from __future__ import annotations

import ast
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from disttrace.cli import main
from disttrace_viewer.findings.finding import KINDS
from disttrace_viewer.findings.rules.table import RULES
from disttrace_viewer.views.terminal.diagnosis import lines
from support.journals import MS, PEER_GONE, training
from support.scenes import alive, all_gone, hang_without, steps, verdict
from support.states import hang as many_hang

FINDING = {
    "kind", "severity", "certainty", "because", "summary", "hint", "culprits", "culprit_ranks",
    "waiting", "waiting_ranks", "device", "op", "group", "seq", "key", "cycle", "locations",
    "consequences", "activity", "deadline", "job",
}  # fmt: skip
PROCESS = {
    "source", "id", "job", "role", "rank", "local_rank", "world_size", "host", "pid", "attempt",
    "state", "last",
}  # fmt: skip
ROOT = Path(__file__).parents[3]


def hang(folder: Path) -> None:
    """Rank 1 of two stands outside."""
    for journal, _ in hang_without(folder, 2, 1):
        journal.stand(9000 * MS, "/src/loader.py", 9, "load")


def as_json(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> tuple[int, Any]:
    code = main(["diagnose", str(folder), "--json"])
    return code, json.loads(capsysbinary.readouterr().out)


def test_the_contracts_keys(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Also those that do not apply."""
    hang(tmp_path)
    code, told = as_json(tmp_path, capsysbinary)
    assert (code, told["format"], told["healthy"]) == (1, 1, False)
    keys = "format healthy evidence processes findings jobs said coverage"
    assert set(told) == {*keys.split()}
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
    assert by_rank[0]["state"] == "unknown"
    assert by_rank[0]["last"]["status"] == "in_flight"
    assert (by_rank[0]["last"]["op"], by_rank[0]["last"]["seq"]) == ("all_reduce", 3)
    assert set(told["coverage"]) >= {"journals", "missing_ranks", "dropped", "clock_error_ns"}


@pytest.mark.parametrize("job", ["hang", "healthy", "failed"])
def test_reports_follow_the_schema(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], job: str
) -> None:
    """The schema ships in the package and knows every kind of finding."""
    if job == "hang":
        hang(tmp_path)
    elif job == "healthy":
        training(tmp_path)
    else:
        for journal, _ in steps(tmp_path, 2):
            journal.fail(300 * MS, "ValueError", "no")
    schema = json.loads((files("disttrace_viewer.diagnosis") / "diagnose.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    code, told = as_json(tmp_path, capsysbinary)
    wanted = (0, True, False) if job == "healthy" else (1, False, True)
    assert (code, told["healthy"], bool(told["findings"])) == wanted
    assert list(Draft202012Validator(schema).iter_errors(told)) == []
    told["findings"].append({"kind": "something else"})
    assert not Draft202012Validator(schema).is_valid(told)


def test_many_ranks_are_folded(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """What does not differ stands once, with ranks as ranges; ``--full`` has every process."""
    many_hang(tmp_path, size=70)
    _, told = as_json(tmp_path, capsysbinary)
    schema = json.loads((files("disttrace_viewer.diagnosis") / "diagnose.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(told)) == []
    folded = sorted((p["count"], str(p["ranks"])) for p in told["processes"])
    assert folded == [(1, "[69]"), (69, "[{'from': 0, 'to': 68, 'step': 1}]")]
    (found,) = told["findings"]
    assert found["culprit_ranks"] == [69]
    assert found["waiting_ranks"] == [{"from": 0, "to": 68, "step": 1}]
    assert (found["waiting_count"], told["coverage"]["whole"]) == (69, 70)
    assert main(["diagnose", str(tmp_path), "--json", "--full"]) == 1
    whole = json.loads(capsysbinary.readouterr().out)
    assert len(whole["processes"]) == len(whole["coverage"]["journals"]) == 70
    assert whole["findings"][0]["waiting_ranks"] == list(range(69))


def test_a_report_of_many_findings_fits_a_screen(tmp_path: Path) -> None:
    """Forty ranks fail by themselves, each in a line of its own."""
    for journal, _ in steps(tmp_path, 40):
        journal.fail((300 + (journal.rank or 0)) * MS, "ValueError", "no", line=journal.rank or 1)
        (tmp_path / f"stranger{journal.rank}.jsonl").write_text("{}")
    case, found = verdict(tmp_path)
    assert len(found) > 8
    said = list(lines(case, found))
    assert len(said) <= 60
    assert any("more (--json has all)" in line for line in said)


def test_nothing_to_read_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (["diagnose"], ["reduce", "-o", str(tmp_path / "states")]):
        assert main([*more, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "no journals in" in said
        assert "run the program with DISTTRACE=1" in said


def test_the_text_leads_with_the_finding_and_shows_everybody(tmp_path: Path) -> None:
    """One sentence first, what to do, then where the ranks are, culprits first."""
    hang(tmp_path)
    case, found = verdict(tmp_path)
    text = list(lines(case, found))
    assert text[0].startswith("1. ERROR missing_participant: Rank 1 never joined all_reduce #3")
    assert text[1].startswith("   What to do: ")
    where = text.index("Where the ranks are:")
    first, second = text[where + 1 : where + 3]
    told = r"▶ rank 1 +silent for \d+ days +not in any collective .*at loader.py:9 in load$"
    assert re.match(told, first)
    told = r"  rank 0 +silent for \d+ days +in all_reduce #3 of the default group for 19.8 s"
    assert re.match(told, second)
    assert second.endswith("at train.py:10 in main")
    assert text[-1].startswith("Read: 2 journals, 5 operations of 1 job.")


def test_who_was_killed_inside_an_exchange_is_told_there(tmp_path: Path) -> None:
    """It had begun it some milliseconds before, too short to count as waiting for anybody."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 2:
            journal.fail(210 * MS, "ValueError", "the loss is not a number")
            continue
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        journal.stand(220 * MS, "/src/train.py", 10, "main")
        if journal.rank == 0:
            journal.end(number, 30 * MS, x=journal.string(PEER_GONE))
            kind, _, why = PEER_GONE.partition(": ")
            journal.fail(240 * MS, kind, why)
        else:
            journal.record(hb=900 * MS)
    case, found = verdict(tmp_path, look=all_gone)
    text = list(lines(case, found))
    assert text[0].startswith("1. ERROR process_failed: Rank 2 failed first: ValueError")
    (place,) = [line for line in text if line.startswith("  rank 1 ")]
    assert re.match("  rank 1 +killed +in all_reduce #3 of the default group ", place)


def test_a_large_job_fits_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal positions are folded, culprits stand first, and lines are wrapped by words."""
    for journal, _ in hang_without(tmp_path, 64, 61):
        journal.stand(3000 * MS, "/src/loader.py", 9, "load")
    assert main(["diagnose", str(tmp_path), "--width", "80"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 20
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("1. ERROR missing_participant: Rank 61 never joined all_reduce #3")
    (where,) = (n for n, line in enumerate(shown) if line == "Where the ranks are:")
    assert shown[where + 1].startswith("▶ rank 61 ")
    assert any(line.startswith("  ranks 0-60, 62, 63 ") for line in shown[where + 2 : where + 4])


def test_who_waits_before_the_stall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no fault yet, and the exit code says so. The option wins over the variable."""
    for journal, group in alive(steps(tmp_path, 4), 10):
        if journal.rank != 1:
            journal.begin(journal.collective(group), 3400 * MS, q=3)
    assert main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "No fault yet: ranks 0, 2, 3 have been waiting 6.6 s for rank 1 in all_reduce #3 of the"
        " default group (counts as stalled after 10 s; --stall 5 judges earlier)."
    )
    assert main(["diagnose", str(tmp_path), "--stall", "5"]) == 1
    monkeypatch.setenv("DISTTRACE_STALL", "5")
    assert main(["diagnose", str(tmp_path)]) == 1
    assert main(["diagnose", str(tmp_path), "--stall", "20"]) == 0


def test_stacks_of_whoever_is_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All recorded frames, each stack once."""
    for journal, _ in hang_without(tmp_path, 3, 1):
        frames = (("/usr/lib/python3.12/queue.py", 171, "get"), ("/src/loader.py", 9, "load"))
        journal.record(at=9000 * MS, h=0, k=journal.stack(*frames))
    assert main(["diagnose", str(tmp_path), "--stacks"]) == 1
    shown = capsys.readouterr().out
    assert "rank 1 is at loader.py:9 in load (in queue.py:171 get), not in any collective" in shown
    stacks = shown.split("Stacks, innermost frame first:\n")[1].split("\n\n")[0]
    assert stacks.splitlines() == [
        "  rank 1", "    /usr/lib/python3.12/queue.py:171 in get", "    /src/loader.py:9 in load",
        "  ranks 0, 2", "    train.py:10 in main",
    ]  # fmt: skip


@pytest.mark.parametrize(("color", "expected"), [("FORCE_COLOR", True), ("NO_COLOR", False)])
def test_colour_is_asked_for_by_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], color: str,
    expected: bool,
) -> None:  # fmt: skip
    """Into a pipe only where somebody wants it."""
    hang(tmp_path)
    monkeypatch.setenv(color, "1")
    main(["diagnose", str(tmp_path)])
    assert ("\x1b[" in capsys.readouterr().out) is expected


def test_each_kind_has_its_section_in_the_docs() -> None:
    """And there are no sections of kinds that do not exist."""
    text = (ROOT / "docs" / "findings.md").read_text()
    assert sorted(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == sorted(KINDS)
    for section in text.split("\n## ")[1:]:
        for part in ("**Means.**", "**Recognised.**", "**Cannot tell.**", "**Do.**"):
            assert part in section, section.split("\n", 1)[0]


def test_no_rule_stands_twice_in_the_table() -> None:
    """It is in order of precedence."""
    rules = [f"{rule.__module__}.{rule.__name__}" for rule in RULES]
    assert len({*rules}) == len(rules)
    modules = [rule.__module__.rpartition(".")[2] for rule in RULES]
    assert modules.index("process_failed") < modules.index("missing_participant")


VIEWER = ROOT / "viewer" / "disttrace_viewer"
_ENGLISH = re.compile(r"[A-Za-z]{2,}[,;:.]? | [A-Za-z]{2,}")


def english(source: str) -> list[str]:
    """String constants with a word and a space, but for docstrings and torch's texts."""
    tree = ast.parse(source)
    silent = set[ast.AST]()
    for node in ast.walk(tree):
        doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        pattern = isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
        if doc or pattern:
            silent.update(ast.walk(node))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in silent
        if _ENGLISH.search(node.value)
    ]


@pytest.mark.parametrize(
    "path",
    sorted((VIEWER / "findings").glob("*.py")),
    ids=lambda path: str(path.relative_to(VIEWER)),
)
def test_what_rules_share_holds_no_english(path: Path) -> None:
    """A finding, a case and what is asked of them are values; a rule's file has its sentences."""
    assert english(path.read_text(encoding="utf-8")) == []
