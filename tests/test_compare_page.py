"""The table of expectations claims nothing of which it does not say how that is known."""

from __future__ import annotations

import re

import pytest

from support.processes import ROOT

PAGE = (ROOT / "docs" / "dev" / "expected.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", TABLE, re.MULTILINE)[1:]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_all_expectations_have_a_row() -> None:
    assert len(ROWS) == 31


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_shows_it_is_there(row: tuple[str, str, str]) -> None:
    """Tests and targets that a row names exist; without any it says that it was run by hand."""
    _, here, how = row
    tests = re.findall(r"`((?:\w+/)+|(?:\w+/)*test_\w+\.py)`", how)
    targets = re.findall(r"`make ([a-z-]+)`", how)
    assert [name for name in tests if not (ROOT / "tests" / name).exists()] == []
    assert set(targets) <= TARGETS
    pages = re.findall(r"\]\(([\w/]+\.md)\)", how)
    by_hand = re.search(r"\brun\b", how)
    assert tests or targets or pages or by_hand or here.startswith("no:")
