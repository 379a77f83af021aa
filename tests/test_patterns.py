"""Regular expressions take linear time, and numbers are read in one way, whatever the text is."""

from __future__ import annotations

import re
import subprocess
import sys

from support import patterns
from support.processes import ROOT


def test_every_pattern_of_the_product_takes_linear_time() -> None:
    """By its form; found by themselves."""
    command = [sys.executable, str(ROOT / "tests/support/patterns.py")]
    said = subprocess.run(
        command,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'viewer'}", "PATH": ""},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr[-3000:]
    assert int(said.stdout.split()[-2]) > 100


SLOW = [
    r"sk-(?:[a-z][a-z0-9]*-)*(?=[\w-]*\d)[\w-]{16,}",
    r"\b(?:[A-Za-z][A-Za-z0-9+.\-]*)?://([^\s/]+)@",
    r"    (?P<name>\S.*) \((?P<file>.+):(?P<line>\d+)\)", r"\d+$", r"(a|a)*b",
    r"(?:a{1,200}){1,200}b",
]  # fmt: skip
"""Those that stood in the product, and a textbook's."""
LINEAR = [r"\w+", r"(?<![\w])\w+:", r"\A(.*), (\d+)x", r"^a.*b", r"x{1,99}y", r'"([^"]*)"', r"a|b"]


def test_what_takes_longer_is_found_by_its_form() -> None:
    assert [one for one in [*SLOW, *LINEAR] if patterns.faults(one)] == SLOW


def test_no_isdigit_and_no_other_name_of_a_pattern() -> None:
    """A superscript two is a digit, which ``int`` refuses; and patterns are found by ``re.``."""
    odd = re.compile(r"\bisdigit\b|\bfrom re import|\bimport re as|\blambda\b[^\n]*\bre\.[a-z]+\(")
    for package in ("disttrace", "viewer"):
        for path in (ROOT / package).rglob("*.py"):
            assert not odd.search(path.read_text()), path
    # It compares the program's handlers with names of its own; `_signal.getsignal` does not.
    for path in (ROOT / "disttrace").rglob("*.py"):
        assert not re.search(r"(?<!_)signal\.getsignal\(", path.read_text()), path
