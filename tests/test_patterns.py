"""Regular expressions take linear time, and numbers are read in one way, whatever the text is."""

from __future__ import annotations

import re

import pytest

from support import patterns
from support.processes import ROOT, python


def test_every_pattern_of_the_product_takes_linear_time() -> None:
    """By its form, in a process that imports all modules."""
    said = python(ROOT / "tests" / "support" / "patterns.py", timeout=150.0)
    assert said.code == 0, f"{said}"
    assert int(said.stdout.split()[-2]) > 100


@pytest.mark.parametrize(
    "pattern",
    [
        r"sk-(?:[a-z][a-z0-9]*-)*(?=[\w-]*\d)[\w-]{16,}",
        r"\b(?:[A-Za-z][A-Za-z0-9+.\-]*)?://([^\s/]+)@",
        r"    (?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)",
        r"\d+$",
        r"(a|a)*b",
    ],
)
def test_what_takes_longer_is_found_by_its_form(pattern: str) -> None:
    """Those that stood in the product, and a textbook's."""
    assert patterns.faults(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"\w+", r"(?<![\w])\w+:", r"\A(.*), (\d+)x", r"^a.*b", r"x{1,99}y", r'"([^"]*)"', r"a|b"],
)
def test_what_takes_linear_time_is_let_be(pattern: str) -> None:
    assert patterns.faults(pattern) == []


def test_no_isdigit_and_no_other_name_of_a_pattern() -> None:
    """A superscript two is a digit, which ``int`` refuses; and patterns are found by ``re.``."""
    odd = re.compile(r"\bisdigit\b|\bfrom re import|\bimport re as|\blambda\b[^\n]*\bre\.[a-z]+\(")
    for package in ("disttrace", "viewer"):
        for path in (ROOT / package).rglob("*.py"):
            assert not odd.search(path.read_text()), path


def test_no_getsignal() -> None:
    """It compares the program's handlers with names of its own; ``_signal.getsignal`` does not."""
    for path in (ROOT / "disttrace").rglob("*.py"):
        assert not re.search(r"(?<!_)signal\.getsignal\(", path.read_text()), path
