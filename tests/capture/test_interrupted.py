"""Signal handlers that communicate: they come between any two steps of a traced call."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.merge.reader import load
from support.cores import EACH_CORE
from support.preloaded import FAKE, launched, preloaded, recorded, to_its_end
from support.raw import read_journals

CALLS = 3000

PROGRAM = """
import signal
side = dist.new_group([0, 1])
tensor, handled, over = torch.ones(2), 0, False

def handler(number, frame):
    global handled
    handled += 1
    dist.broadcast(tensor, 0, group=side)
    if not over:  # one that repeats by itself comes within its own handler where that is slow
        signal.setitimer(signal.ITIMER_REAL, 0.0002)

signal.signal(signal.SIGALRM, handler)
dist.all_reduce(tensor)
dist.broadcast(tensor, 0, group=side)
signal.setitimer(signal.ITIMER_REAL, 0.0002)
for _ in range(int(sys.argv[3])):
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
over = True
signal.setitimer(signal.ITIMER_REAL, 0)
print(handled)
"""


@EACH_CORE
def test_every_operation_ends_once(tmp_path: Path, core: str) -> None:
    """Inside the C++ of a call that issues, an unknown number of the handler's is on record."""
    outcome = to_its_end("-c", FAKE + PROGRAM, str(tmp_path), core, str(CALLS)).check()
    assert outcome.stderr == ""
    handled = int(outcome.stdout)
    assert handled > 20, handled
    (journal,) = read_journals(tmp_path)
    operations = journal.operations()
    main = [(seq, over) for op, seq, over in operations if op == "all_reduce"]
    assert sorted(main) == [(seq, True) for seq in range(1, 2 * CALLS + 2)]
    side = [(seq, over) for op, seq, over in operations if op == "broadcast"]
    assert sorted(side) == [(seq, True) for seq in range(1, len(side) + 1)]
    assert 1 < len(side) <= handled + 1
    ends = [record["e"] for record in journal.records if "e" in record]
    assert len(ends) == len(set(ends)) == len(operations)


WAITING = """
import os, signal, sys, time
import torch
import torch.distributed as dist
pid = os.fork()
if pid:
    import disttrace
    disttrace.install(dir=sys.argv[1], core=sys.argv[2])
store = dist.FileStore(sys.argv[1] + "/store", 2)
dist.init_process_group("gloo", store=store, rank=0 if pid else 1, world_size=2)
tensor = torch.ones(2)
if not pid:
    time.sleep(0.6)
    dist.send(tensor, 0)
    dist.barrier()
    os._exit(0)
signal.signal(signal.SIGALRM, lambda *_: dist.barrier())
signal.setitimer(signal.ITIMER_REAL, 0.2)
dist.irecv(tensor, 1).wait()
os.waitpid(pid, 0)
"""


@EACH_CORE
def test_what_comes_during_a_wait(tmp_path: Path, core: str) -> None:
    """A rank that is told to save meets the others in the handler: they are awaited there."""
    _, journal = recorded(WAITING, tmp_path, core)
    found = [(op, seq, over) for op, seq, over in journal.operations() if seq is not None]
    assert found == [("recv", 1, True), ("barrier", 1, True)]


# A loop that drops objects until a real timer's handler raises; where that is lost it waits long.
PROGRAM_SIGNAL_STORM = """
import signal, sys, time
core, folder, what = sys.argv[1:]
if core:
    import disttrace
    disttrace.install(dir=folder, core=core)
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
tensor, lost = torch.ones(2), []
sys.unraisablehook = lambda told: lost.append(repr(told.exc_value))

class TimeOut(Exception):
    pass

def handler(number, frame):
    raise TimeOut

def works():
    kept = [dist.all_reduce(tensor, async_op=True) for _ in range(20)]
    kept.clear()

def stores():
    kept = [dist.HashStore() for _ in range(20)]
    for store in kept:
        store.set("a", "b")
    kept.clear()

drop = {"works": works, "stores": stores}[what]
drop()
signal.signal(signal.SIGALRM, handler)
waited = 0
for turn in range(TURNS):
    try:
        end = time.monotonic() + 0.5
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + turn % 50 * 1e-5)
        while time.monotonic() < end:
            drop()
        waited += 1
    except TimeOut:
        pass
print(waited, lost)
"""


@pytest.mark.parametrize("what", ["works", "stores"])
@pytest.mark.parametrize("turns", [300, pytest.param(3000, marks=pytest.mark.long)])
@EACH_CORE
def test_what_a_handler_raises_arrives(tmp_path: Path, core: str, what: str, turns: int) -> None:
    """As without tracing, where nothing of the sort is seen."""
    program = PROGRAM_SIGNAL_STORM.replace("TURNS", str(turns))
    outcome = preloaded("-c", program, core, str(tmp_path), what).check()
    assert (outcome.stdout, outcome.stderr) == ("0 []\n", "")


PROGRAM_WAITS_AGAIN = """
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
    program.write_text(PROGRAM_WAITS_AGAIN)
    launched(program, 2, DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_CORE=core)
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
