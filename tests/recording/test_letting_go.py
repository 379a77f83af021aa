"""What a core keeps: nothing of operations that nobody will end, and one index per interpreter; and
where memory or the stack comes to its end.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttrace.capture.native import hooks
from disttrace.recording import core as cores
from support.cores import EACH_CORE
from support.preloaded import preloaded, to_its_end
from support.processes import python

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
from disttrace.recording import core as cores
def index():
    ask = getattr(ctypes.pythonapi, "_PyEval_RequestCodeExtraIndex", None)
    ask = ask or ctypes.pythonapi.PyUnstable_Eval_RequestCodeExtraIndex
    ask.restype = ctypes.c_ssize_t
    return ask(None)
cores.native()
before = index()
for _ in range(300):
    del sys.modules["disttrace.recording._fast"]
    cores.native()
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
    assert to_its_end("-c", IN_FLIGHT, str(tmp_path), core).check().stdout == "[None, None]\n"


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


@pytest.mark.skipif(cores.choose(None)[0] == cores.PLAIN, reason="the core was not built")
def test_a_module_imported_anew_takes_no_further_index() -> None:
    """An interpreter has 255 for its code objects, and torch's compiler needs one."""
    assert to_its_end("-c", IMPORTED_ANEW).check().stdout == "1\n"


@EACH_CORE
def test_threads_of_others_stay_unknown_to_threading(tmp_path: Path, core: str) -> None:
    """`threading.current_thread()` would make an object for one that Python did not start."""
    assert to_its_end("-c", FOREIGN, str(tmp_path), core).check().stdout == "[]\n"


_STRUCK = """
import os, signal, sys, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raised = 0
armed = False
def handler(*_):
    global raised, armed
    if armed:
        armed = False
        raised += 1
        raise TimeoutError
sys.unraisablehook = lambda _: None
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
until = time.monotonic() + 20
while time.monotonic() < until and raised < 10:
    try:
        armed = True
        while armed:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
    except TimeoutError:
        continue
signal.setitimer(signal.ITIMER_REAL, 0)
time.sleep(0.1)
store = dist.HashStore()
def other():
    for n in range(50):
        store.set(str(n), "x" * n)  # each is new to the recorder
    print("another thread went through", flush=True)
thread = threading.Thread(target=other, daemon=True)
thread.start()
thread.join(20)
until = time.monotonic() + (10 if "disttrace.session" in sys.modules else 0)
ours = {}
while time.monotonic() < until:
    background = sys.modules.get("disttrace.recording.background")
    ours = {name: n for name, n in background.running.items() if n} if background else {}
    if sum(ours.values()) == 1:  # one that was interrupted at its start ends by itself
        break
print(raised > 2, ours, flush=True)
os._exit(0)
"""


def test_forks_beside_a_handler_that_raises(tmp_path: Path) -> None:
    """Other threads record, and there is one background thread, however often it struck."""
    said = {}
    for traced in ("0", "1"):
        folder = str(tmp_path / traced)
        variables = {"DISTTRACE": traced, "DISTTRACE_DIR": folder}
        done = to_its_end("-c", _STRUCK, timeout=90, **variables)
        said[traced] = done.stdout.splitlines(), done.code
    assert said["0"] == (["another thread went through", "True {}"], 0)
    assert said["1"] == (["another thread went through", "True {'disttrace-live': 1}"], 0)


_SHOWS = """
import json, os, sys, torch, torch.distributed as dist, disttrace
from disttrace import session
disttrace.install(dir=sys.argv[1])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0])
def one(n): dist.all_reduce(torch.ones(n), group=group)
def two(n): dist.all_reduce(torch.ones(n), group=group)
for n in (4, 4, 8): one(n)
two(4)
courses = session._session.recorder.courses
[path] = [p for p in [courses._path] if os.path.exists(p)]
words = memoryview(open(path, "rb").read()).cast("Q")
at = (4096 + 3 * 4096 * (words[0] - 1)) // 8
told = [words[at], words[at + 1], list(words[at + 513:at + 517]), list(words[at + 1025:at + 1029])]
if os.fork() == 0:
    dist.all_reduce(torch.ones(4), group=group, async_op=True)  # the page is the parent's
    os._exit(0)
os.wait()
after = memoryview(open(path, "rb").read()).cast("Q")[at]
fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{fd}")]
disttrace.uninstall()
one(4)
print(json.dumps([told, after, any(".calls" in one for one in fds), os.path.exists(path)]))
"""


@pytest.mark.skipif(cores.choose(None)[0] == cores.PLAIN, reason="the core was not built")
def test_the_page_of_a_stream_has_its_newest_calls_and_goes_with_it(tmp_path: Path) -> None:
    """No descriptor is kept for it, and a forked child leaves it alone."""
    told, after, kept, left = json.loads(
        python("-c", _SHOWS, tmp_path / "out", DISTTRACE_CORE="c").check().stdout.splitlines()[-1]
    )
    newest, lines, places, digests = told
    assert (newest, lines, after, kept, left) == (4, 2, 4, False, False)
    assert places[0] == places[1] == places[2] != places[3]
    steps = [(b - a * 0x9E3779B97F4A7C15) % 2**64 for a, b in zip([0, *digests], digests)]
    assert steps[0] == steps[1] == steps[3] != steps[2]


# -- where memory or the stack comes to its end in a traced call, it ends as without tracing


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
from disttrace import session
gc.disable()
session._session.live.stop()  # or its thread may be the one whose allocation fails

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
@pytest.mark.skipif("sys.version_info >= (3, 15)", reason="it crashes itself without memory")
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
