"""Rules decide, and ``wording`` speaks: a rule gives values to the words of its own name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.processes import ROOT

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


def test_what_counts_as_english() -> None:
    """Also inside f-strings; not in docstrings, regexes, names and keys."""
    source = (
        '"""Some words."""\nX = re.compile("not part of")\nY = f"{X} has ended", "a_key", "op"\n'
    )
    assert english(source) == [" has ended"]


@pytest.mark.parametrize(
    "path",
    sorted(
        (
            *(VIEWER / "findings").rglob("*.py"),
            *(VIEWER / "history").glob("*_*.py"),
            VIEWER / "history" / "straggler.py",
        )
    ),
    ids=lambda path: str(path.relative_to(VIEWER)),
)
def test_a_rule_holds_no_english(path: Path) -> None:
    """What it says stands in the file of the same name in ``wording/findings/``."""
    assert english(path.read_text(encoding="utf-8")) == []


def test_the_words_of_a_rule_bear_its_name() -> None:
    """Each file of words is that of one rule, or part of rules; one holds what they share."""
    words = {path.name for path in (VIEWER / "wording" / "findings").glob("*.py")}
    folders = (VIEWER / "findings" / "rules", VIEWER / "history")
    rules = {path.name for folder in folders for path in folder.glob("*.py")}
    assert words - rules == {"missing_evidence.py", "troubles.py"}
