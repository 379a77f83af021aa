"""Forks beside a signal handler that raises: nothing of ours is left half done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.processes import clean_environ

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
while time.monotonic() < until and raised < 25:
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
        env = clean_environ(DISTTRACE=traced, DISTTRACE_DIR=str(tmp_path / traced))
        command = [sys.executable, "-c", _STRUCK]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=90)
        said[traced] = done.stdout.splitlines(), done.returncode
    assert said["0"] == (["another thread went through", "True {}"], 0)
    assert said["1"] == (["another thread went through", "True {'disttrace-live': 1}"], 0)
