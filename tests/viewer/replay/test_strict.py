"""Programs that end well only since something was let pass are told, healthy ones are not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis import job
from disttrace_viewer.replay.verdict import strictly
from support.journals import MS
from support.processes import clean_environ, run_program
from support.scenes import steps

PROGRAMS = Path(__file__).with_name("programs.py")
SOME = (
    *("both_send_first", "isend_never_waited", "gather_then_send", "irecv_first_on_both_sides"),
    *("one_forward_one_backward", "from_any_source"),
)
SYNC: dict[str, Any] = {"async": False}
Expected = Mapping[str, tuple[list[int], bool]]
LEAN = """
import sys
sys.modules.update(dict.fromkeys(("polars", "rich", "torch", "numpy")))
from disttrace.cli import main
sys.exit(main(["diagnose", "--strict", *sys.argv[1:]]))
"""


def run(folder: Path, *names: str) -> Expected:
    """Run programs (default: all); by name who is stuck, and whether to judge as on a device."""
    command = [sys.executable, str(PROGRAMS), str(folder), *names]
    run_program(command, clean_environ(), timeout=120).check()
    found: Expected = json.loads((folder / "expected.json").read_text())
    return found


def judge(folder: Path, expected: Expected) -> None:
    for name, (stuck, device) in expected.items():
        where = [str(folder / name)]
        found = job.judged(where)
        assert found.healthy, (name, [finding.summary for finding in found.findings])
        told = strictly(found, where, streams=device, stall_ns=10**10)
        processes = told.case.evidence.trace.processes
        ranks = {processes[i].rank for finding in told.findings for i in finding.waiting}
        kinds = {finding.kind for finding in told.findings}
        assert ranks == {*stuck}, (name, told.findings)
        assert kinds == ({"would_hang"} if stuck else set()), name


def test_some_programs(tmp_path: Path) -> None:
    """As they were run, with real ranks."""
    judge(tmp_path, run(tmp_path, *SOME))
    send = tmp_path / "both_send_first"
    lean = run_program([sys.executable, "-c", LEAN, str(send)], clean_environ())
    assert lean.code == 1, lean
    assert "ERROR would_hang, likely: Would hang: Ranks 0, 1 wait for one another" in lean.stdout
    assert "fake let it pass since the message was small" in lean.stdout
    command = [sys.executable, "-c", LEAN, str(tmp_path / "from_any_source")]
    healthy = run_program(command, clean_environ())
    assert healthy.code == 0, healthy


@pytest.mark.long
def test_all_programs(tmp_path: Path) -> None:
    expected = run(tmp_path)
    judge(tmp_path, expected)
    assert sum(bool(stuck) for stuck, _ in expected.values()) == 13
    assert sum(not stuck for stuck, _ in expected.values()) == 9


def messages(folder: Path) -> None:
    """Two ranks that send to one another before they receive, on a backend that lets it pass."""
    for journal, group in steps(folder, 2, count=0):
        for number, op in enumerate(("send", "recv"), 1):
            call = journal.message(group, op, 1 - (journal.rank or 0), backend="mpi", **SYNC)
            journal.run(call, t=number * MS, d=MS // 2, q=1)
        journal.define("exit", t=10 * MS, how="normal", code=0)


def diagnose(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "disttrace", "diagnose", str(folder), *options],
        env=clean_environ(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_json_and_the_words(tmp_path: Path) -> None:
    """The kind is one of the schema's, and certainty is likely; without --strict all is well."""
    messages(tmp_path)
    assert diagnose(tmp_path).returncode == 0
    found = diagnose(tmp_path, "--strict", "--json")
    assert found.returncode == 1, found
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["kind"], finding["certainty"]) == ("would_hang", "likely")
    assert finding["waiting_ranks"] == [0, 1]
    assert "mpi let it pass since the message was small" in finding["hint"]


def test_who_may_still_receive_is_not_told(tmp_path: Path) -> None:
    """A process that has not ended has not done all that it will do."""
    for journal, group in steps(tmp_path, 2, count=0):
        if journal.rank == 0:
            call = journal.message(group, "send", 1, backend="mpi", **SYNC)
            journal.run(call, t=MS, d=MS, q=1)
            journal.define("exit", t=10 * MS, how="normal", code=0)
    found = strictly(job.judged([str(tmp_path)]), [str(tmp_path)], stall_ns=10**10)
    assert not [one for one in found.findings if one.kind == "would_hang"]


def test_states_are_refused(tmp_path: Path) -> None:
    """They do not hold what was done in which order."""
    messages(tmp_path / "journals")
    reduced = [sys.executable, "-m", "disttrace", "reduce", str(tmp_path / "journals")]
    subprocess.run([*reduced, "-o", str(tmp_path / "states")], env=clean_environ(), check=True)
    found = diagnose(tmp_path / "states", "--strict")
    assert found.returncode == 2
    assert "--strict replays journals" in found.stderr
