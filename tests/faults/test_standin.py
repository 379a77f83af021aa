"""A slice of the table of faults on a backend that only enqueues; `make faults BACKEND=standin`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import standin
from faults.expectation import Row
from faults.harness import run_row
from faults.table import ROWS

_HEALTHY, _HANGING = "pingpong_allreduce.py (torchrun)", "faults/opposite_order.py (2 ranks)"
SLICE = [row for row in ROWS if row.name in (_HEALTHY, _HANGING)]


@pytest.mark.parametrize("row", SLICE, ids=lambda row: row.name)
@pytest.mark.parametrize("semantics", ["2.13"])
def test_the_right_thing_is_said_where_calls_return_at_once(
    row: Row, semantics: str, tmp_path: Path
) -> None:
    """The host goes on, and the device waits."""
    pytest.importorskip("torch")
    assert len(SLICE) == 2
    with standin.environment(semantics) as environ:
        outcome = run_row(standin.adapted(row), tmp_path, environ)
    assert outcome.right, outcome.explain()
