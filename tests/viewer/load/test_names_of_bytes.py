"""Folders and files whose names are bytes and no text: every command reads what they hold."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import orjson
import pytest

from support.journals import training
from support.processes import clean_environ, run_program

COMMANDS = (
    ("diagnose",),
    ("diagnose", "--json"),
    ("view",),
    ("stats",),
    ("top", "--once"),
    ("export", "--format", "html", "-o", "{}.html"),
    ("reduce", "-o", "{}.states"),
)


@pytest.mark.parametrize("named", ["folder", "journals"])
def test_every_command_reads_it(tmp_path: Path, named: str) -> None:
    """As it reads the same journals under other names; states of them travel, too."""
    folder = tmp_path / (os.fsdecode(b"caf\xe9") if named == "folder" else "plain")
    training(folder)
    for path in list(folder.iterdir()) if named == "journals" else ():
        path.rename(folder / path.name.replace("job-", os.fsdecode(b"j\xf6b-"), 1))
    for command in COMMANDS:
        words = [word.format(tmp_path / "out") for word in command[1:]]
        line = [sys.executable, "-m", "disttrace", command[0], str(folder), *words]
        done = run_program(line, clean_environ(LC_ALL="C.UTF-8"))
        assert done.code == 0, f"{command}{done}"
    states = run_program(
        [sys.executable, "-m", "disttrace", "diagnose", str(tmp_path / "out.states"), "--json"],
        clean_environ(),
    )
    assert states.code == 0, f"{states}"
    assert orjson.loads(states.stdout)["healthy"] is True
