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
        assert load.share(pids[0]).over_s == 0
        time.sleep(2.0)
        load.look(pids)
        *busy, still = map(load.share, pids)
        assert sum(share.starved for share in busy) > 1.5
        assert min(share.ran for share in busy) > 0.02
        assert (still.ran, still.starved) < (0.05, 1.0)
        assert still.starved < 0.2
    finally:
        for child in (*children, sleeper):
            child.kill()
            child.wait()
