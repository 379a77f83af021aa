"""How far reading is: one line that changes on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttrace_viewer.commands import common
from support.journals import training
from support.terminals import on_terminal

READ = """
import sys
from disttrace.cli import main
from disttrace_viewer.commands import common
common.PATIENCE_S = float(sys.argv[1])
main(["stats", sys.argv[2]])
"""


def told_on_terminal(folder: Path, patience_s: float) -> str:
    """What goes to standard error where that is a terminal."""
    command = [sys.executable, "-c", READ, str(patience_s), str(folder)]
    return on_terminal(command, {"NO_COLOR": ""}, only_errors=True, limit_s=60)


def test_a_line_on_a_terminal_when_it_takes_long(tmp_path: Path) -> None:
    """It knows the whole from its beginning; what is read at once shows none."""
    training(tmp_path, steps=50)
    assert "bytes of journals" not in told_on_terminal(tmp_path, 60)
    told = told_on_terminal(tmp_path, -1)
    assert "bytes of journals" in told
    assert "/?" not in told


def test_a_line_now_and_then_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "EVERY_S", 0.0)
    with common.progress() as report:
        report(3, 1200)
    assert capsys.readouterr().err == "disttrace: 3 of 1,200 journals\n"
