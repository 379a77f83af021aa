"""Whatever happens to the journal, the program's results and exit code are its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cores import EACH_CORE
from support.preloaded import preloaded, to_its_end
from support.processes import ROOT, Outcome, clean_environ, run_program
from support.raw import read_journals

PROGRAM = Path(__file__).with_name("program.py")
RESULT = "2999 3000 4.0\n"
CODE = 3
SENTENCE = "disttrace: tracing is off in process"


def run(kind: str, folder: Path | str, *prefix: str) -> Outcome:
    """The program with tracing into ``folder``; ``prefix`` is a command that runs it."""
    variables = {"DISTTRACE": "1", "DISTTRACE_DIR": str(folder), "DISTTRACE_MAX_MB": "4"}
    if not prefix:
        return to_its_end(PROGRAM, kind, timeout=60.0, **variables)
    return run_program([*prefix, sys.executable, PROGRAM, kind], clean_environ(**variables))


def check(outcome: Outcome, *, sentences: int) -> None:
    """Result and code are the program's; ``sentences`` of ours are all that stderr holds."""
    assert not outcome.hung, f"{outcome}"
    assert (outcome.stdout, outcome.code) == (RESULT, CODE), f"{outcome}"
    ours = [line for line in outcome.stderr.splitlines() if line.startswith("disttrace:")]
    assert len(ours) == sentences, f"{outcome}"
    assert all(line.startswith(SENTENCE) for line in ours), f"{outcome}"
    assert "Traceback" not in outcome.stderr, f"{outcome}"


@pytest.mark.parametrize(("kind", "sentences"), [
    ("none", 0), ("deleted", 1), ("deleted, then idle", 1), ("size", 1), ("size with a signal", 1),
])  # fmt: skip
def test_trouble_in_mid_run(tmp_path: Path, kind: str, sentences: int) -> None:
    """A folder that goes away and files that may not grow are one sentence each."""
    check(run(kind, tmp_path / "out"), sentences=sentences)


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


def test_the_folder_is_a_file_or_cannot_be_made(tmp_path: Path) -> None:
    """The second where nobody may write, root included."""
    path = tmp_path / "out"
    path.write_text("mine")
    check(run("none", path), sentences=1)
    assert path.read_text() == "mine"
    check(run("none", "/proc/disttrace-out"), sentences=1)


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 256 KiB fills up; with a mapped journal that must not be SIGBUS."""
    small = f'mount -t tmpfs -o size=256k none "{tmp_path}" && exec "$0" "$@"'
    space = ["unshare", "-rm", "sh", "-c", small]
    if shutil.which("unshare") is None or subprocess.run([*space[:-1], "true"]).returncode:
        pytest.skip("no unshare here: RLIMIT_FSIZE above stands in, without SIGBUS")
    check(run("none", tmp_path / "out", *space), sentences=1)


_SILENT = """
import os, resource, signal, sys
import torch, torch.distributed as dist
number, limit = signal.SIGPIPE, 1 << 20
if sys.argv[1] == "pipe":
    reader, writer = os.pipe()
    os.close(reader)
else:
    number, writer = signal.SIGXFSZ, os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
    os.lseek(writer, limit, os.SEEK_SET)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
signal.signal(number, signal.SIG_DFL)
os.dup2(writer, 2)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
print("silent")
"""


@pytest.mark.parametrize("kind", ["pipe", "size"])
def test_a_silent_program_is_not_ended_by_what_we_print(tmp_path: Path, kind: str) -> None:
    """Where stderr has no reader or no room, and the program has the signals of that end it."""
    given: dict[str, Any] = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_QUIET": "0"}
    words = ("-c", _SILENT, kind, tmp_path / "err")
    bare, traced = (preloaded(*words, DISTTRACE=on, **given) for on in "01")
    assert (bare.code, bare.stdout) == (0, "silent\n")
    assert (traced.code, traced.stdout) == (bare.code, bare.stdout)


def test_every_operation_begun_is_in_its_journal() -> None:
    """Three runs in which a random rank is killed at a random instant, read by the viewer."""
    script = ROOT / "tests" / "reliability" / "kill_runs.py"
    outcome = preloaded(script, "--runs", "3", "--seed", "7").check()
    assert outcome.stdout.startswith("3 runs, 9 journals, ")
    assert outcome.stdout.endswith(": 0 lost, 0 journals not read\n")


PROGRAM_MANY_THREADS = ROOT / "tests" / "reliability" / "many_threads.py"


@EACH_CORE
@pytest.mark.parametrize("written", [[], ["--written"]])
def test_nothing_is_switched_off_and_nothing_is_lost(core: str, written: list[str]) -> None:
    """Sixteen threads roll through segments that are mapped, or written as on a file server."""
    small = ["--seconds", "0.7", "--threads", "16", "--max-mb", "1", "--core", core]
    outcome = preloaded(PROGRAM_MANY_THREADS, *small, *written).check()
    assert outcome.stdout.rstrip().endswith("all there"), f"{outcome}"


PROGRAM_REINSTALLED = ROOT / "tests" / "reliability" / "reinstalled.py"


@EACH_CORE
def test_nothing_of_a_former_import_gets_in_the_way(tmp_path: Path, core: str) -> None:
    """Beside a thread whose frames come and go, and a collector that lets it run."""
    words = (PROGRAM_REINSTALLED, str(tmp_path), core, "15")
    done = to_its_end(*words, timeout=120.0).check()
    assert done.stderr == ""
    assert done.stdout.startswith(f"15 rounds on {core}")
