"""Signal handlers that raise, in a program that lets go of Works: no exception of theirs is lost.

Where the last reference to an object is dropped, the interpreter calls what waits for that and
throws away what it raises. So no bytecode of ours may run there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cores import EACH_CORE
from support.preloaded import preloaded

# A loop that drops objects until a real timer's handler raises; where that is lost it waits long.
PROGRAM = """
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
    program = PROGRAM.replace("TURNS", str(turns))
    outcome = preloaded("-c", program, core, str(tmp_path), what).check()
    assert (outcome.stdout, outcome.stderr) == ("0 []\n", "")


def test_untraced_nothing_is_lost(tmp_path: Path) -> None:
    """The program that the others are compared with."""
    for what in ("works", "stores"):
        program = PROGRAM.replace("TURNS", "300")
        assert preloaded("-c", program, "", str(tmp_path), what).check().stdout == "0 []\n"
