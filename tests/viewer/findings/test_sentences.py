"""Sentences of findings stand with their rules, and nowhere below them."""

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
    sorted((VIEWER / "findings").glob("*.py")),
    ids=lambda path: str(path.relative_to(VIEWER)),
)
def test_what_rules_share_holds_no_english(path: Path) -> None:
    """A finding, a case and what is asked of them are values; a rule's file has its sentences."""
    assert english(path.read_text(encoding="utf-8")) == []
