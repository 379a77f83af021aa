"""A fixed slice of the table of faults, live and after SIGKILL; `make faults` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.expectation import Row
from faults.harness import run_row
from faults.table import ROWS

SLICE = [row for row in ROWS if row.fixed_slice]
ON_CUDA = [row for row in ROWS if row.needs == "cuda"]


@pytest.mark.parametrize("row", SLICE, ids=lambda row: row.name)
def test_the_right_thing_is_said(row: Row, tmp_path: Path) -> None:
    """Kind, culprits and lines are right, and nobody else is blamed."""
    outcome = run_row(row, tmp_path)
    assert outcome.right, outcome.explain()


@pytest.mark.gpu
@pytest.mark.parametrize("row", ON_CUDA, ids=lambda row: row.name)
def test_the_right_thing_is_said_on_nccl(row: Row, tmp_path: Path) -> None:
    """The same on a device, where the call has returned and the device waits."""
    outcome = run_row(row, tmp_path)
    assert outcome.right, outcome.explain()
