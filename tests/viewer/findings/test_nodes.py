"""The rendezvous of torchrun's agents: how many nodes came, and who is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.findings.rules.communicator_creation import is_start
from disttrace_viewer.merge.reader import load
from support.journals import MS, Journal, S
from support.scenes import alive, all_gone, findings, finds, nobody_knows, only

TIMED_OUT = "RendezvousTimeoutError: "


def node(folder: Path, number: int, *, host: str = "", listens: bool | None = None) -> Journal:
    """An agent's journal; the first one listens."""
    journal = Journal(
        folder, pid=900 + number, role="agent", host=host or f"node{number}",
        boot_id=f"boot{number}", job="train", job_source="--rdzv-id",
    )  # fmt: skip
    journal.tcp_store(29400, host="node0", server=number == 0 if listens is None else listens)
    journal.define("rendezvous", t=1, event="", text="", node=journal.host, run="train")
    return journal


def meet(
    journal: Journal, t: int, nodes: int | tuple[int, int] = 2, run: str = "train", **args: Any
) -> int:
    """Begin a rendezvous, which asks the store twice; it stays in flight."""
    least, most = nodes if isinstance(nodes, tuple) else (nodes, nodes)
    args |= {"backend": "c10d", "run_id": run, "min_nodes": least, "max_nodes": most}
    call = journal.call("rendezvous", kind="composed", origin="python", args=args)
    number = journal.begin(call, t)
    ask = journal.call("store.get", kind="store", store=1, origin="python")
    for turn in (1, 2):
        journal.run(ask, t + turn * S // 2, MS, p=number, k=f"torch.rendezvous.{run}")
    return number


def test_a_node_that_never_came(tmp_path: Path) -> None:
    """Two of three: both are named with their hosts, and nobody is blamed."""
    for number in (0, 1):
        journal = node(tmp_path, number)
        meet(journal, 2 * S, nodes=3)
        journal.beat(20)
    found = finds(tmp_path, "rendezvous_incomplete", [], certainty="likely")
    assert found.summary == (
        "Agents 900 on node0 and 901 on node1 have been waiting in the rendezvous 'train' of nodes"
        " at tcp://node0:29400 for 18.0 s: 2 of 3 nodes came; of the other one no process was seen."
    )
    assert found.absent_ranks == ()
    assert found.settles


@pytest.mark.parametrize(("age_s", "start"), [(22, True), (70, False)])
def test_nodes_may_come_one_after_another(tmp_path: Path, age_s: int, *, start: bool) -> None:
    """As ranks may: whoever starts them by hand, or a scheduler, is seconds late as a rule."""
    journal = node(tmp_path, 0)
    meet(journal, 2 * S)
    journal.beat(age_s)
    found = only(findings(tmp_path))
    assert (found.kind, is_start(found)) == ("rendezvous_incomplete", start)
    assert found.severity == ("note" if start else "error")


@pytest.mark.parametrize(("age_s", "kinds"), [(44, []), (60, ["no_progress"])])
def test_the_last_node_has_just_come(tmp_path: Path, age_s: int, kinds: list[str]) -> None:
    """Agents take seconds to settle who is who; what counts is since when all are there."""
    for number in (0, 1):
        journal = node(tmp_path, number)
        meet(journal, 2 * S + number * 40 * S)
        journal.beat(age_s)
    assert [found.kind for found in findings(tmp_path)] == kinds


@pytest.mark.parametrize(("until_s", "certainty"), [(30, "certain"), (12, "likely")])
def test_a_node_that_stays_away_is_no_start(tmp_path: Path, until_s: int, certainty: str) -> None:
    """It was in an earlier round, so nobody imports there; one that fell silent may have ended."""
    for number in (0, 1):
        journal = node(tmp_path, number)
        journal.end(meet(journal, 2 * S), 3 * S)
        if number == 0:
            meet(journal, 10 * S)
        journal.beat(until_s if number else 30)
    found = finds(tmp_path, "rendezvous_incomplete", severity="error")
    assert (found.certainty, bool(found.settles)) == (certainty, certainty == "likely")


def static(folder: Path, rank: int) -> None:
    """One of two nodes in a static rendezvous, of which the first one listens."""
    journal, sizes = node(folder, rank), {"min_nodes": 2, "max_nodes": 2}
    args = {"backend": "static", "run_id": "none", "node_rank": rank, **sizes}
    parent = journal.begin(journal.call("rendezvous", kind="composed", args=args), 2 * S)
    store = journal.tcp_store(29500, host="node0", server=rank == 0)
    make = journal.call("TCPStore", kind="constructor", store=store, args={"world_size": 2})
    journal.begin(make, 2 * S + MS, p=parent)
    journal.beat(20)


def test_the_node_that_listens_may_come_last(tmp_path: Path) -> None:
    """The other one dials in vain meanwhile."""
    static(tmp_path, 1)
    found = findings(tmp_path)
    assert {one.kind for one in found} == {"rendezvous_unreachable", "rendezvous_incomplete"}
    assert all(map(is_start, found))


def test_the_same_after_they_were_killed(tmp_path: Path) -> None:
    """In the middle of asking the store."""
    for number in (0, 1):
        journal = node(tmp_path, number)
        rendezvous = meet(journal, 2 * S, nodes=3)
        journal.beat(20)
        ask = journal.call("store.get", kind="store", store=1, origin="python")
        journal.begin(ask, 20 * S + MS, p=rendezvous, k="torch.rendezvous.train")
    finds(tmp_path, "rendezvous_incomplete", consequences=(), look=all_gone)


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SignalException"])
def test_the_same_after_one_who_was_alone_was_interrupted(tmp_path: Path, kind: str) -> None:
    """It has started nobody yet; its rendezvous ended by the very signal."""
    journal = node(tmp_path, 0)
    number = meet(journal, 2 * S)
    journal.end(number, 33 * S, x=journal.string(kind))
    journal.fail(35 * S + MS, kind, "")
    found, note = findings(tmp_path, look=all_gone)
    assert (found.kind, found.culprits, found.severity) == ("rendezvous_incomplete", (), "error")
    assert "for 33.0 s: 1 of 2 nodes came" in found.summary
    assert (note.kind, note.severity) == ("process_failed", "note")


def test_they_gave_up(tmp_path: Path) -> None:
    """Its own time-out ended the rendezvous, and the agent with it."""
    journal = node(tmp_path, 0)
    number = meet(journal, 2 * S)
    journal.end(number, 600 * S, x=journal.string(TIMED_OUT))
    journal.fail(603 * S, "RendezvousTimeoutError", "")
    finds(tmp_path, "rendezvous_incomplete", says="for 10 min 0 s: 1 of 2 nodes came")


def test_one_node_that_is_enough_waits_for_nobody(tmp_path: Path) -> None:
    """--nnodes 1:2 leaves the door open for half a minute."""
    journal = node(tmp_path, 0)
    meet(journal, 2 * S, nodes=(1, 2))
    journal.beat(24)
    assert findings(tmp_path) == []


def test_another_id_in_the_same_store(tmp_path: Path) -> None:
    """Both wait for the other one: one finding, although torchrun's id makes them two jobs."""
    for number, run in enumerate(("train", "trial")):
        journal = node(tmp_path, number)
        meet(journal, 2 * S, run=run)
        journal.beat(20)
    told = "1 of 2 nodes came; agent 901 on node1 waits there under the id 'trial'."
    found = finds(tmp_path, "rendezvous_incomplete", certainty="certain", ends=told)
    assert len(found.waiting) == 2
    assert "--rdzv-id" in (found.hint or "")
    # Each node took itself for the one that hosts the store.
    for number in (0, 1):
        journal = node(tmp_path / "store", number, listens=True)
        meet(journal, 2 * S)
        journal.beat(20)
    found = only(findings(tmp_path / "store"))
    assert "agent 901 on node1 waits for the same id at tcp://node0:29400" in found.summary
    assert "--rdzv-endpoint" in (found.hint or "")


def test_other_numbers_of_nodes(tmp_path: Path) -> None:
    """One agent goes on alone each time; the other one waits for two."""
    first, second = node(tmp_path, 0), node(tmp_path, 1)
    first.end(meet(first, 2 * S, nodes=1), 3 * S)
    meet(second, 6 * S, nodes=2)
    for journal in (first, second):
        journal.beat(30)
    found = finds(tmp_path, "rendezvous_incomplete", [], certainty="certain")
    assert found.summary.endswith(
        "1 of 2 nodes came; agent 900 on node0 went on without, with --nnodes 1 where --nnodes 2"
        " are wanted here."
    )
    # The number of nodes is what keeps them apart, and neither network nor library.
    for number in (0, 1):
        journal = node(tmp_path / "agree", number)
        meet(journal, 2 * S, nodes=number + 1)
        journal.beat(20)
    found = finds(tmp_path / "agree", "rendezvous_incomplete")
    assert found.summary.endswith(
        "they do not agree on --nnodes: agent 900 on node0: --nnodes 1 and agent 901 on node1:"
        " --nnodes 2."
    )


def test_a_node_that_was_there_before_is_named(tmp_path: Path) -> None:
    """After a restart it does not come back: it has ended, on a host that is known."""
    first, second = node(tmp_path, 0), node(tmp_path, 1)
    for journal in (first, second):
        journal.end(meet(journal, 2 * S), 3 * S)
    second.define("exit", t=20 * S, how="normal", code=None)
    meet(first, 22 * S)
    first.beat(50)
    told = "agent 901 on node1 was in an earlier round and did not come: it has ended."
    found = finds(tmp_path, "rendezvous_incomplete", certainty="certain", ends=told)
    (culprit,) = found.culprits
    assert load([str(tmp_path)]).processes[culprit].host == "node1"


def test_a_node_rank_that_is_not_claimed(tmp_path: Path) -> None:
    """A static rendezvous says which node waits, so the other ones are known by number."""
    static(tmp_path, 0)
    found = finds(tmp_path, "rendezvous_incomplete")
    assert found.summary == (
        "Agent 900 on node0 has been waiting in the rendezvous of nodes at tcp://node0:29500 for"
        " 18.0 s: 1 of 2 nodes came; no process of node 1 was seen."
    )
    assert found.absent_ranks == ()


def test_agents_that_wait_for_one_another_at_the_end(tmp_path: Path) -> None:
    """One node's workers run longer: that is no fault, however long it takes."""
    for number in (0, 1):
        journal = node(tmp_path, number)
        journal.end(meet(journal, 2 * S), 3 * S)
        if number == 0:
            leave = journal.begin(journal.call("exit_barrier", kind="composed"), 30 * S)
            wait = journal.call("store.wait", kind="store", store=1)
            journal.begin(wait, 30 * S + MS, p=leave, k=["torchelastic/terminal/last_member"])
        journal.beat(300)
    assert findings(tmp_path, look=nobody_knows) == []


def test_agents_of_one_host(tmp_path: Path) -> None:
    """The second one wanted to listen as well, found the port taken, and dials."""
    for number in (0, 1):
        job: dict[str, Any] = {"job": "train", "job_source": "--rdzv-id"}
        journal = Journal(tmp_path, pid=900 + number, role="agent", **job)
        journal.tcp_store(29400, server=True)
        if number:
            journal.tcp_store(29400, address="127.0.0.1:29400")
        args = {"backend": "c10d", "run_id": "train", "min_nodes": 3, "max_nodes": 3}
        parent = journal.begin(journal.call("rendezvous", kind="composed", args=args), 2 * S)
        ask = journal.call("store.get", kind="store", store=number + 1)
        journal.run(ask, 3 * S, MS, p=parent, k="torch.rendezvous.train")
        journal.beat(20)
    found = only(findings(tmp_path))
    assert "2 of 3 nodes came" in found.summary


CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def launched(folder: Path, world_size: int = 3) -> tuple[Journal, list[Journal]]:
    """torchrun's agent and the journals of all its workers but rank 1."""
    agent = Journal(folder, pid=500, role="agent")
    workers = []
    for rank in range(world_size):
        agent.define("worker", t=MS, pid=600 + rank, event="started", rank=rank, attempt=0)
        if rank != 1:
            of: dict[str, Any] = {"world_size": world_size, "parent": agent.process}
            workers.append(Journal(folder, rank=rank, pid=600 + rank, **of))
    return agent, workers


@pytest.mark.parametrize(
    ("end", "words"),
    [({"code": 1}, "ended with exit code 1"), ({"signal": "SIGKILL"}, "ended by SIGKILL")],
)
def test_a_failure_before_torch_is_it(tmp_path: Path, end: dict[str, object], words: str) -> None:
    """The agent's own failure and the workers that it ended follow from it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, journal=False, **end)
    for rank in (0, 2):
        end = {"event": "killed", "rank": rank, "attempt": 0, "signal": "SIGTERM"}
        agent.define("worker", t=2 * S, pid=600 + rank, **end)
    agent.fail(3 * S, CHILD_FAILED, "train.py FAILED")
    for one in others:
        one.beat(1)
    keys = {"certainty": "certain", "absent_ranks": (1,), "look": all_gone}
    found = finds(tmp_path, "process_failed", [], **keys)
    assert found.summary == f"Rank 1 {words} before it used torch.distributed."
    assert any("ChildFailedError" in text for text in found.consequences)


def test_a_journal_that_was_lost_is_no_proof(tmp_path: Path) -> None:
    """Its launcher saw a journal: what was in it nobody knows."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, code=1)
    agent.fail(3 * S, CHILD_FAILED, "train.py FAILED")
    for one in others:
        one.beat(1)
    found = finds(tmp_path, "process_failed", certainty="likely")
    assert found.summary == "Rank 1 ended with exit code 1, and no journal of it was found."


def test_who_ended_before_the_last_attempt_is_not_told_of(tmp_path: Path) -> None:
    """Live its journal may have been left out, and its launcher has begun anew after it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="failed", rank=1, attempt=0, code=1)
    for rank in range(3):
        agent.define("worker", t=2 * S, pid=700 + rank, event="started", rank=rank, attempt=1)
        again = Journal(
            tmp_path, rank=rank, world_size=3, pid=700 + rank, parent=agent.process,
            keys={"attempt": 1},
        )  # fmt: skip
        again.beat(5)
    agent.beat(5)
    for one in others:
        one.beat(1)
    assert [found.kind for found in findings(tmp_path)] == []


def meeting(others: list[Journal]) -> None:
    """They live, and make a group of three."""
    for one in alive(others):
        store = one.tcp_store(server=one.rank == 0)
        args = {"store": store, "args": {"rank": one.rank, "size": 3}}
        one.begin(one.call("ProcessGroupGloo", kind="constructor", **args), 100 * MS)


def test_one_that_left_before_the_rendezvous_is_named_in_it(tmp_path: Path) -> None:
    """It ended well by its own account: the others wait for it."""
    agent, others = launched(tmp_path)
    agent.define("worker", t=S, pid=601, event="exited", rank=1, attempt=0, code=0, journal=False)
    agent.beat(20)
    meeting(others)
    found = finds(tmp_path, "rendezvous_incomplete", certainty="certain", absent_ranks=(1,))
    assert "rank 1 ended with exit code 0 before it used torch.distributed" in found.summary


def test_one_that_hung_before_it_used_torch(tmp_path: Path) -> None:
    """In an import, say: its launcher had started it, and ended it with the others."""
    agent, others = launched(tmp_path)
    for rank in range(3):
        lost = {"journal": False} if rank == 1 else {}
        agent.define("worker", t=20 * S, pid=600 + rank, event="killed", rank=rank, attempt=0,
                     signal="SIGTERM", **lost)  # fmt: skip
    agent.beat(20)
    meeting(others)
    found = finds(
        tmp_path, "rendezvous_incomplete", certainty="certain", absent_ranks=(1,), settles=(),
        look=all_gone,
    )  # fmt: skip
    assert "rank 1 was started (pid 601) and had not used torch.distributed until" in found.summary


def test_a_job_that_never_used_it_is_well(tmp_path: Path) -> None:
    """Workers that end with 0 and have no journal are no fault."""
    agent, others = launched(tmp_path, world_size=2)
    agent.define("worker", t=S, pid=601, event="exited", rank=1, attempt=0, code=0, journal=False)
    for one in (*others, agent):
        one.leave(2 * S)
    assert findings(tmp_path) == []
