"""What ranks call while they are being ended replaces no verdict on what stood before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.journals import MS, Journal
from support.scenes import S, beat, fail, findings, leave, only, ranks, stand, steps


def hung(folder: Path, at: int, agent: Journal | None = None, *, handler: bool = False) -> None:
    """Ranks 0 and 2 are in their third all_reduce; rank 1 stands in its loader until ``at``, where
    it begins to broadcast, and all are killed soon after.
    """
    keys: dict[str, Any] = {} if agent is None else {"parent": agent.process}
    for journal, group in steps(folder, 3, **keys):
        beat(journal, at // S, 0)
        if journal.rank == 1:
            stand(journal, min(2 * S, at - MS), "loader.py", 7, "load")
            args = {"handler": True} if handler else None
            call = journal.collective(group, "broadcast", root=0, args=args)
            journal.begin(call, at, q=3)
            stand(journal, at + 2 * S, "train.py", 50, "on_term")
            beat(journal, at // S + 4, at // S + 2)
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            beat(journal, at // S + 4, at // S + 2)


def check_missing(folder: Path) -> None:
    found = next(one for one in findings(folder) if one.severity == "error")
    assert (found.kind, ranks(folder, found.culprits)) == ("missing_participant", [1])
    assert "rank 1 is at loader.py:7 in load" in found.summary


def test_a_broadcast_in_a_handler_of_signals(tmp_path: Path) -> None:
    """Nobody traced has sent the signal; the others had been waiting for long."""
    hung(tmp_path, 14 * S, handler=True)
    check_missing(tmp_path)


@pytest.mark.parametrize("handler", [False, True])
def test_one_that_met_nobody_who_waited_for_long(tmp_path: Path, handler: bool) -> None:
    """Then it is a call of the program's like all others, as is one that no handler makes."""
    hung(tmp_path, S if handler else 14 * S, handler=handler)
    assert only(findings(tmp_path)).kind == "op_mismatch"


@pytest.mark.parametrize("why", ["signal", "failure"])
def test_a_broadcast_since_the_launcher_ended_its_workers(tmp_path: Path, why: str) -> None:
    """Whatever it is called from; the launcher was sent a signal, or a rank had failed."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    stop = agent.call("stop_workers", kind="composed", origin="python", args={"signal": "SIGTERM"})
    hung(tmp_path, 14 * S + MS, agent)
    if why == "failure":
        beat(agent, 18)
        agent.begin(stop, 14 * S)
    else:
        number = agent.begin(stop, 14 * S)
        agent.end(number, 3 * S)
        fail(agent, 17 * S, "SignalException", "Process 3999 got signal: 15")
    check_missing(tmp_path)


def test_ranks_that_end_together_by_a_collective_are_well(tmp_path: Path) -> None:
    """Each asks for a last barrier in its handler, and they meet there."""
    for journal, group in steps(tmp_path, 2):
        call = journal.collective(group, "barrier", args={"handler": True})
        journal.run(call, 200 * MS, MS, q=3)
        leave(journal, 300 * MS)
    assert findings(tmp_path) == []
