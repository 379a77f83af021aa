"""Every way out of a process leaves the record that it can, and stays the way out it was; and what
torchrun's agent records of its workers, with restarts as attempts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from disttrace.lifecycle.exit_hooks import shown
from support.patches import OURS
from support.preloaded import preloaded, to_its_end, torchrun
from support.processes import Outcome, python
from support.raw import RawJournal, read_journals

PROGRAM = Path(__file__).with_name("ways_out.py")
FAILURE = [("ValueError", "first line")]

Exits = list[tuple[str, int | None]]
Failures = list[tuple[str, str]]

# How it ends, its exit code, exit records as (how, code), failures as (type, text).
IN_MAIN: list[tuple[str, int, Exits, Failures]] = [
    ("use", 0, [("normal", None)], []), ("raises", 1, [("exception", 1)], FAILURE),
    ("leaves", 7, [("exit", 7)], []), ("leaves_with_words", 1, [("exit", 1)], []),
    ("quits", 5, [("exit", 5)], []), ("leaves_well", 0, [("exit", 0)], []),
    ("leaves_through_others", 7, [("exit", 7)], []),
    ("catches", 0, [("normal", None)], []),
    ("catches_late", 0, [("normal", None)], []),
    ("catches_and_leaves", 8, [("exit", 8)], []),
    ("leaves_a_thread", 0, [("normal", None)], []),
    ("leaves_at_once", 9, [("os._exit", 9)], []),
    ("killed", -9, [], []),
    ("terminated", -15, [], []),
    ("aborts", -6, [], []),
    ("interrupted", -2, [("exception", None)], [("KeyboardInterrupt", "")]),
    ("raises_in_thread", 0, [("normal", None)], FAILURE),
    ("leaves_a_daemon", 0, [("normal", None)], []),
    ("own_hook", 1, [("exception", 1)], FAILURE),
    ("console", 0, [("normal", None)], []),
    ("own_console", 0, [("normal", None)], []),
    ("fails_after_a_console", 1, [("exception", 1)], FAILURE),
]  # fmt: skip
SHOWN = {"own_hook": "mine ValueError\n", "own_console": "mine ZeroDivisionError\n"}
"""What the programs print; the others nothing."""
IN_CHILD: list[tuple[str, str, int, Exits, Failures]] = [
    ("fork", "use", 0, [("exit", 0)], []), ("fork", "raises", 1, [("exception", 1)], FAILURE),
    ("fork", "leaves_at_once", 9, [("os._exit", 9)], []),
    ("spawn", "raises", 1, [("exception", 1)], FAILURE), ("spawn", "leaves", 7, [("exit", 7)], []),
    ("forkserver", "raises", 1, [("exception", 1)], FAILURE),
]  # fmt: skip


def ends(journal: RawJournal) -> tuple[list[Any], list[Any]]:
    """(how, code) of the exit records and (type, text) of the failures."""
    return (
        [(record["how"], record["code"]) for record in journal.of("exit")],
        [(record["type"], record["text"]) for record in journal.of("failure")],
    )


def of_child(folder: Path) -> RawJournal:
    """The journal of the child: its parent has one as well where the child ended badly."""
    (journal,) = (j for j in read_journals(folder) if j.only("process")["role"] != "main")
    return journal


def traced(folder: Path, start: str, name: str) -> Outcome:
    """The program under tracing; no frame of ours is in what it says of itself."""
    outcome = to_its_end(
        *(PROGRAM, start, name),
        PYTHONFAULTHANDLER="",  # it would list every thread at an abort, ours too
        DISTTRACE="1",
        DISTTRACE_DIR=str(folder),
    )
    assert not outcome.hung, f"{outcome}"
    assert OURS not in outcome.stderr, f"{outcome}"
    return outcome


@pytest.mark.parametrize(("name", "code", "exits", "failures"), IN_MAIN)
def test_way_out(tmp_path: Path, name: str, code: int, exits: Exits, failures: Failures) -> None:
    """One exit record where the process can write one, and the code that it has untraced, too."""
    outcome = traced(tmp_path, "main", name)
    assert (outcome.code, outcome.stdout) == (code, SHOWN.get(name, "")), f"{outcome}"
    (journal,) = read_journals(tmp_path)
    assert ends(journal) == (exits, failures)
    assert name != "raises" or "causes" not in journal.only("failure")


@pytest.mark.parametrize(("start", "name", "code", "exits", "failures"), IN_CHILD)
def test_way_out_of_a_child(
    tmp_path: Path, start: str, name: str, code: int, exits: Exits, failures: Failures
) -> None:
    """Children of multiprocessing, where neither excepthook nor atexit is called."""
    assert traced(tmp_path, start, name).check().stdout == f"{code}\n"
    journal = of_child(tmp_path)
    assert ends(journal) == (exits, failures)
    parents = [j for j in read_journals(tmp_path) if j.only("process")["role"] == "main"]
    told = [(r["event"], r["code"]) for parent in parents for r in parent.of("worker")]
    assert told == ([("failed", code)] if code else [])  # nobody else knows a signal
    for failure in journal.of("failure"):  # it shows where it was raised, innermost first
        strings, stacks = journal.strings(), journal.stacks()
        file, line, function = stacks[failure["stack"]][0]
        assert (strings[file], strings[function]) == (str(PROGRAM), "raises")
        assert PROGRAM.read_text().splitlines()[line - 1].strip().startswith("raise ValueError")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a frame of ours would show in its parent")
@pytest.mark.parametrize(
    ("name", "how", "failures"),
    [
        ("raises", "exception", FAILURE),
        ("leaves", "exit", []),
        ("interrupted", "exception", [("KeyboardInterrupt", "")]),
    ],
)
def test_way_out_of_torch_spawn(tmp_path: Path, name: str, how: str, failures: Failures) -> None:
    """Its parent shows what it shows untraced; where that is nothing, as of an interrupt before
    torch 2.15, the journal says why. One that asked to end says where.
    """
    plain = to_its_end(PROGRAM, "torch", name, DISTTRACE="0").check().stdout
    assert traced(tmp_path, "torch", name).check().stdout == plain
    codes = {"raises": 1, "leaves": 7, "interrupted": 128 + signal.SIGINT if plain else 0}
    journal = of_child(tmp_path)
    assert ends(journal) == ([(how, codes[name])], failures)
    assert name != "leaves" or journal.only("exit")["stack"]


def test_a_failure_deep_inside_a_library_shows_the_programs_line() -> None:
    """The innermost eight lines, and the program's own where these are all of a library."""
    library = [(os.__file__, n, "inner") for n in range(12)]
    own = [("/src/train.py", n, "step") for n in range(9)]
    assert shown(library + own) == library[:8] + own[:4]
    assert shown(library[:3] + own) == library[:3] + own[:5]
    assert shown(library) == library[:8]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("passes_on", "failure"), ("says_so", "failure"), ("leaves_over_it", "exit"),
     ("leaves_at_once_over_it", "exit"), ("goes_on_without", "failure")],
)  # fmt: skip
def test_what_it_was_raised_from(tmp_path: Path, name: str, kind: str) -> None:
    """A failure, or a request to end, names the error of the operation that it follows from; none
    where the program does without that.
    """
    traced(tmp_path, "main", name)
    (journal,) = read_journals(tmp_path)
    strings = journal.strings()
    (failed,) = (strings[r["x"]] for r in journal.records if "e" in r and "x" in r)
    causes = None if name == "goes_on_without" else [failed]
    assert journal.only(kind).get("causes") == causes


