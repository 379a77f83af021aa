"""The main job: a torchrun program with no code change leaves a journal per process, merged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from disttrace import cli
from disttrace.commands.run import environment
from support.processes import ROOT, Outcome, clean_environ, python, run_program, torchrun
from support.raw import read_journals

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
    """A job that ended well has nothing in flight."""
    _, _, rows = job
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["begin_ns"] <= row["end_ns"] for row in rows)


def test_both_ends_of_a_message_agree(job: tuple[Path, Outcome, list[Row]]) -> None:
    """Each send meets the recv of the same number, group, peers and size, and not before."""
    _, _, rows = job
    sends = {(r["rank"], r["peer"], r["tag"], r["seq"]): r for r in rows if r["op"] == "send"}
    recvs = {(r["peer"], r["rank"], r["tag"], r["seq"]): r for r in rows if r["op"] == "recv"}
    assert sends.keys() == recvs.keys()
    assert len(sends) == 6
    for key, send in sends.items():
        recv = recvs[key]
        assert send["group"] == recv["group"]
        assert (send["bytes"], send["dtypes"]) == (recv["bytes"], recv["dtypes"])
        assert recv["end_ns"] >= send["begin_ns"]


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


CHILDREN = """
import multiprocessing, sys
def child(queue):
    from disttrace.session import installed
    queue.put((installed(), "torch" in sys.modules))
if __name__ == "__main__":
    {first}
    for kind in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(kind, *queue.get())
        process.join()
        print(process.exitcode)
"""
ALL = "spawn True False\n0\nfork True False\n0\nforkserver True False\n0\n"


def program(folder: Path, first: str) -> Path:
    """The program above in a file, with a first statement of its own."""
    path = folder / "children.py"
    path.write_text(CHILDREN.format(first=first))
    return path


def shell(folder: Path) -> dict[str, str]:
    """An environment in which interpreters start tracing, installed or not."""
    return environment({"dir": str(folder / "out")}, clean_environ())


def test_children_of_every_kind_are_traced(tmp_path: Path) -> None:
    """With DISTTRACE=1, in spawned, forked and forkserver children, without loading torch."""
    environ = shell(tmp_path)
    outcome = run_program([sys.executable, program(tmp_path, "pass")], environ, 120).check()
    assert (outcome.stdout, outcome.stderr) == (ALL, "")
    assert not (tmp_path / "out").exists()  # nobody used c10d: nobody wrote


def test_a_processs_own_threads_and_folder_stay_as_they_were(tmp_path: Path) -> None:
    """A program that never touches torch runs with the same modules, threads and directory."""
    environ = shell(tmp_path)
    code = (
        "import os, sys, threading\n"
        "print(os.getcwd(), threading.active_count(), 'torch' in sys.modules)"
    )
    outcome = run_program([sys.executable, "-c", code], environ, 60, cwd=tmp_path).check()
    assert (outcome.stdout, outcome.stderr) == (f"{tmp_path} 1 False\n", "")


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
