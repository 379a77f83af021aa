"""Where memory or the stack comes to its end in a traced call, it ends as without tracing."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.capture.native import hooks
from support.cores import EACH_CORE
from support.preloaded import preloaded

BEGIN = """
import sys
core, folder = sys.argv[1:]
if core:
    import disttrace
    disttrace.install(dir=folder, core=core, heartbeat=False)
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
store, group, tensor = dist.HashStore(), dist.group.WORLD, torch.ones(2)
store.set("k", "v")
"""

END = """
if core:
    from disttrace import session
    traced = session._session
    assert traced.recorder.core.in_flight() == [], traced.recorder.core.in_flight()
    assert traced.capture.broken == set(), traced.capture.broken
"""

# The n-th allocation fails, of a call whose code is new or known.
MEMORY = """
import gc, _testcapi
gc.disable()

def attempt(call, n):
    _testcapi.set_nomemory(n, n + 1)
    try:
        call()
        said = "returned"
    except MemoryError:
        said = "MemoryError"
    except BaseException as error:
        said = repr(error)
    _testcapi.remove_mem_hooks()
    return said

found = set()
for text in ("store.set('k', 'v')", "store.get('k')"):
    for known, last in ((False, LAST), (True, 120)):
        for n in range(1, last):
            names = {"store": store}
            exec(f"def call():\\n {text}", names)
            if known:
                names["call"]()
            found.add(attempt(names["call"], n))
store.set("k", "v")
print(sorted(found))
"""

# Calls with fewer and fewer frames left; printed is with how many each works.
STACK = """
def deeper(frames, call):
    return call() if frames == 0 else deeper(frames - 1, call)

def needed(call):
    deeper(20, call)
    for left in range(0, 60):
        sys.setrecursionlimit(300)
        try:
            deeper(300 - left, call)
            return left
        except RecursionError:
            continue
        finally:
            sys.setrecursionlimit(1000)

work = dist.all_reduce(tensor, async_op=True)
calls = (
    lambda: store.set("k", "v"), lambda: store.get("k"), lambda: dist.all_reduce(tensor),
    lambda: dist.barrier(), lambda: dist.all_reduce(tensor, async_op=True).wait(),
    lambda: work.is_completed(),
)
print([needed(call) for call in calls])
work.wait()
"""

INTERRUPTED = """
import signal, traceback

def ends(number, frame):
    raise KeyboardInterrupt

def shown(call):
    try:
        call()
    except BaseException as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)]

signal.signal(signal.SIGALRM, ends)
other = dist.HashStore()

def waits():
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    while True:
        other.set("k", "v")

clean = [set(shown(waits)) <= {"shown", "waits", "ends"} for _ in range(10)]
print(shown(lambda: store.get(None)), sum(clean) > (5 if core == "python" else 9))
"""


def said(tmp_path: Path, program: str, core: str) -> str:
    """What the program says, traced by this core (empty: untraced)."""
    outcome = preloaded("-W", "ignore", "-c", BEGIN + program + END, core, str(tmp_path)).check()
    assert outcome.stderr == ""
    return outcome.stdout


@EACH_CORE
@pytest.mark.parametrize("last", [100, pytest.param(600, marks=pytest.mark.long)])
def test_an_allocation_that_fails(tmp_path: Path, core: str, last: int) -> None:
    """No crash and no other exception; nothing stays in flight, and tracing goes on."""
    pytest.importorskip("_testcapi")
    traced = set(eval(said(tmp_path, MEMORY.replace("LAST", str(last)), core)))
    assert {"returned"} <= traced <= {"returned", "MemoryError"}


@EACH_CORE
def test_the_end_of_the_stack(tmp_path: Path, core: str) -> None:
    """Ours takes its wrapper's frame and one of C; all else if there is room, as torch's hooks."""
    bare, traced = (eval(said(tmp_path, STACK, each)) for each in ("", core))
    most = [2, 2, *[5 if hooks.supported() else 2] * 3, 2]
    assert all(t - b <= m for b, t, m in zip(bare, traced, most, strict=True)), (bare, traced)


@EACH_CORE
@pytest.mark.skipif("sys.version_info < (3, 11)", reason="`raise` brings our frame back there")
def test_a_traceback_shows_no_frame_of_ours(tmp_path: Path, core: str) -> None:
    """But of a handler's exception in a wrapper's first instruction, which no `try` is around."""
    assert said(tmp_path, INTERRUPTED, "") == said(tmp_path, INTERRUPTED, core)
