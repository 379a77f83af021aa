"""Tracing begins at any time and in every kind of process, and leaves a journal of each; the main
job is a torchrun program with no code change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttrace import cli
from support.preloaded import preloaded
from support.processes import ROOT, Outcome, python, torchrun
from support.raw import RawJournal, read_journals

GLOO = """
import torch.distributed as dist, torch
def one(path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    # Named: torch 2.5 may hang in destroying a group when the tensor went before.
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
"""


def run(
    folder: Path, program: str, by: Callable[..., Outcome] = python, **variables: str
) -> list[RawJournal]:
    """Run ``program`` from a file (children must find its main module) and read what it left."""
    script = folder / "program.py"
    script.write_text(program)
    out = folder / "out"
    by(script, str(folder / "meet"), timeout=90, DISTTRACE_DIR=str(out), **variables).check()
    return read_journals(out)


def names(journal: RawJournal) -> list[str]:
    return [op for op, _, _ in journal.operations()]


ONE_JOB = [
    "init_process_group", "rendezvous", "FileStore", "ProcessGroupGloo", "all_reduce",
    "destroy_process_group",
]  # fmt: skip


@pytest.mark.parametrize(
    "order",
    [
        "import disttrace; disttrace.install(); import torch",
        "import torch, disttrace; disttrace.install()",
        "import torch, torch.distributed, disttrace; disttrace.install(); disttrace.install()",
        """from torch.distributed import all_reduce, init_process_group
import disttrace; disttrace.install(); disttrace.uninstall(); disttrace.install()""",
    ],
    ids=["before torch", "after torch", "twice", "names imported before"],
)
def test_installs_before_or_after_torch(tmp_path: Path, order: str) -> None:
    """Each operation is recorded once, whatever was imported first."""
    by = python if order.startswith("import disttrace") else preloaded
    (journal,) = run(tmp_path, f"{order}\n{GLOO}\nimport sys; one(sys.argv[1])", by)
    assert [op for op in names(journal) if not op.startswith("store.")] == ONE_JOB
    assert all(ended for _, _, ended in journal.operations())
    assert journal.only("process")["role"] == "worker"  # it joined a group before its first record
    assert journal.only("identity")["rank"] == 0


CHILDREN = """
import disttrace, multiprocessing, os, sys
GLOO
def child(path):
    one(path)
if __name__ == "__main__":
    disttrace.install()
    context = multiprocessing.get_context("METHOD")
    children = [context.Process(target=child, args=(f"{sys.argv[1]}{n}",)) for n in range(2)]
    for c in children: c.start()
    for c in children: c.join()
    assert [c.exitcode for c in children] == [0, 0]
    one(sys.argv[1])
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_have_journals_of_their_own(tmp_path: Path, method: str) -> None:
    """Two children and their parent: three journals, one job, each with its own operations."""
    program = CHILDREN.replace("GLOO", GLOO).replace("METHOD", method)
    journals = run(tmp_path, program, preloaded if method == "fork" else python)
    processes = {journal.only("process")["process"]: journal for journal in journals}
    assert len(processes) == 3
    assert len({journal.only("process")["job"] for journal in journals}) == 1
    parents = {p: j.only("process")["parent"] for p, j in processes.items()}
    (main,) = [process for process, parent in parents.items() if parent is None]
    if method != "forkserver":  # there the server stands between, and used no c10d
        assert sorted(parents.values(), key=str) == sorted([None, main, main], key=str)
    for journal in journals:
        assert names(journal).count("all_reduce") == 1
        assert all(ended for _, _, ended in journal.operations())


def test_a_fork_in_a_threaded_program_keeps_both_journals_whole(tmp_path: Path) -> None:
    """Forks while another thread records: no line is lost, doubled or mixed."""
    program = f"""
import disttrace, os, threading, sys
disttrace.install()
{GLOO}
# Two stores: a HashStore's lock that the thread holds at a fork stays locked in the child.
store, busy = dist.HashStore(), dist.HashStore()
stop = threading.Event()
def work():
    while not stop.is_set():
        busy.set("a", "b")
thread = threading.Thread(target=work); thread.start()
pids = []
for n in range(20):
    pid = os.fork()
    if pid == 0:
        store.set(f"child{{n}}", "x")
        os._exit(0)
    pids.append(pid)
codes = [os.waitpid(pid, 0)[1] for pid in pids]
stop.set(); thread.join()
assert codes == [0] * 20, codes
"""
    journals = run(tmp_path, program, preloaded)
    keys = sorted(
        record["k"]
        for journal in journals
        for record in journal.records
        if str(record.get("k", "")).startswith("child")
    )
    assert keys == sorted(f"child{n}" for n in range(20))
    assert len(journals) == 21
    for journal in journals:
        numbers = [record["b"] for record in journal.records if "b" in record]
        assert len(numbers) == len(set(numbers))
        assert journal.of("exit"), journal.name


LATE = """
import multiprocessing, sys
def child(path):
    GLOO
    one(path)
    if path.endswith("1"): raise ValueError("no")
if __name__ == "__main__":
    import disttrace.startup; disttrace.startup.main()
    context = multiprocessing.get_context("METHOD")
    children = [context.Process(target=child, args=(f"{sys.argv[1]}{n}",)) for n in range(2)]
    for c in children: c.start()
    for c in children: c.join()
    assert [c.exitcode for c in children] == [0, 1]
    assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_child_that_imports_torch_itself_is_traced_whole(tmp_path: Path, method: str) -> None:
    """Its parent knows no torch; multiprocessing's own `os._exit` is no sudden end."""
    program = LATE.replace("GLOO", GLOO.replace("\n", "\n    ")).replace("METHOD", method)
    journals = run(tmp_path, program, DISTTRACE="1")
    ends = sorted((j.only("exit")["how"], j.only("exit")["code"]) for j in journals)
    assert ends == [("exception", 1), ("exit", 0)]
    parents = {journal.only("process")["parent"] for journal in journals}
    assert len(parents) == 1 + (method == "forkserver") or None not in parents
    assert [failure["type"] for j in journals for failure in j.of("failure")] == ["ValueError"]


# -- the main job: a torchrun program with no code change leaves a journal per process, merged


Row = dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, list[Row]]:
    """Folder, outcome and exported operations of one traced ping-pong and all-reduce job."""
    folder = tmp_path_factory.mktemp("job")
    script = ROOT / "examples" / "pingpong_allreduce.py"
    traced = torchrun(script, 2, DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_QUIET="0")
    outcome = traced.check()
    exported = folder / "operations.jsonl"
    words = ("export", str(folder), "--format", "jsonl", "-o", str(exported))
    python("-m", "disttrace", *words).check()
    return folder, outcome, [json.loads(line) for line in exported.read_text().splitlines()]


