"""The background thread: heartbeats and stacks of silent threads; also beside libraries that put
greenlets in the place of threads.
"""

from __future__ import annotations

import itertools
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from disttrace import errors
from disttrace.capture.wrapping.context import Capture
from disttrace.lifecycle.heartbeat import Live
from disttrace.recording import background
from disttrace.recording.recorder import Recorder
from support.preloaded import preloaded
from support.processes import ROOT, clean_environ, running, wait_until
from support.raw import RawJournal, read_journals

# A heartbeat every 10 ms, and stacks after 20 ms of silence.
QUICK = """
import os, sys, threading, time
import disttrace, disttrace.lifecycle.stack_sampler as stacks
import disttrace.lifecycle.heartbeat as thread
stacks.QUIET_NS = 20_000_000
thread.HEARTBEAT_NS = thread.LOOK_NS = 10_000_000
thread._ANCHOR_NS = 50_000_000
disttrace.install()
import torch.distributed as dist
from disttrace.recording import background
def names():
    return [name for name, count in background.running.items() for _ in range(count)]
folder = os.environ["DISTTRACE_DIR"]
def journal():
    return b"".join(open(e.path, "rb").read() for e in os.scandir(folder))
def journal_has(text):
    while text.encode() not in journal():
        time.sleep(0.005)
"""


def run(folder: Path, program: str, **variables: str) -> list[RawJournal]:
    variables = {"DISTTRACE_DIR": str(folder), **variables}
    preloaded("-c", QUICK + program, timeout=60.0, **variables).check()
    return read_journals(folder)


def lines(journal: RawJournal, thread: int) -> list[list[tuple[str, int]]]:
    """(function, line) of the stacks noted for a thread."""
    strings, stacks = journal.strings(), journal.stacks()
    return [
        [(strings[function], line) for _, line, function in stacks[record["k"]]]
        for record in journal.records
        if "at" in record and record["h"] == thread
    ]


def test_a_silent_thread_is_found_where_it_stands(tmp_path: Path) -> None:
    """Once per place, with no frame of ours; and clocks are read again, in pairs."""
    program = """
def loader():
    journal_has('"at"')
    journal_has('"clock"')
    time.sleep(0.1)
dist.HashStore().set("k", "v")
loader()
"""
    (journal,) = run(tmp_path, program)
    found = lines(journal, 0)
    assert found
    assert all("loader" in [function for function, _ in stack] for stack in found)
    assert all(stack[-1][0] == "<module>" for stack in found)
    assert all(before != after for before, after in itertools.pairwise(found))
    beats = [record["hb"] for record in journal.records if "hb" in record]
    assert beats == sorted(beats)
    assert len(beats) > 5
    start = journal.only("process")
    for anchor in journal.of("clock"):
        passed = anchor["unix_ns"] - start["unix_ns"]
        assert abs(passed - anchor["t"]) < 50_000_000


def test_a_main_thread_beside_one_that_works(tmp_path: Path) -> None:
    """It is found where it stands although another thread never falls silent."""
    program = """
stacks.QUIET_NS = 3_600_000_000_000
store = dist.HashStore()
store.set("k", "v")
done = threading.Event()
def works():
    while b'"loader"' not in journal():
        store.set("k", "v")
    done.set()
def loader():
    done.wait()
threading.Thread(target=works).start()
loader()
"""
    (journal,) = run(tmp_path, program)
    assert "loader" in [function for function, _ in lines(journal, 0)[-1]]


def test_a_thread_that_serves_is_seen_to_wait_between_requests(tmp_path: Path) -> None:
    """As the main thread is; one that issues nothing is not."""
    program = """
import queue
stacks.QUIET_NS = stacks._EARLY_NS = 3_600_000_000_000
store, requests = dist.HashStore(), queue.Queue()
def serves():
    while requests.get():
        store.set("k", "v")
def waits(asked=queue.Queue()):
    asked.get()
for target in (serves, waits):
    threading.Thread(target=target, daemon=True).start()
def feed():
    requests.put(1)
    time.sleep(0.02)
    return journal()
store.set("k", "v")
while b'"get"' not in feed():
    pass
requests.put(0)
"""
    (journal,) = run(tmp_path, program)
    names = {record["v"] for record in journal.of("string")}
    assert {"get", "serves"} <= names
    assert "waits" not in names


def test_nothing_runs_before_the_journal(tmp_path: Path) -> None:
    """The thread comes with the first record, and goes with tracing."""
    program = """
assert "disttrace-live" not in names()
dist.HashStore().set("k", "v")
journal_has('"hb"')
assert "disttrace-live" in names()
assert [t.name for t in threading.enumerate()] == ["MainThread"]
disttrace.uninstall()
assert "disttrace-live" not in names()
"""
    assert len(run(tmp_path, program)) == 1


def test_no_heartbeat_where_it_is_switched_off(tmp_path: Path) -> None:
    program = 'dist.HashStore().set("k", "v"); time.sleep(0.1)'
    (journal,) = run(tmp_path, program, DISTTRACE_HEARTBEAT="off")
    assert not [record for record in journal.records if "hb" in record or "at" in record]


