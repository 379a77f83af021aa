"""torchrun's agent: what it waited for, how each worker ended, and restarts as attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.preloaded import preloaded
from support.processes import python, torchrun
from support.raw import RawJournal, read_journals

PROGRAM = Path(__file__).with_name("restarted.py")
KEYS = ("attempt", "rank", "local_rank", "event", "code", "signal")


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[RawJournal]:
    """Journals of a job whose rank 1 is killed once, and that is started again."""
    folder = tmp_path_factory.mktemp("restart")
    options = ("--max-restarts", "1")
    torchrun(PROGRAM, 2, options=options, DISTTRACE="1", DISTTRACE_DIR=str(folder)).check()
    return read_journals(folder)


def agent(journals: list[RawJournal]) -> RawJournal:
    (found,) = (j for j in journals if j.only("process")["role"] == "agent")
    return found


def composed(journal: RawJournal, op: str) -> list[dict[str, Any]]:
    """Arguments of the agent's operations of one name."""
    calls: dict[int, dict[str, Any]] = {}
    for record in journal.of("call"):
        calls.setdefault(record["n"], {}).update(record)
    begun = [record["s"] for record in journal.records if "b" in record and "r" not in record]
    return [calls[n]["args"] for n in begun if calls[n]["op"] == op]


def test_attempts_stay_apart(journals: list[RawJournal]) -> None:
    """Four workers, two attempts, four journals, and none holds records of another."""
    workers = [j.only("process") for j in journals if j.only("process")["role"] == "worker"]
    found = sorted((p["attempt"], p["env"]["RANK"]) for p in workers)
    assert found == [(0, "0"), (0, "1"), (1, "0"), (1, "1")]
    assert len({p["process"] for p in workers}) == 4
    assert len({p["job"] for p in workers}) == 1


def test_how_each_worker_ended(journals: list[RawJournal]) -> None:
    """The first failure is a worker's own, the other one's end is the agent's doing."""
    records = [tuple(record.get(key) for key in KEYS) for record in agent(journals).of("worker")]
    assert records[:2] == [(0, 0, 0, "started", None, None), (0, 1, 1, "started", None, None)]
    assert (0, 1, 1, "failed", None, "SIGKILL") in records
    assert records[4:6] == [(1, 0, 0, "started", None, None), (1, 1, 1, "started", None, None)]
    assert sorted(records[6:]) == [(1, 0, 0, "exited", 0, None), (1, 1, 1, "exited", 0, None)]
    assert len(records) == 8


def test_each_rendezvous(journals: list[RawJournal]) -> None:
    """A rendezvous per attempt: who was expected, who came, and the handler's own events."""
    first, second = composed(agent(journals), "rendezvous")
    assert (first["attempt"], first["round"], first["ranks"]) == (0, 0, [0, 1])
    assert (second["attempt"], second["round"], second["ranks"]) == (1, 1, [0, 1])
    assert (first["min_nodes"], first["max_nodes"], first["nodes"]) == (1, 1, 1)
    texts = [record["text"] for record in agent(journals).of("rendezvous")]
    assert [text for text in texts if "has joined round 1" in text]
    assert len(composed(agent(journals), "start_workers")) == 2


def test_a_script_that_launches(tmp_path: Path) -> None:
    """elastic's own interface makes the process an agent, and its functions workers."""
    script = tmp_path / "launches.py"
    script.write_text(
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "import torch.distributed as dist\n"
        "def work():\n"
        "    dist.HashStore().set('k', 'v')\n"
        "    dist.init_process_group('gloo')\n"
        "    dist.destroy_process_group()\n"
        "    return dist.__name__\n"
        "if __name__ == '__main__':\n"
        "    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, max_restarts=0,\n"
        "        rdzv_backend='c10d', rdzv_endpoint='localhost:0', run_id='mine',\n"
        "        start_method='spawn')\n"
        "    print(elastic_launch(config, work)())\n"
    )
    folder = tmp_path / "out"
    outcome = python(script, DISTTRACE="1", DISTTRACE_DIR=str(folder)).check()
    assert outcome.stdout == "{0: 'torch.distributed'}\n"
    roles: dict[str, RawJournal] = {}
    for journal in read_journals(folder):
        roles[journal.of("identity")[-1]["role"]] = journal
    assert sorted(roles) == ["agent", "worker"]
    worker = roles["worker"].of("identity")[-1]
    assert (worker["rank"], worker["attempt"], worker["run"]) == (0, 0, "mine")
    ends = [record["event"] for record in roles["agent"].of("worker")]
    assert ends == ["started", "exited"]


def test_a_worker_that_fails_before_torch_is_told_by_the_agent(tmp_path: Path) -> None:
    """It has no journal, and the verdict is about it and not about its launcher."""
    program = Path(__file__).with_name("before_torch.py")
    outcome = torchrun(program, 2, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path))
    assert outcome.code == 1, f"{outcome}"
    (failed,) = (r for r in agent(read_journals(tmp_path)).of("worker") if r["event"] == "failed")
    assert (failed["rank"], failed["code"], failed["journal"]) == (1, 1, False)
    verdict = python("-m", "disttrace", "diagnose", tmp_path)
    sentence = "process_failed: Rank 1 ended with exit code 1 before it used torch.distributed."
    assert sentence in verdict.stdout, f"{verdict}"
    assert verdict.stdout.count("ERROR") == 1, f"{verdict}"


KEPT_ALIVE = """
import torch.distributed as dist
from torch.distributed.elastic.events import construct_and_record_rdzv_event, NodeState

store = dist.TCPStore("localhost", 0, is_master=True)
event = lambda text, name="Executor.run", state=NodeState.RUNNING: construct_and_record_rdzv_event(
    run_id="r", message=text, node_state=state, name=name)
event("joined")
for _ in range(50):
    event("sent a keep-alive", name="Handler._keep_alive")
    event("synced")
event("failed", state=NodeState.FAILED)
event("synced")
"""


def test_what_a_keep_alive_leads_to_is_noted_once(tmp_path: Path) -> None:
    """It comes every five seconds, and notes are never dropped: days would be megabytes."""
    preloaded("-c", KEPT_ALIVE, DISTTRACE="1", DISTTRACE_DIR=str(tmp_path)).check()
    (journal,) = read_journals(tmp_path)
    assert [r["text"] for r in journal.of("rendezvous")] == ["joined", "synced", "failed", "synced"]
