"""A fixed slice of the fuzzing: the same cases in every run (``make fuzz`` draws others)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from fuzz.checks import CHECKS, quiet_environment
from fuzz.mutations import CHANGES, Change, write

SLICE = 6
"""Cases of each check in every run of the tests."""


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_wrong_records_end_nothing(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No traceback, exit code 0, 1 or 2, and the journal beside it is read whole."""
    scratch = tmp_path_factory.mktemp("fuzz")

    @seed(20_000)
    @settings(
        max_examples=SLICE, deadline=None, database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CHANGES)
    def check(changes: list[Change]) -> None:
        CHECKS[name](write(scratch, changes))

    with quiet_environment():
        check()


def test_the_job_itself_is_whole(tmp_path: Path) -> None:
    """Unchanged, it is read without a problem: what is found later is found in the changes."""
    from disttrace_viewer.merge.reader import load
    from fuzz.mutations import rich

    rich(tmp_path)
    assert [p.sentence for p in load([str(tmp_path)]).problems] == []
