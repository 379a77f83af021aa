"""Remote calls that are not answered: who waits for whom, and where that one is."""

from __future__ import annotations

from pathlib import Path

from support.journals import MS, Journal, workers
from support.scenes import beat, findings, only, ranks, stand

S = 1000 * MS


def job(folder: Path, world_size: int = 2) -> list[Journal]:
    """Workers that have come through ``init_rpc``."""
    journals = workers(folder, world_size)
    for journal in journals:
        rank = journal.rank or 0
        made = composed(journal, "init_rpc", 5, name=f"worker{rank}", rank=rank)
        journal.run(made, t=100 * MS, d=50 * MS)
    return journals


def composed(journal: Journal, op: str, line: int | None, **args: object) -> int:
    """A call of an operation of RPC at a line; without a line by C++."""
    stack = {} if line is None else {"stack": journal.stack(("calls.py", line, "main"))}
    return journal.call(op, kind="composed", origin="python", args=args, **stack)


def shut_down(journal: Journal, t: int) -> None:
    """Wait for everybody at the end."""
    outer = journal.begin(composed(journal, "rpc.shutdown", 30, graceful=True), t)
    journal.begin(composed(journal, "rpc.all_gather", 30), t + 1, p=outer)


def serve(journal: Journal, t: int, func: str, line: int) -> int:
    """Run a function for another worker, in a thread that stands at a line."""
    journal.define("thread", n=1, name="rpc")
    stack = journal.stack(("calls.py", line, func))
    number = journal.begin(composed(journal, "rpc.run", None, func=func), t, h=1)
    journal.record(at=t + 2 * S, h=1, k=stack)
    return number


def test_a_call_that_hangs_in_its_function_is_told_there(tmp_path: Path) -> None:
    """The callee's main thread is in the shutdown, which follows from it."""
    caller, callee = job(tmp_path)
    caller.begin(composed(caller, "rpc_sync", 12, to="worker1", func="load"), 200 * MS)
    serve(callee, 210 * MS, "load", 7)
    shut_down(callee, 220 * MS)
    for journal in (caller, callee):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("rpc_unanswered", "likely")
    assert ranks(tmp_path, found.culprits) == [1]
    assert found.summary.startswith(
        "Rank 0 has been waiting in rpc_sync of load to worker1 at calls"
    )
    assert found.summary.endswith("worker1 (rank 1) is inside load at calls.py:7 in load.")
    assert found.consequences == ("Rank 1 waits in rpc.shutdown (calls.py:30).",)


def test_a_worker_that_never_shuts_down_is_missing(tmp_path: Path) -> None:
    """All others have come to the end."""
    one, two, three = job(tmp_path, 3)
    for journal in (one, three):
        shut_down(journal, 300 * MS)
    for journal in (one, two, three):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [1])
    assert ranks(tmp_path, found.waiting) == [0, 2]


def test_who_has_not_come_since_it_waits_itself_is_not_named(tmp_path: Path) -> None:
    """Rank 1 left a collective out and waits for the others at the end; they wait for rank 1."""
    journals = job(tmp_path, 3)
    for journal in journals:
        group = journal.world()
        if journal.rank == 1:
            shut_down(journal, 300 * MS)
        else:
            journal.begin(journal.collective(group), 300 * MS, q=1)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty, found.culprits) == ("deadlock", "likely", ())
    assert "is in rpc.all_gather inside rpc.shutdown (calls.py:30) and waits for" in found.summary
    assert "Rank 1 went on to rpc.all_gather (calls.py:30) without all_reduce #1" in str(found.hint)


def test_who_keeps_those_from_the_end_is_named(tmp_path: Path) -> None:
    """Rank 0 waits at the end for rank 1, and that one for a message of rank 2."""
    journals = job(tmp_path, 3)
    groups = [journal.world() for journal in journals]
    shut_down(journals[0], 300 * MS)
    journals[1].begin(journals[1].message(groups[1], "recv", peer=2), 300 * MS, q=1)
    stand(journals[2], 2 * S, "loader.py", 7, "load")
    for journal in journals:
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("rpc_unanswered", [2])
    assert len(found.consequences) == 1


def test_a_call_that_was_not_begun_is_told(tmp_path: Path) -> None:
    """By its id; nothing runs there."""
    caller, callee = job(tmp_path)
    caller.begin(composed(caller, "rpc_sync", 12, to=1, func="load"), 200 * MS)
    for journal in (caller, callee):
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert found.summary.endswith("1 (rank 1) has not begun it.")
