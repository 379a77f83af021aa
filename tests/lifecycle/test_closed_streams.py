"""A program that was started without standard streams does not find our files in their place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.processes import clean_environ, run_program
from support.raw import read_journals

PROGRAM = """
import os, sys, time, torch, torch.distributed as dist

def ours():
    return [
        fd for fd in range(3)
        if os.path.islink(f"/proc/self/fd/{fd}")
        and any(word in os.readlink(f"/proc/self/fd/{fd}") for word in ("job_", "disttrace"))
    ]

seen = []
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(4):
    dist.all_reduce(torch.ones(4))
    seen += ours()
    time.sleep(0.4)  # what asks for stacks and for the companion has files, too
sys.stdout.write(f"{seen}\\n")
"""


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_none_of_our_files_is_a_standard_stream(tmp_path: Path, closed: str) -> None:
    """All of ours get numbers beyond them, copies of descriptors included."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    folder = tmp_path / "out"
    traced = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(folder), DISTTRACE_STALL="0.5")
    done = run_program(["/bin/sh", "-c", f"exec {sys.executable} {path} {closed}"], traced, 60)
    assert (done.code, done.stdout) == (0, "[]\n")
    assert len(read_journals(folder)) == 1
