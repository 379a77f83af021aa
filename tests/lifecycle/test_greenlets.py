"""Libraries that put greenlets in the place of threads, locks, queues, sleeps and polls."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.processes import ROOT, clean_environ, wait_until

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


def outcome(tmp_path: Path, library: str, when: str, until: str, **variables: str) -> str:
    """What the program prints, and its exit code; it gets on once ``until`` is in its stderr."""
    import torch.distributed as dist

    store, out, err = (tmp_path / name for name in ("store", "stdout", "stderr"))
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, library, when, str(store)],
            env=clean_environ(DISTTRACE_DIR=str(tmp_path / "out"), **variables),
            stdout=stdout,
            stderr=stderr,
        )
        try:
            if until:
                wait_until(lambda: until in err.read_text() or process.poll(), timeout=60)
                assert until in err.read_text()
            dist.FileStore(str(store), 2).set("key of another", "")
            code = process.wait(60)
        finally:
            process.kill()
            process.wait()
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
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    plain.mkdir()
    traced.mkdir()
    told = outcome(traced, library, when, "disttrace: stalled:", DISTTRACE="1", DISTTRACE_STALL="1")
    assert told == outcome(plain, library, when, "") == "[] 1\n['greenlet'] 1\n0"


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
