"""After `uninstall` every patched attribute is the original object again."""

from __future__ import annotations

from pathlib import Path

from support.processes import python

PROGRAM = Path(__file__).with_name("unpatched.py")


def test_nothing_stays_patched(tmp_path: Path) -> None:
    """Classes of C++ and Python, functions, names imported before tracing and in between."""
    outcome = python("-W", "ignore", PROGRAM, DISTTRACE_DIR=str(tmp_path)).check()
    first, rest = outcome.stdout.strip().split(" ", 1)
    assert first == "True"
    assert rest.startswith("[] []")
    assert "disttrace" not in rest
