"""A program that becomes another one says so, and becomes it as it would untraced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttrace_viewer.merge.surveying import survey
from support.processes import Outcome, clean_environ, run_program
from support.raw import read_journals

PROGRAM = """
import os, sys, torch.distributed as dist
dist.HashStore().set("key", "value")
print(sys.argv[1], os.getpid() == int(os.environ.setdefault("FIRST", str(os.getpid()))), flush=True)
command = [sys.executable, __file__, "second"]
if sys.argv[1] == "second":
    sys.exit(4)
try:
    os.execvp("there is no such program", ["x"])
except FileNotFoundError as error:
    frames = 0
    while error.__traceback__ is not None:
        frames, error.__traceback__ = frames + 1, error.__traceback__.tb_next
    print(error.errno, error.filename, frames if sys.version_info >= (3, 11) else "", flush=True)
print(os.execve in os.supports_fd, os.execve.__name__, flush=True)
if sys.argv[1] == "execv":
    os.execv(sys.executable, command)
if sys.argv[1] == "execlpe":
    os.execlpe(sys.executable, *command, os.environ)
if sys.argv[1] == "c":
    import ctypes
    words = [word.encode() for word in command]
    ctypes.CDLL(None).execv(words[0], (ctypes.c_char_p * 4)(*words, None))
print("in vain")
"""


def outcome(tmp_path: Path, how: str, **variables: str) -> Outcome:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return run_program([sys.executable, path, how], clean_environ(**variables), 120)


@pytest.mark.parametrize("how", ["execv", pytest.param("execlpe", marks=pytest.mark.long), "c"])
def test_what_a_program_becomes_is_told(tmp_path: Path, how: str) -> None:
    """Output and exit code are those of the twin; the journals are of two programs that follow one
    another in one process, of which only the last ended by itself.
    """
    folder = tmp_path / "out"
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    traced = outcome(tmp_path, how, DISTTRACE="1", DISTTRACE_DIR=str(folder), **rank)
    plain = outcome(tmp_path, how, **rank)
    assert traced == plain, f"{traced.stdout}\n{traced.stderr}\nuntraced:\n{plain.stderr}"
    assert traced.code == 4
    assert "second True" in traced.stdout
    first, second = sorted(read_journals(folder), key=lambda j: j.only("process")["t0"])
    said = [record["how"] for record in first.of("exit")]
    tried = said[: len(said) - (how != "c")]
    assert tried == ["exec", "resumed"] * (len(tried) // 2)
    assert tried
    assert said[len(tried) :] == (["exec"] if how != "c" else [])
    assert [record["how"] for record in second.of("exit")] == ["exit"]
    found = survey([str(folder)])
    assert len(found.jobs) == 1
    assert [(p.rank, p.exit.how if p.exit else None) for p in found.processes] == [
        (1, "exec"),
        (1, "exit"),
    ]