def test_parent_and_forked_child_end_apart(tmp_path: Path) -> None:
    """A child forked by hand that leaves by os._exit has a journal and an end of its own; its clock
    begins with the fork: nothing that it repeats is later than its end.
    """
    outcome = traced(tmp_path, "main", "forks_late").check()
    assert outcome.stdout == "3\n"
    found = {j.only("process")["role"]: j for j in read_journals(tmp_path)}
    by_role = {role: ends(journal)[0] for role, journal in found.items()}
    assert by_role == {"main": [("normal", None)], "child": [("os._exit", 3)]}
    child = found["child"]
    assert child.of("group")
    assert child.of("versions")
    assert max(one.get("t", 0) for one in child.definitions) == child.only("exit")["t"]


def test_pool(tmp_path: Path) -> None:
    """A pool's workers are traced, and its results come."""
    outcome = traced(tmp_path, "fork", "pool").check()
    assert outcome.stdout == "[0, 1, 4, 9, 16, 25]\n"
    roles = {journal.only("process")["role"] for journal in read_journals(tmp_path)}
    assert roles == {"child"}


RESTARTED = Path(__file__).with_name("restarted.py")
KEYS = ("attempt", "rank", "local_rank", "event", "code", "signal")


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[RawJournal]:
    """Journals of a job whose rank 1 is killed once, and that is started again."""
    folder = tmp_path_factory.mktemp("restart")
    options = ("--max-restarts", "1")
    torchrun(RESTARTED, 2, options=options, DISTTRACE="1", DISTTRACE_DIR=str(folder)).check()
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
    outcome = preloaded(script, DISTTRACE="1", DISTTRACE_DIR=str(folder)).check()
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
