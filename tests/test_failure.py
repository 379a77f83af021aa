"""A failure of disttrace itself: one sentence and code 70, which is no verdict on a job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttrace import cli
from support.journals import training
from support.processes import python

FAILS = """
import importlib, sys
from disttrace import cli
row = next(row for row in cli.COMMANDS if row.name == sys.argv[1])
def fail(arguments):
    sys.stdout.write("half of a report\\n")
    raise {error}
importlib.import_module(row.module).execute = fail
sys.exit(cli.main(sys.argv[1:]))
"""
NEEDED = {
    "completion": ["bash"], "diff": ["a", "b"], "reduce": ["-o", "states"],
    "serve": ["--prometheus"],
}  # fmt: skip


@pytest.mark.parametrize("row", cli.COMMANDS, ids=lambda row: row.name)
def test_every_command_fails_by_one_sentence(row: cli.Command) -> None:
    """In a process of its own: no traceback, and a code that is neither healthy nor a fault."""
    program = FAILS.format(error="TypeError('not \\x1b[31m so\\nsecond line')")
    done = python("-c", program, row.name, *NEEDED.get(row.name, []), timeout=60)
    assert done.code == 70
    assert done.stdout == "half of a report\n"
    assert re.fullmatch(
        r"disttrace: failed here: TypeError: not \\x1b\[31m so \(disttrace/cli\.py:\d+\); please"
        r" report it, with the command and the output of `disttrace info`\n",
        done.stderr,
    )


@pytest.mark.parametrize(("error", "code", "said"), [
    ("SystemExit(143)", 143, ""), ("KeyboardInterrupt", 130, ""), ("MemoryError", 70, ""),
    # As pyo3 makes one: it derives from no Exception.
    ("type('PanicException', (BaseException,), {})('index 5')", 70,
     "failed here: PanicException: index 5"),
    ("PermissionError(13, 'Permission denied', '/there/x\x1b')", 70,
     "disttrace: cannot go on: /there/x\\x1b: Permission denied.\n"),
])  # fmt: skip
def test_what_ends_a_command_is_told_apart(error: str, code: int, said: str) -> None:
    """Signals are no failure of ours; of what the machine refuses no report is asked for."""
    done = python("-c", FAILS.format(error=error), "jobs", timeout=60)
    assert done.code == code
    assert "Traceback" not in done.stderr
    assert done.stderr == said if said.endswith("\n") else said in done.stderr


def test_a_full_disk_is_no_verdict() -> None:
    """Nor does the interpreter complain about what it could not flush at its end."""
    done = python(
        "-c",
        "import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
        "from disttrace import cli; sys.exit(cli.main(['info']))",
    )
    assert done.code == 70
    assert done.stderr == "disttrace: cannot go on: No space left on device.\n"


@pytest.mark.parametrize(
    "words",
    [
        ["check", "-n", "2", "--keep", "{gone}", "--", "{program}"],
        ["collect", "{traces}", "-o", "{gone}/x.tar.gz"],
        ["export", "{traces}", "-o", "{gone}/x.html"],
        ["reduce", "{traces}", "-o", "{gone}/x.states.jsonl.gz"],
    ],
    ids=lambda words: words[0],
)
def test_what_cannot_be_written_is_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a file there is no folder, root or not."""
    training(tmp_path / "traces", 2, 3)
    (tmp_path / "file").write_text("")
    (tmp_path / "program.py").write_text("")
    named = {"traces": tmp_path / "traces", "program": tmp_path / "program.py"}
    gone = tmp_path / "file" / "gone"
    assert cli.main([word.format(gone=gone, **named) for word in words]) == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "file") in said
    assert "Not a directory" in said or "there is no folder" in said
    assert "failed here" not in said
