"""Tracing that comes and goes, imported anew each time (`make stress`: 300 times on each core)."""

from __future__ import annotations

from pathlib import Path

from support.cores import EACH_CORE
from support.preloaded import preloaded
from support.processes import ROOT

PROGRAM = ROOT / "tests" / "reliability" / "reinstalled.py"


@EACH_CORE
def test_nothing_of_a_former_import_gets_in_the_way(tmp_path: Path, core: str) -> None:
    """Beside a thread whose frames come and go, and a collector that lets it run."""
    done = preloaded(PROGRAM, str(tmp_path), core, "15", timeout=120.0).check()
    assert done.stderr == ""
    assert done.stdout.startswith(f"15 rounds on {core}")
