"""Whatever happens to the journal, the program's results and exit code are its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.preloaded import preloaded
from support.processes import Outcome, clean_environ, run_program
from support.raw import read_journals

PROGRAM = Path(__file__).with_name("program.py")
RESULT = "2999 3000 4.0\n"
CODE = 3
SENTENCE = "disttrace: tracing is off in process"


def run(kind: str, folder: Path | str, *prefix: str) -> Outcome:
    """The program with tracing into ``folder``; ``prefix`` is a command that runs it."""
    variables = {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "DISTTRACE_MAX_MB": "4"}
    if not prefix:
        return preloaded(PROGRAM, kind, timeout=60.0, **variables)
    return run_program([*prefix, sys.executable, PROGRAM, kind], clean_environ(**variables))


def check(outcome: Outcome, *, sentences: int) -> None:
    """Result and code are the program's; ``sentences`` of ours are all that stderr holds."""
    assert not outcome.hung, f"{outcome}"
    assert (outcome.stdout, outcome.code) == (RESULT, CODE), f"{outcome}"
    ours = [line for line in outcome.stderr.splitlines() if line.startswith("disttrace:")]
    assert len(ours) == sentences, f"{outcome}"
    assert all(line.startswith(SENTENCE) for line in ours), f"{outcome}"
    assert "Traceback" not in outcome.stderr, f"{outcome}"


def test_no_trouble(tmp_path: Path) -> None:
    """The program itself, traced, says nothing."""
    check(run("none", tmp_path / "out"), sentences=0)


@pytest.mark.parametrize("kind", ["deleted", "size", "size with a signal"])
def test_trouble_in_mid_run(tmp_path: Path, kind: str) -> None:
    """A folder that goes away and files that may not grow are one sentence each."""
    check(run(kind, tmp_path / "out"), sentences=1)


def test_no_descriptors_left(tmp_path: Path) -> None:
    """A journal that is open needs no descriptor until its next segment, if it comes to that."""
    outcome = run("descriptors", tmp_path / "out")
    ours = outcome.stderr.count("disttrace:")
    assert ours <= 1
    check(outcome, sentences=ours)


@pytest.mark.parametrize("kind", ["closed", "closed, written"])
def test_descriptors_taken_away(tmp_path: Path, kind: str) -> None:
    """What a daemon closes and opens anew is not written into, cut or closed by us."""
    check(run(kind, tmp_path / "out"), sentences=0)
    (journal,) = read_journals(tmp_path / "out")
    assert len([op for op, _, ended in journal.operations() if ended and op == "store.set"]) == 3000


def test_the_folder_is_a_file(tmp_path: Path) -> None:
    """A file where the folder should be."""
    path = tmp_path / "out"
    path.write_text("mine")
    check(run("none", path), sentences=1)
    assert path.read_text() == "mine"


def test_the_folder_cannot_be_made() -> None:
    """A place where nobody may write, root included."""
    check(run("none", "/proc/disttrace-out"), sentences=1)


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 256 KiB fills up; with a mapped journal that must not be SIGBUS."""
    small = f'mount -t tmpfs -o size=256k none "{tmp_path}" && exec "$0" "$@"'
    space = ["unshare", "-rm", "sh", "-c", small]
    if shutil.which("unshare") is None or subprocess.run([*space[:-1], "true"]).returncode:
        pytest.skip("no unshare here: RLIMIT_FSIZE above stands in, without SIGBUS")
    check(run("none", tmp_path / "out", *space), sentences=1)
