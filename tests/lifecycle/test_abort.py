"""A process that a stall ends has said all that it printed, and always ends."""

from __future__ import annotations

import time

import pytest

from support.processes import python

PRINTS = """
import ctypes, sys, threading, time
from disttrace.lifecycle.abort import end
print("python", end=" ")
ctypes.CDLL(None).printf(b"c ")
{more}
threading.Thread(target=end, args=(75,)).start()
time.sleep(60)
"""
STUCK = """
class Stuck:
    def write(self, text): pass
    def flush(self): time.sleep(60)
sys.stdout = Stuck()
"""
RAISES = """
class Raises:
    def flush(self): raise SystemExit(3)
sys.stdout = Raises()
"""
FULL = """
import os
reads, writes = os.pipe()
sys.stderr = open(writes, "w", buffering=1 << 20)
sys.stderr.write("x" * (1 << 19))
"""
READS = """
import os
reads, writes = os.pipe()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(reads, b"r"))
threading.Thread(target=libc.fgetc, args=(stream,), daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "more",
    ["", STUCK, RAISES, "sys.stdout = None", "sys.stdout = object()", FULL, READS],
    ids=["plain", "stuck", "raises", "none", "other", "full", "reads"],
)
def test_what_was_printed_is_not_lost(more: str) -> None:
    """By Python and by C; what cannot be said does not hold up the end, nor change its code."""
    begun = time.monotonic()
    outcome = python("-c", PRINTS.format(more=more), timeout=30, PYTHONUNBUFFERED="")
    assert (outcome.code, outcome.hung) == (75, False)
    assert {*outcome.stdout.split()} == {"python", "c"}
    assert time.monotonic() - begun < 15
