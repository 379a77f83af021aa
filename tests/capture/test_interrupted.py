"""Signal handlers that communicate: they come between any two steps of a traced call."""

from __future__ import annotations

from pathlib import Path

from support.cores import EACH_CORE
from support.preloaded import preloaded
from support.raw import read_journals

CALLS = 3000

PROGRAM = """
import signal, sys
import disttrace
disttrace.install(dir=sys.argv[1], core=sys.argv[3])
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
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
for _ in range(int(sys.argv[2])):
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
over = True
signal.setitimer(signal.ITIMER_REAL, 0)
print(handled)
"""


@EACH_CORE
def test_every_operation_ends_once(tmp_path: Path, core: str) -> None:
    """What the handler issues takes nothing from the call that it interrupts.

    Inside the C++ part of a call that issues, a handler's operation passes as part of that call, so
    of those an unknown number is on record.
    """
    outcome = preloaded("-c", PROGRAM, str(tmp_path), str(CALLS), core).check()
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
    preloaded("-W", "ignore", "-c", WAITING, str(tmp_path), core).check()
    (journal,) = read_journals(tmp_path)
    found = [(op, seq, over) for op, seq, over in journal.operations() if seq is not None]
    assert found == [("recv", 1, True), ("barrier", 1, True)]
