"""Folders and files whose names are bytes and no text: every command reads what they hold."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from support.journals import training
from support.processes import python

PROGRAM = """
import sys
from disttrace.cli import main
folder, out = sys.argv[1:]
for command in (
    ["diagnose", folder], ["diagnose", folder, "--json"], ["view", folder], ["stats", folder],
    ["top", folder, "--once"], ["export", folder, "--format", "html", "-o", f"{out}.html"],
    ["reduce", folder, "-o", f"{out}.states"], ["diagnose", f"{out}.states", "--json"],
):
    code = main(command)
    assert code == 0, (command, code)
"""


@pytest.mark.parametrize("named", ["folder", "journals"])
def test_every_command_reads_it(tmp_path: Path, named: str) -> None:
    """As it reads the same journals under other names; states of them travel, too."""
    folder = tmp_path / (os.fsdecode(b"caf\xe9") if named == "folder" else "plain")
    training(folder)
    for path in list(folder.iterdir()) if named == "journals" else ():
        path.rename(folder / path.name.replace("job-", os.fsdecode(b"j\xf6b-"), 1))
    done = python("-c", PROGRAM, folder, tmp_path / "out", LC_ALL="C.UTF-8").check()
    assert orjson.loads(done.stdout[done.stdout.rindex("\n{") :])["healthy"] is True
