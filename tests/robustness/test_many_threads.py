"""Threads beside each other lose nothing (`tests/reliability/many_threads.py`: 64 for a minute)."""

from __future__ import annotations

import pytest

from support.cores import EACH_CORE
from support.preloaded import preloaded
from support.processes import ROOT

PROGRAM = ROOT / "tests" / "reliability" / "many_threads.py"


@EACH_CORE
@pytest.mark.parametrize("written", [[], ["--written"]])
def test_nothing_is_switched_off_and_nothing_is_lost(core: str, written: list[str]) -> None:
    """Sixteen threads roll through segments that are mapped, or written as on a file server."""
    small = ["--seconds", "0.7", "--threads", "16", "--max-mb", "1", "--core", core]
    outcome = preloaded(PROGRAM, *small, *written).check()
    assert outcome.stdout.rstrip().endswith("all there"), f"{outcome}"
