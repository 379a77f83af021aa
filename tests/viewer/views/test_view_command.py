"""`disttrace view` as a command: exit codes, colour, narrow terminals, real runs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace.cli import main
from disttrace_viewer.commands import common
from support.journals import MS, training, workers

LIMIT_S = 120


def view(capfd: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """The lines of the command without a terminal."""
    assert main(["view", *map(str, arguments)]) == 0
    return capfd.readouterr().out.splitlines()


def on_terminal(*command: str) -> str:
    """What a command writes to a pseudo-terminal, read to its end."""
    lead, follow = pty.openpty()
    process = subprocess.Popen(
        command, stdout=follow, stderr=follow,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    os.close(follow)
    found = b""
    try:
        while chunk := os.read(lead, 65536):
            found += chunk
    except OSError:
        pass  # the terminal is closed with its last writer
    finally:
        os.close(lead)
    assert process.wait(LIMIT_S) == 0
    return found.decode()


def test_a_terminal_obeys_nothing_that_json_holds() -> None:
    """What is no sign is escaped there, and the value is the same; a pipe gets it as it is."""
    value = {"a": "\x7f\x85\u202e\u2028\U000e0041 Grüße 日本\t\x1b[31m", "b": [1, None]}
    code = f"from disttrace_viewer.commands.common import write_json; write_json({value!r})"
    shown = on_terminal(sys.executable, "-c", code)
    assert all(sign.isprintable() for line in shown.splitlines() for sign in line)
    assert "Grüße 日本" in shown
    assert json.loads(shown) == value
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=LIMIT_S)
    assert "\x7f\x85\u202e".encode() in piped.stdout
    assert json.loads(piped.stdout) == value


COLOURS = """
import os, sys
from disttrace.cli import main
for variables, options in (
    ({}, []), ({"NO_COLOR": "1"}, []), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, []),
    ({}, ["--no-color"]),
):
    os.environ |= variables
    main(["view", sys.argv[1], *options])
    print("OVER")
    for name in variables:
        del os.environ[name]
"""


def test_colour_is_for_terminals_and_can_be_refused(tmp_path: Path) -> None:
    """Yellow marks who came last, unless NO_COLOR or the option says otherwise."""
    training(tmp_path)
    shown = on_terminal(sys.executable, "-c", COLOURS, str(tmp_path))
    plain, *refused = shown.split("OVER")[:-1]
    assert "\x1b[33m" in plain
    assert ["\x1b" in text for text in refused] == [False] * 3


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    """`disttrace view | head -1`: code 0, which no finding has, and no word."""
    training(tmp_path, world_size=64, steps=40)
    command = f"{sys.executable} -m disttrace view --last 99999 {tmp_path}"
    command += " | head -1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "train.py\n"


def test_64_ranks_fit_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lanes are shared, lines wrap between words, and a quantity keeps its unit."""
    for journal in workers(tmp_path, 64):
        call = journal.collective(journal.world())
        for step in range(1, 31):
            late = 9 * MS if journal.rank == 61 else (journal.rank or 0) * 1000
            journal.run(call, t=(100 + 20 * step) * MS + late, d=10 * MS - late, q=step)
        if journal.rank != 61:
            journal.begin(call, t=900 * MS, q=31)
        journal.record(hb=20_000 * MS)
    monkeypatch.setenv("COLUMNS", "80")
    lines = view(capfd, tmp_path)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.index("findings") < text.index("what happened")
    assert "last: 61 x29" in text
    assert "missing: rank 61" in text
    assert not [line for line in lines if line.split()[-1:] and line.split()[-1] in ("+", "x")]


def test_width_bounds_every_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also narrower than usual, and wider when asked for."""
    training(tmp_path, world_size=5)
    narrow, wide = (view(capfd, tmp_path, "--width", width) for width in (60, 200))
    assert max(len(line) for line in narrow) <= 60
    assert len(wide) < len(narrow)


def test_a_line_now_and_then_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common.progress()(3, 1200)
    monkeypatch.setattr(common, "EVERY_S", 0.0)
    common.progress()(3, 1200)
    assert capsys.readouterr().err == "disttrace: 3 of 1,200 journals\n"
