"""A failure of disttrace itself: one sentence and code 70, which is no verdict on a job; and the
line of an exception that is told.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttrace import cli
from disttrace.errors import first_line, further_lines
from support.journals import training
from support.processes import python

FAILS = """
import importlib, sys
from disttrace import cli
modules = {{row.name: row.module for row in cli.COMMANDS}}
def fail(arguments):
    sys.stdout.write("half of a report\\n")
    raise {error}
for line in sys.argv[1:]:
    words = line.split()
    importlib.import_module(modules[words[0]]).execute = fail
    code = cli.main(words)
    print(code)
sys.exit(code)
"""
NEEDED = {
    "completion": ["bash"], "diff": ["a", "b"], "reduce": ["-o", "states"],
    "serve": ["--prometheus"],
}  # fmt: skip


def test_every_command_fails_by_one_sentence() -> None:
    """No traceback, and a code that is neither healthy nor a fault."""
    program = FAILS.format(error="TypeError('not \\x1b[31m so\\nsecond line')")
    lines = [" ".join((row.name, *NEEDED.get(row.name, []))) for row in cli.COMMANDS]
    done = python("-c", program, *lines, timeout=60)
    assert done.code == 70
    assert done.stdout == "half of a report\n70\n" * len(lines)
    sentence = (
        r"disttrace: failed here: TypeError: not \\x1b\[31m so \(disttrace/cli\.py:\d+\); please"
        r" report it, with the command and the output of `disttrace info`\n"
    )
    assert re.fullmatch(f"({sentence}){{{len(lines)}}}", done.stderr)


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


# -- the one line of an exception that is told says something, and keeps both ends


CALLS = "Traceback (most recent call last)"


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad batch\nsecond"), "ValueError: bad batch"),
        (ValueError("\n  \n=====\n bad batch \nmore"), "ValueError: bad batch"),
        (ValueError(""), "ValueError"),
        (ValueError("\n---\n"), "ValueError"),
        (
            IndexError(
                "Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent"
                " call last):\n  File 'fetch.py', line 54\nIndexError: corrupt record 5\n"
            ),
            (
                "IndexError: Caught IndexError in DataLoader worker process 0. IndexError: corrupt"
                " record 5"
            ),
        ),
        (ValueError(f"{CALLS}:\n  File\nKeyError: 3"), "ValueError: KeyError: 3"),
        (
            RuntimeError(
                "CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last):"
                " (RANK 2)\n  File 'disk.py', line 9\nOSError: [Errno 28] No space left\n"
            ),
            (
                "RuntimeError: CheckpointException ranks:dict_keys([2]) OSError: [Errno 28] No"
                " space left"
            ),
        ),
        (
            RuntimeError(
                "TimeoutError: On WorkerInfo(id=0, name=ps):\nTimeoutError('busy')\nTraceback (most"
                " recent call last):\n  File 'ps.py', line 9\nTimeoutError: busy\n\n\nAt:\n "
                " rpc/internal.py(236): _handle_exception\n"
            ),
            "RuntimeError: TimeoutError: On WorkerInfo(id=0, name=ps): TimeoutError: busy",
        ),
        (HostileError(), "HostileError"),
    ],
)
def test_the_first_line_that_says_something(error: Exception, text: str) -> None:
    assert first_line(error) == text


def test_a_long_text_keeps_its_end() -> None:
    """Where a path or a list comes first, what was wrong stands last."""
    told = first_line(ValueError("a" * 1000 + " is not on the mesh"))
    assert len(told) == 300
    assert told.startswith("ValueError: aaaa")
    assert told.endswith("aaaa is not on the mesh")


def test_what_stands_below_the_first_line_is_kept_from_the_end() -> None:
    """As DDP does, and checkpoints, and validators; frames of C++ are left out."""
    ddp = "Expected to have finished reduction.\n see 1\n\nParameter indices: 2 3\n In addition"
    assert further_lines(RuntimeError(ddp)) == ["see 1", "Parameter indices: 2 3", "In addition"]
    native = "\nException raised from wait at x.cpp:7 (most recent call first):\nframe #0: f + 0x88"
    assert further_lines(RuntimeError(f"first\nport: 1{native}")) == ["port: 1"]
    assert further_lines(RuntimeError("one line")) == []
    long = further_lines(RuntimeError("first\n" + "\n".join(f"{i}: {'x' * 90}" for i in range(99))))
    assert (len(long), long[-1][:4], sum(map(len, long)) <= 700) == (7, "98: ", True)
    whole = further_lines(RuntimeError("first\nindices: " + "7, " * 500 + "8"))
    assert [len(line) for line in whole] == [700]
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"
    assert "MIIE" not in " ".join(further_lines(RuntimeError(f"cannot read\n{key}")))