def test_fork(tmp_path: Path) -> None:
    """The parent goes on beating; the child beats once it has a journal of its own, in which its
    main thread is one, although it has another native id now.
    """
    program = """
dist.HashStore().set("k", "v")
journal_has('"hb"')
child = os.fork()
if child == 0:
    ok = "disttrace-live" not in names()
    dist.HashStore().set("k", "v")
    while "disttrace-live" not in names():
        time.sleep(0.005)
    until = time.monotonic() + 10
    while not any(b'"at"' in open(e.path, "rb").read() for e in os.scandir(folder)
                  if f"-{os.getpid()}-" in e.name) and time.monotonic() < until:
        time.sleep(0.005)
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
while "disttrace-live" not in names():
    time.sleep(0.005)
"""
    journals = {j.only("process")["role"]: j for j in run(tmp_path, program)}
    assert len(journals) == 2
    child = journals["child"]
    assert [one["n"] for one in child.of("thread") if one["name"] == "MainThread"] == [0]
    assert {record.get("h", 0) for record in child.records if "b" in record} == {0}
    assert lines(child, 0)


def test_destroying_groups_at_the_end_of_a_function(tmp_path: Path) -> None:
    """A frame that our thread let go last would destroy the group there, and abort."""
    program = """
stacks.QUIET_NS = stacks._SOONEST_NS = stacks._LATEST_NS = 0
thread.HEARTBEAT_NS = thread.LOOK_NS = 200_000
def run():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.barrier()
    dist.destroy_process_group()
run()
"""
    for n in range(4):
        run(tmp_path / str(n), program)


def test_who_begins_something_during_a_look_wakes_the_thread() -> None:
    """A poller has looked and seen nothing: what is pending since is not left for the next turn."""
    reporter = errors.Reporter()
    recorder = Recorder(
        t0=0, process=lambda: "1-1", open_journal=lambda: pytest.fail("nothing is recorded"),
        opening=list, on_failure=lambda error: None, core="python",
    )  # fmt: skip
    live = Live(Capture(recorder, reporter, stack_depth=1), beats=False)
    live._thread = background.Thread(lambda: None, "it runs")
    recorder.core.idle = False  # something was pending at the turn before

    def poll() -> int:
        live.wake()  # another thread's
        return 0

    live._capture.pollers.append(poll)
    live._turn()
    assert not live._wake.empty()


PROGRAM = """
import datetime, sys, threading, warnings
warnings.simplefilter("ignore")
library, when, path = sys.argv[1:]
if when == "after":
    import torch.distributed
if library == "eventlet":
    import eventlet
    eventlet.monkey_patch()
    spawn, sleep = eventlet.spawn, eventlet.sleep
else:
    from gevent import monkey, sleep, spawn
    monkey.patch_all()
import torch
import torch.distributed as dist
ran = []
spawn(ran.append, "greenlet")
store = dist.FileStore(path, 2)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for n in range(200):
    dist.all_reduce(torch.ones(n % 7 + 1))
    store.set(f"key {n % 5}", "x" * n)
store.wait(["key of another"], datetime.timedelta(seconds=100))
dist.destroy_process_group()
print(ran, threading.active_count())
sleep(0)
print(ran, threading.active_count())
"""


def outcome(tmp_path: Path, library: str, when: str) -> str:
    """What the program prints, and its exit code; it gets on once its stall was told."""
    import torch.distributed as dist

    store, out, err = (tmp_path / name for name in ("store", "stdout", "stderr"))
    command = [sys.executable, "-c", PROGRAM, library, when, str(store)]
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="1")
    with running(command, tmp_path, environ) as process:
        told = "disttrace: stalled:"
        wait_until(lambda: told in err.read_text() or process.poll() is not None, timeout=60)
        assert told in err.read_text()
        dist.FileStore(str(store), 2).set("key of another", "")
        code = process.wait(60)
    return f"{out.read_text()}{code}"


@pytest.mark.parametrize(
    ("library", "when"),
    [
        ("eventlet", "before"),
        ("gevent", "after"),
        pytest.param("eventlet", "after", marks=pytest.mark.long),
        pytest.param("gevent", "before", marks=pytest.mark.long),
    ],
)
def test_a_stall_is_told_and_no_greenlet_runs(tmp_path: Path, library: str, when: str) -> None:
    """Our threads are threads, whether the library comes before tracing begins or after it."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert outcome(tmp_path, library, when) == "[] 1\n['greenlet'] 1\n0"


def test_the_recorder_takes_them_from_one_place() -> None:
    """`journal/originals.py`; what runs at the interpreter's start comes before any library."""
    replaced = re.compile(
        r"(?<!`)threading\.(Lock|RLock|local|Thread\(|Event|Condition|enumerate|get_native_id)"
        r"|\btime\.sleep\(|\bselect\.(e?poll|select)\(|\bqueue\.[SQE]|import _thread|from _thread"
    )
    others = ("testing", "commands", "journal/originals.py", "journal/standard_library.py")
    folder = ROOT / "disttrace"
    found = {
        f"{path.relative_to(folder)}: {line.strip()}"
        for path in folder.rglob("*.py")
        if not path.relative_to(folder).as_posix().startswith((*others, "waiting.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if replaced.search(line)
    }
    assert found == set()
