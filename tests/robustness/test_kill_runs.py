"""What began before SIGKILL is on record (`tests/reliability/kill_runs.py`: a hundred times)."""

from __future__ import annotations

from support.processes import ROOT, python


def test_every_operation_begun_is_in_its_journal() -> None:
    """Six runs in which a random rank is killed at a random instant, read by the viewer."""
    outcome = python(
        ROOT / "tests" / "reliability" / "kill_runs.py", "--runs", "6", "--seed", "7"
    ).check()
    assert outcome.stdout.startswith("6 runs, 18 journals, ")
    assert outcome.stdout.endswith(": 0 lost, 0 journals not read\n")
