"""What a core keeps: nothing of operations that nobody will end, and one index per interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace.recording import choice
from disttrace.recording import core as cores
from support.cores import EACH_CORE
from support.preloaded import preloaded

IN_FLIGHT = """
import gc, sys, time, weakref
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
import disttrace
disttrace.install(dir=sys.argv[1], core=sys.argv[2])
held = dist.all_reduce(torch.ones(1), async_op=True)
recorder = disttrace.session._session.recorder
assert recorder.core.in_flight()
gone = [weakref.ref(one) for one in (recorder, disttrace.session._session)]
del recorder
disttrace.uninstall()
end = time.monotonic() + 10
while any(one() for one in gone) and time.monotonic() < end:  # a thread of ours may go on yet
    gc.collect()
    time.sleep(0.01)
print([one() for one in gone])
held.wait()
"""

IMPORTED_ANEW = """
import ctypes, sys
from disttrace.recording import choice
def index():
    ask = getattr(ctypes.pythonapi, "_PyEval_RequestCodeExtraIndex", None)
    ask = ask or ctypes.pythonapi.PyUnstable_Eval_RequestCodeExtraIndex
    ask.restype = ctypes.c_ssize_t
    return ask(None)
choice.native()
before = index()
for _ in range(300):
    del sys.modules["disttrace.recording._fast"]
    choice.native()
print(index() - before)
"""

FOREIGN = """
import _thread, sys, threading
import disttrace
disttrace.install(dir=sys.argv[1], core=sys.argv[2])
import torch.distributed as dist
store, done, may_end = dist.HashStore(), threading.Event(), threading.Event()
def foreign():
    store.set("k", "v")
    done.set()
    may_end.wait()
_thread.start_new_thread(foreign, ())
done.wait()
print([thread.name for thread in threading.enumerate() if "Dummy" in thread.name])
may_end.set()
"""


@EACH_CORE
def test_an_operation_in_flight_keeps_no_session(tmp_path: Path, core: str) -> None:
    """After `uninstall` nobody will end it."""
    assert preloaded("-c", IN_FLIGHT, str(tmp_path), core).check().stdout == "[None, None]\n"


class Unrecoverable(Exception):  # noqa: N818 - a handler's may be any
    """What comes out of `recover`."""


@EACH_CORE
def test_a_begin_that_was_not_put_is_not_in_flight(core: str) -> None:
    """Its caller gets the exception, and no operation that it could end."""

    def recover(error: BaseException, line: bytes) -> None:
        raise Unrecoverable

    def full(line: bytes) -> None:
        raise ValueError

    made = cores.make(core, recover, lambda: 0)
    call = made.new_call(1, "store.set", True, None)
    made.put = full
    with pytest.raises(Unrecoverable):
        made.begin(made.threads.state, call)
    assert made.in_flight() == []
    made.put = cores.discard
    operation = made.begin(made.threads.state, call)
    assert made.in_flight() == [operation]
    made.end(operation)
    assert made.in_flight() == []


@pytest.mark.skipif(choice.choose(None)[0] == choice.PLAIN, reason="the core was not built")
def test_a_module_imported_anew_takes_no_further_index() -> None:
    """An interpreter has 255 for its code objects, and torch's compiler needs one."""
    assert preloaded("-c", IMPORTED_ANEW).check().stdout == "1\n"


@EACH_CORE
def test_threads_of_others_stay_unknown_to_threading(tmp_path: Path, core: str) -> None:
    """`threading.current_thread()` would make an object for one that Python did not start."""
    assert preloaded("-c", FOREIGN, str(tmp_path), core).check().stdout == "[]\n"
