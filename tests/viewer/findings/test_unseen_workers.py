"""Workers without a journal, of which their launcher knows how they ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, Journal
from support.scenes import S, all_gone, beat, fail, findings, leave, only

CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def launched(folder: Path, world_size: int = 3) -> tuple[Journal, list[Journal]]:
    """torchrun's agent and the journals of all its workers but rank 1."""
    agent = Journal(folder, pid=500, role="agent")
    workers = []
    for rank in range(world_size):
        agent.define("worker", t=MS, pid=600 + rank, event="started", rank=rank, attempt=0)
        if rank != 1:
            one = Journal(
                folder, rank=rank, world_size=world_size, pid=600 + rank, parent=agent.process
            )
            workers.append(one)
    return agent, workers


@pytest.mark.parametrize(
    ("end", "words"),
    [({"code": 1}, "ended with exit code 1"), ({"signal": "SIGKILL"}, "ended by SIGKILL")],
)
def test_a_failure_before_torch_is_the_finding(
    tmp_path: Path, end: dict[str, object], words: str
) -> None:
    """The agent's own failure and the workers that it ended follow from it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, journal=False, **end)
    for rank in (0, 2):
        agent.define("worker", t=2 * S, pid=600 + rank, event="killed", rank=rank, attempt=0,
                     signal="SIGTERM")  # fmt: skip
    fail(agent, 3 * S, CHILD_FAILED, "train.py FAILED")
    for one in others:
        beat(one, 1)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, found.certainty) == ("process_failed", "certain")
    assert (found.absent_ranks, found.culprits) == ((1,), ())
    assert found.summary == f"Rank 1 {words} before it used torch.distributed."
    assert any("ChildFailedError" in text for text in found.consequences)


def test_a_journal_that_was_lost_is_no_proof(tmp_path: Path) -> None:
    """Its launcher saw a journal: what was in it nobody knows."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, code=1)
    fail(agent, 3 * S, CHILD_FAILED, "train.py FAILED")
    for one in others:
        beat(one, 1)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("process_failed", "likely")
    assert found.summary == "Rank 1 ended with exit code 1, and no journal of it was found."


def test_who_ended_before_the_last_attempt_is_not_told_of(tmp_path: Path) -> None:
    """Live its journal may have been left out, and its launcher has begun anew after it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, code=1)
    for rank in range(3):
        agent.define("worker", t=2 * S, pid=700 + rank, event="started", rank=rank, attempt=1)
        again = Journal(
            tmp_path,
            rank=rank,
            world_size=3,
            pid=700 + rank,
            parent=agent.process,
            keys={"attempt": 1},
        )
        beat(again, 5)
    beat(agent, 5)
    for one in others:
        beat(one, 1)
    assert [found.kind for found in findings(tmp_path)] == []


def test_one_that_left_before_the_rendezvous_is_named_in_it(tmp_path: Path) -> None:
    """It ended well by its own account: the others wait for it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="exited", rank=1, attempt=0, code=0, journal=False)
    beat(agent, 20)
    for one in others:
        store = one.tcp_store(server=one.rank == 0)
        args = {"store": store, "args": {"rank": one.rank, "size": 3}}
        call = one.call("ProcessGroupGloo", kind="constructor", **args)
        one.begin(call, 100 * MS)
        beat(one, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("rendezvous_incomplete", "certain")
    assert found.absent_ranks == (1,)
    assert "rank 1 ended with exit code 0 before it used torch.distributed" in found.summary


def test_one_that_hung_before_it_used_torch(tmp_path: Path) -> None:
    """In an import, say: its launcher had started it, and ended it with the others."""
    agent, others = launched(tmp_path)
    for rank in range(3):
        lost = {"journal": False} if rank == 1 else {}
        agent.define("worker", t=20 * S, pid=600 + rank, event="killed", rank=rank, attempt=0,
                     signal="SIGTERM", **lost)  # fmt: skip
    beat(agent, 20)
    for one in others:
        store = one.tcp_store(server=one.rank == 0)
        args = {"store": store, "args": {"rank": one.rank, "size": 3}}
        call = one.call("ProcessGroupGloo", kind="constructor", **args)
        one.begin(call, 100 * MS)
        beat(one, 20)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, found.certainty) == ("rendezvous_incomplete", "certain")
    assert (found.absent_ranks, found.settles) == ((1,), ())
    assert "rank 1 was started (pid 601) and had not used torch.distributed until" in found.summary
    assert "before they use torch.distributed: an import" in (found.hint or "")


def test_a_job_that_never_used_it_is_well(tmp_path: Path) -> None:
    """Workers that end with 0 and have no journal are no fault."""
    agent, others = launched(tmp_path, world_size=2)
    agent.define("worker", t=S, pid=601, event="exited", rank=1, attempt=0, code=0, journal=False)
    for one in (*others, agent):
        leave(one, 2 * S)
    assert findings(tmp_path) == []
