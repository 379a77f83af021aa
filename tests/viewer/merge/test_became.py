"""Programs that followed one another in one process of the kernel (``exec``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.merge.surveying import survey
from support.journals import MS, T0, Journal, S
from support.scenes import all_gone, findings

SAME = {"pid_ns": 5, "time_ns": 6, "ticks": 700}


def program(
    folder: Path, number: int, *, role: str = "worker", keys: dict[str, int] | None = None,
    **more: Any,
) -> Journal:  # fmt: skip
    """The n-th program of the process that was launched as rank 1 of two."""
    return Journal(
        folder, pid=7, role=role, rank=1 if role == "worker" else None, world_size=2,
        t0=T0 + number * S, process=str(number) * 32, keys={**SAME, **(keys or {})}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("said", [True, False])
def test_the_earlier_one_has_become_the_later_one(tmp_path: Path, said: bool) -> None:
    """It has the rank of the first, and what its launcher says of the process is said of it."""
    agent = Journal(tmp_path, pid=1, role="agent", process="a" * 32)
    first = program(tmp_path, 1, parent=agent.process)
    if said:
        first.define("exit", t=S, how="exec")
    program(tmp_path, 2, role="child", parent=first.process)
    agent.define("worker", t=9 * S, pid=7, event="failed", code=3, rank=1)
    found = survey([str(tmp_path)])
    assert len(found.jobs) == 1
    one, two = (p for p in found.processes if p.pid == 7)
    assert one.exit is not None
    assert (one.exit.how, one.told) == ("exec", None)
    assert (two.exit, two.rank, two.role, two.parent) == (None, 1, "worker", agent.process)
    assert two.told is not None
    assert two.told.code == 3


@pytest.mark.parametrize("changed", ["pid_ns", "ticks"])
def test_another_process_of_that_number_has_become_nothing(tmp_path: Path, changed: str) -> None:
    """In another namespace, or later."""
    program(tmp_path, 1)
    program(tmp_path, 2, keys={changed: 8})
    assert [p.exit for p in survey([str(tmp_path)]).processes] == [None, None]


def test_tracing_that_was_switched_off_and_on_is_one_program(tmp_path: Path) -> None:
    """It says so itself."""
    program(tmp_path, 1).define("exit", t=S, how="uninstalled")
    program(tmp_path, 2)
    first, second = survey([str(tmp_path)]).processes
    assert first.exit is not None
    assert (first.exit.how, second.exit) == ("uninstalled", None)


def test_an_exec_that_failed_is_no_end(tmp_path: Path) -> None:
    """The word is taken back."""
    journal = program(tmp_path, 1)
    journal.define("exit", t=S, how="exec")
    journal.define("exit", t=S + MS, how="resumed")
    (process,) = survey([str(tmp_path)]).processes
    assert process.exit is None


@pytest.mark.parametrize("said", [True, False])
def test_nobody_claims_a_rank_twice_by_becoming_another(tmp_path: Path, said: bool) -> None:
    """Rank 1 began to join, became another program and joins again; rank 0 does not come."""
    first = program(tmp_path, 1)
    first.join(100 * MS, 2)
    if said:
        first.define("exit", t=S // 2, how="exec")
    second = program(tmp_path, 2)
    second.join(100 * MS, 2)
    second.beat(3)
    found = findings(tmp_path, look=all_gone)
    assert found
    assert {f.kind for f in found}.isdisjoint({"duplicate_rank", "no_progress"})
    assert not [f for f in found if 0 in f.culprits]  # the earlier program
