"""What a program declares: `disttrace.operation` gets the verdicts of communication of c10d, and
`disttrace.annotate` is a name around operations.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.preloaded import preloaded
from support.processes import clean_environ, ending, missing
from support.raw import read_journals

PROGRAM = """
import sys, time
import disttrace
if sys.argv[1] == "untraced":
    with disttrace.operation("pynccl.all_reduce"):
        raise SystemExit
disttrace.install(job="imitated", stall=1)
import torch.distributed as dist
rank = int(sys.argv[2])
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)

class PyNccl:
    calls = 0

    def all_reduce(self, tokens):
        with disttrace.operation("pynccl.all_reduce", tokens=tokens):
            self.calls += 1
            if self.calls == 2:
                time.sleep(float(sys.argv[3]))  # as a kernel that waits for the other rank
            else:
                dist.barrier()

    def put(self, peer):
        with disttrace.operation("symmetric_memory.put", peers=[peer]):
            pass

library = PyNccl()
library.put(1 - rank)
library.all_reduce(4)
if rank == 0:
    library.all_reduce(4)  # the other one does not come
else:
    time.sleep(float(sys.argv[3]))
"""


def run(folder: Path, *arguments: str) -> None:
    """One process, traced by what it does itself."""
    preloaded("-c", PROGRAM, *arguments, DISTTRACE_DIR=str(folder)).check()


def test_without_tracing_nothing(tmp_path: Path) -> None:
    """No journal, no exception."""
    run(tmp_path, "untraced")
    assert not list(tmp_path.glob("*.jsonl"))


def test_what_is_recorded(tmp_path: Path) -> None:
    """In a sequence of the group with its fields, and with peers in none; errors pass."""
    pytest.importorskip("torch")
    code = PROGRAM.replace(", 2)", ", 1)").replace("world_size=2", "world_size=1")
    code += """
try:
    with disttrace.operation("failing"):
        raise LookupError("gone")
except LookupError:
    pass
else:
    raise SystemExit("an exception was swallowed")
"""
    arguments = (str(tmp_path / "store"), "0", "0")
    preloaded("-c", code, *arguments, DISTTRACE_DIR=str(tmp_path)).check()
    (journal,) = read_journals(tmp_path)
    calls = journal.calls()
    begun = [(calls[record["s"]], record) for record in journal.records if "b" in record]
    told = [(call, begin) for call, begin in begun if call.get("backend") == "declared"]
    assert [
        (call["op"], call["kind"], call.get("args"), begin.get("q")) for call, begin in told
    ] == [
        ("symmetric_memory.put", "composed", {"ranks": [1]}, None),
        ("pynccl.all_reduce", "collective", {"tokens": 4}, 1),
        ("pynccl.all_reduce", "collective", {"tokens": 4}, 2),
        ("failing", "collective", None, 3),
    ]
    (barrier, *_) = [begin for call, begin in begun if call["op"] == "barrier"]
    assert barrier["p"] == told[1][1]["b"]


def test_a_rank_that_does_not_come_is_told_as_for_a_collective(tmp_path: Path) -> None:
    """By rank and line of who waits, while it hangs."""
    pytest.importorskip("polars")
    environ = clean_environ(DISTTRACE_DIR=str(tmp_path))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(n), "60"], env=environ) for n in (0, 1)]
    with ending(*ranks):
        finding = missing(tmp_path)
    assert finding["summary"].startswith("Rank 1 never joined pynccl.all_reduce #2"), finding


ANNOTATES = """
import disttrace
@disttrace.annotate("early")
def early():
    return 7
with disttrace.annotate("untraced"):
    assert early() == 7
disttrace.install()
import torch.distributed as dist
store = dist.HashStore()
with disttrace.annotate("outer"):
    assert early() == 7
    store.set("k", "v")
try:
    with disttrace.annotate("failing"):
        raise LookupError("gone")
except LookupError:
    pass
else:
    raise SystemExit("annotate swallowed an exception")
"""


def test_an_annotation_is_the_parent_of_what_happens_in_it(tmp_path: Path) -> None:
    """Traced from `install` on, also where decorated before, at the user's line; errors pass."""
    pytest.importorskip("torch")
    outcome = preloaded("-c", ANNOTATES, DISTTRACE_DIR=str(tmp_path)).check()
    assert outcome.stderr == ""
    (journal,) = read_journals(tmp_path)
    calls = journal.calls()
    begun = {one["b"]: (calls[one["s"]], one) for one in journal.records if "b" in one}
    names = {number: call.get("name") for number, (call, _) in begun.items()}
    assert [
        (call["op"], call.get("name"), names.get(begin.get("p"))) for call, begin in begun.values()
    ] == [
        ("HashStore", None, None), ("annotate", "outer", None), ("annotate", "early", "outer"),
        ("store.set", None, "outer"), ("annotate", "failing", None),
    ]  # fmt: skip
    strings = journal.strings()
    assert [strings[r["x"]] for r in journal.records if "x" in r] == ["LookupError: gone"]