def test_agent_and_workers_have_a_journal_each(job: tuple[Path, Outcome, list[Row]]) -> None:
    """One agent, two workers, one job; one line at its end, by the launcher for all of them."""
    folder, outcome, _ = job
    processes = [journal.only("process") for journal in read_journals(folder)]
    assert sorted(p["role"] for p in processes) == ["agent", "worker", "worker"]
    assert sorted(p["env"].get("RANK", "-") for p in processes) == ["-", "0", "1"]
    assert len({p["job"] for p in processes}) == 1
    assert "disttrace" not in outcome.stdout
    (line,) = (line for line in outcome.stderr.splitlines() if "disttrace" in line)
    assert line.startswith("disttrace: 3 journals in ")
    assert "what happened: disttrace view" in line


def test_every_operation_has_an_end(job: tuple[Path, Outcome, list[Row]]) -> None:
    """A job that ended well has nothing in flight; it says its line."""
    _, outcome, rows = job
    assert "after 3 all-reduces over 2 ranks: 8" in outcome.stdout
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["begin_ns"] <= row["end_ns"] for row in rows)


def test_collectives_carry_their_arguments(job: tuple[Path, Outcome, list[Row]]) -> None:
    """Reduce op, shape, members and the line of the program."""
    _, _, rows = job
    reduced = [row for row in rows if row["op"] == "all_reduce"]
    assert sorted((row["rank"], row["seq"]) for row in reduced) == [
        *((0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3))
    ]
    source = (ROOT / "examples" / "pingpong_allreduce.py").read_text().splitlines()
    for row in reduced:
        assert (row["reduce_op"], row["async"], row["backend"]) == ("SUM", False, "gloo")
        assert row["group_ranks"] == [0, 1]
        file, line, _ = row["stack"][0]
        assert file.endswith("pingpong_allreduce.py")
        assert "all_reduce" in source[line - 1]


def test_the_way_in_is_a_tree(job: tuple[Path, Outcome, list[Row]]) -> None:
    """init_process_group is the parent of the rendezvous, which is the parent of the store."""
    _, _, rows = job
    by_id = {row["id"]: row for row in rows}
    stores = [row for row in rows if row["op"] == "TCPStore" and row["role"] == "worker"]
    assert len(stores) == 2
    for row in stores:
        rendezvous = by_id[row["parent"]]
        assert rendezvous["op"] == "rendezvous"
        assert by_id[rendezvous["parent"]]["op"] == "init_process_group"


@pytest.mark.long
def test_journals_by_torchruns_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``diagnose`` takes the whole folder, and minds no file that is none of a journal."""
    logs = tmp_path / "logs"
    outcome = torchrun(
        ROOT / "examples" / "pingpong_allreduce.py", 2,
        options=("--log-dir", str(logs), "--redirects=3"), timeout=170, DISTTRACE="1",
        DISTTRACE_DIR=str(logs / "disttrace"),
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    assert list(logs.rglob("stdout.log"))
    assert cli.main(["diagnose", str(logs)]) in (0, 1)  # 1: one was slow on a busy machine
    told = capsys.readouterr().out
    assert "Read: 3 journals" in told
    assert "stdout.log" not in told
