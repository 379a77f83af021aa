"""Who waits for a processor is told apart from who computes, and from who sleeps."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from disttrace_viewer.companion.activity import Load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
SPIN = """
import os, time
os.sched_setaffinity(0, {CORE})
end = time.time() + 60
while time.time() < end: pass
"""


def test_who_shares_a_processor_waits_for_it() -> None:
    """Four that compute on one core keep each other waiting most of the time; none a sleeper."""
    core = str(min(os.sched_getaffinity(0)))
    code = SPIN.replace("CORE", core)
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.5)
        pids = [child.pid for child in (*children, sleeper)]
        load = Load()
        load.look(pids)
        assert load.starved(pids[0]) == 0
        time.sleep(2.0)
        load.look(pids)
        *busy, still = map(load.starved, pids)
        assert sum(busy) > 1.5
        assert still < 0.2
    finally:
        for child in (*children, sleeper):
            child.kill()
            child.wait()
