"""Every call is shown at the line that made it, also where code comes and goes."""

from __future__ import annotations

from pathlib import Path

from support.cores import EACH_CORE
from support.preloaded import preloaded
from support.raw import read_journals

CELLS = """
import sys
import disttrace
disttrace.install(dir=sys.argv[1], core=sys.argv[2])
import torch.distributed as dist

store = dist.HashStore()

def step():
    store.set("step", "1")

for number in range(60):  # as in a notebook: every cell is compiled, run once and let go
    exec(compile("step()", f"<cell {number}>", "exec"), {"step": step})
"""


@EACH_CORE
def test_cells_of_a_notebook(tmp_path: Path, core: str) -> None:
    preloaded("-W", "ignore", "-c", CELLS, str(tmp_path), core).check()
    (journal,) = read_journals(tmp_path)
    files = {each["n"]: each["v"] for each in journal.of("string")}
    stacks = {each["n"]: each["frames"] for each in journal.of("stack")}
    calls = journal.calls()
    found = [calls[each["s"]] for each in journal.records if "b" in each]
    below = [files[stacks[call["stack"]][1][0]] for call in found if call["op"] == "store.set"]
    assert below == [f"<cell {number}>" for number in range(60)]


HANDLED = """
import signal, sys
import disttrace
disttrace.install(dir=sys.argv[1], core=sys.argv[2])
import torch.distributed as dist
import torch.multiprocessing

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
store = dist.HashStore()

def step(rank):
    store.set("step", "1")

# As in a rank that mp.spawn starts.
sys.modules["torch.multiprocessing.spawn"]._wrap(step, 0, (), "/dev/null")
"""


@EACH_CORE
def test_a_program_with_a_handler_below_mp_spawn(tmp_path: Path, core: str) -> None:
    """Frames are compared with the handler's; mp.spawn's is a function that runs code of ours."""
    ran = preloaded("-W", "ignore", "-c", HANDLED, str(tmp_path), core).check()
    assert "no longer traced" not in ran.stderr
    (journal,) = read_journals(tmp_path)
    assert [call["op"] for call in journal.calls().values()].count("store.set") == 1
