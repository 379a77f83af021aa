"""Some of the programs that look for us, and a silent one that nobody listens to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from reliability.red_team import attacks, run

SLICE = (
    "arguments.lists_that_hold_each_other", "children.signal_descriptor",
    "children.waitid_of_all_kinds", "files.background_of_a_terminal",
    "files.errors_into_a_full_pipe", "files.started_without_streams",
    "objects.errors_of_wrong_calls", "rows.collector_that_acts",
    "rows.finders_and_modules_that_lie", "rows.functions_borrowed_and_asked",
    "signals.waited_for_by_main", "tools.looked_at_functions",
    "rows.modes_of_torch", "tools.picklers", "torch_state.properties_that_raise",
)  # fmt: skip


@pytest.mark.parametrize("attack", SLICE)
def test_a_program_is_what_it_was(attack: str) -> None:
    """Its output, its exit code, its files and its processes are those of an untraced run."""
    assert attack in set(attacks())
    with ThreadPoolExecutor(2) as pool:
        bare, traced = pool.map(lambda on: run(attack, 0.5, DISTTRACE=on), "01")
    assert "line 0" in bare.facts
    assert traced.facts == bare.facts
    assert not [line for line in traced.said if "no longer traced" in line]


def test_there_are_enough_of_them() -> None:
    """Each has a docstring's promise, and one name."""
    found = list(attacks())
    assert len(found) == len(set(found)) > 60
