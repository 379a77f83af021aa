"""The pytest plugin: a test in several ranks, by pytest itself in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace.testing.ranks import has_fault
from support.processes import ROOT, ending, wait_until

PROGRAM = """
import os, signal, time
import pytest
import torch
import torch.distributed as dist

ranks = pytest.mark.distributed(2)

@pytest.fixture(scope="module")
def made():
    return [os.getpid()]

@ranks
@pytest.mark.parametrize("factor", [1, 2])
def test_passes(factor, made, tmp_path):
    assert made == [os.getppid()]
    tensor = torch.ones(2) * factor
    dist.all_reduce(tensor)
    (tmp_path / str(dist.get_rank())).write_text("x")
    dist.barrier()
    assert tensor[0] == 2 * factor and len(list(tmp_path.iterdir())) == 2

@ranks
def test_one_fails():
    if dist.get_rank() == 1:
        print("seen on rank one")
        assert 1 == 2, "no"
    dist.barrier()

@pytest.mark.distributed(3, init=False)  # one that ends first cuts others off as they connect
def test_all_fail():
    raise ValueError("x")

@ranks
def test_signal():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

@ranks
def test_left():
    if dist.get_rank() == 1:
        os._exit(0)
    dist.barrier()

@ranks
def test_skips():
    pytest.skip("why")

@ranks
@pytest.mark.xfail
def test_expected():
    assert False

@ranks
def test_expected_inside():
    pytest.xfail("known")

@pytest.mark.distributed(3)
def test_hangs():
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.barrier()

@pytest.mark.distributed(n=2)
def test_size():
    for _ in range(2):
        dist.all_reduce(torch.ones(1000 if dist.get_rank() else 4))

@pytest.mark.distributed(1, timeout=1)
def test_never_ends():
    time.sleep(600)
"""


def run(folder: Path, *options: str, text: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "test_it.py", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith(("DISTTRACE", "PYTEST"))},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def section(text: str, name: str) -> str:
    found = re.search(rf"_+ {name} _+\n(.*?)(?=\n___|\n===)", text, re.DOTALL)
    assert found is not None, text
    return found[1]


def test_what_becomes_of_a_test_in_ranks(tmp_path: Path) -> None:
    """The finding comes first, also as a property; faulthandler's stacks are the rank's."""
    report = tmp_path / "junit.xml"
    told = run(tmp_path, f"--junitxml={report}").stdout
    assert "7 failed, 2 passed, 1 skipped, 2 xfailed" in told
    one = section(told, "test_one_fails")
    assert "on rank 1 of 2" in one
    assert one.count("AssertionError: no") == 1
    assert "(and then rank 0: " in one
    assert "seen on rank one" in one
    assert section(told, "test_all_fail").count("ranks ") == 1
    assert "rank 1 was ended by SIGKILL" in section(told, "test_signal")
    assert "rank 1 left with exit code 0" in section(told, "test_left")
    hang = section(told, "test_hangs")
    assert "Rank 1 never joined barrier #1" in hang
    assert "took longer than 1 s" in section(told, "test_never_ends")
    size = section(told, "test_size")
    assert size.startswith("1. ERROR shape_mismatch: ")
    assert "all_reduce with 1,000" in size
    assert "Fatal Python error" not in size.partition("Captured")[0]
    for kind in ("missing_participant", "shape_mismatch"):
        assert f'name="disttrace" value="{kind}"' in report.read_text()


@pytest.mark.parametrize(
    ("kind", "severity", "fault"),
    [
        ("straggler", "warning", False),
        ("late_sender", "warning", False),
        ("unwaited_work", "note", False),
        ("group_mismatch", "warning", True),
        ("missing_participant", "error", True),
    ],
)
def test_what_is_a_fault_of_the_ranks(kind: str, severity: str, *, fault: bool) -> None:
    """That one is late on this machine is none."""
    report = {"findings": [{"kind": kind, "severity": severity}]}
    assert has_fault(json.dumps(report).encode()) is fault
    for text in (b"", b"{}"):
        with pytest.raises(ValueError, match=r"no report|Expecting value"):
            has_fault(text)


@pytest.mark.long
def test_workers_of_xdist_share_no_port(tmp_path: Path) -> None:
    text = """
import pytest, torch, torch.distributed as dist
@pytest.mark.distributed(2)
@pytest.mark.parametrize("n", range(8))
def test_it(n):
    tensor = torch.ones(1) * n
    dist.all_reduce(tensor)
    assert tensor[0] == 2 * n
"""
    assert "8 passed" in run(tmp_path, "-n", "4", text=text).stdout


def test_the_first_failure_ends_it_where_that_is_wanted(tmp_path: Path) -> None:
    """With `-x` no later test starts, and nothing of the failed one goes on."""
    text = """
import os, pathlib, time, pytest

@pytest.mark.distributed(2, init=False)
def test_first():
    pathlib.Path(f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    assert os.environ["RANK"] == "1"
    time.sleep(600)

@pytest.mark.distributed(2, init=False)
def test_second():
    pathlib.Path("started").touch()
"""
    done = run(tmp_path, "-x", "--dist-stall=1", text=text)
    assert "1 failed" in done.stdout, done.stdout
    assert "stopping after 1 failures" in done.stdout
    assert not (tmp_path / "started").exists()
    pids = [p.read_text() for p in tmp_path.glob("pid*")]
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.long
def test_it_may_be_started_as_programs_of_their_own(tmp_path: Path) -> None:
    told = run(tmp_path, "--dist-start", "spawn", "-k", "test_one_fails or test_skips").stdout
    assert "1 failed, 1 skipped" in told
    assert "on rank 1 of 2" in told


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("async def test_it(): pass", "an async test cannot be distributed"),
        ("class TestIt:\n    def test_it(self): pass", "a test of a class cannot be"),
    ],
)
def test_what_cannot_run_in_ranks_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    mark = "import pytest\npytestmark = pytest.mark.distributed(2)\n"
    found = run(tmp_path, text=mark + text)
    assert sentence in found.stdout + found.stderr
    assert found.returncode == pytest.ExitCode.USAGE_ERROR


def test_nothing_of_torch_is_imported_for_others(tmp_path: Path) -> None:
    """Nor a warning given where the start of an interpreter has imported us: Python 3.15's does."""
    doc = "rewrite.AssertionRewriter.is_rewrite_disabled(disttrace.__doc__)"
    text = "import sys, disttrace\nfrom _pytest.assertion import rewrite\ndef test_it():\n"
    text += f"    assert 'torch' not in sys.modules and {doc}"
    assert "1 passed" in run(tmp_path, text=text).stdout


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    text = """
import os, pathlib, time, pytest
@pytest.mark.distributed(2, init=False)
def test_it():
    pathlib.Path(f"pid{os.environ['RANK']}").write_text(str(os.getpid()))
    time.sleep(600)
"""
    (tmp_path / "test_it.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "test_it.py", "-p", "no:cacheprovider"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    with ending(process):
        written = [tmp_path / "pid0", tmp_path / "pid1"]
        wait_until(lambda: all(path.exists() and path.read_text() for path in written), 120)
        pids = [path.read_text() for path in written]
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
