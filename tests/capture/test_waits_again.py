"""A wait that reached its time limit is on record, and so is each one after it."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.merge.reader import load
from support.cores import EACH_CORE
from support.processes import torchrun
from support.raw import read_journals

PROGRAM = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
store = dist.distributed_c10d._get_default_store()
tensor = torch.ones(2)
if dist.get_rank() == 0:
    store.wait(["tried"])
    dist.all_reduce(tensor)
else:
    work = dist.all_reduce(tensor, async_op=True)
    for _ in range(3):
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError as error:
            assert "Operation timed out!" in str(error)
            assert error.__traceback__.tb_next is None  # a method of C++ has no frame
    store.set("tried", "1")
    work.wait()
assert tensor.tolist() == [2, 2]
dist.barrier()
dist.destroy_process_group()
"""


@EACH_CORE
def test_each_try_is_a_wait_of_one_operation(tmp_path: Path, core: str) -> None:
    """Gloo's work goes on after the time limit of a wait: what comes of it at last is its end."""
    program, folder = tmp_path / "tries.py", tmp_path / "journals"
    program.write_text(PROGRAM)
    torchrun(program, 2, DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_CORE=core).check()
    found = read_journals(folder)
    (journal,) = [one for one in found if any({"e", "r"} <= r.keys() for r in one.records)]
    number = next(r["e"] for r in journal.records if "e" in r and "r" in r)
    mine = [r for r in journal.records if next(iter(r.values())) == number]
    told = [next(iter(r)) + "x" * ("x" in r) for r in mine]
    assert [one for one in told if one in ("b", "i", "w", "ex", "e")] == [
        *("b", "i", *3 * ("w", "ex"), "w", "e")
    ]
    rows = load([str(folder)]).operations.filter(number=number).drop_nulls("issued_ns")
    assert rows["end_ns"].null_count() == 0
