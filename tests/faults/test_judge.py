"""The judge of verdicts, on reports written by hand: it must not let a wrong one pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults.clocks import shift_clocks
from faults.expectation import EXAMPLES, NOBODY, Expected, Row, marked_lines
from faults.judge import judge

PROGRAM = EXAMPLES / "faults" / "slow_loader.py"
LINES = marked_lines(PROGRAM)
AWAY = f"rank 2 should stand at {sorted((LINES['L1'], LINES['L1b']))},"
ROW = Row(
    number=2,
    program="faults/slow_loader.py",
    expected=(
        Expected(
            kinds=("missing_participant",), culprits=((2,),), waiting=(0, 1),
            lines={2: ("L1", "L1b")}, words=("loader",),
        ),
    ),
)  # fmt: skip


def finding(**changes: Any) -> dict[str, Any]:
    location = {"rank": 2, "file": str(PROGRAM), "line": LINES["L1"], "function": "load"}
    return {
        "kind": "missing_participant", "severity": "error", "summary": "rank 2 is in its loader",
        "hint": None, "culprit_ranks": [2], "waiting_ranks": [1, 0], "locations": [location],
        "consequences": [], **changes,
    }  # fmt: skip


def problems(*findings: dict[str, Any], code: int = 1, healthy: bool = False) -> list[str]:
    return judge(ROW, {"findings": list(findings), "healthy": healthy}, code)


def test_the_right_report_passes_and_another_finding_does_not() -> None:
    """A note beside it is not counted; silence is wrong even though nobody is blamed."""
    assert problems(finding()) == []
    note = finding(kind="unwaited_work", severity="note", culprit_ranks=[0])
    assert problems(finding(), note) == []
    second = finding(kind="process_failed", culprit_ranks=[1])
    told = ["rank 1 is blamed and did nothing", "also said: process_failed [1]"]
    assert problems(finding(), second) == told
    assert problems(code=0, healthy=True) == ["no missing_participant; said was: nothing"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"culprit_ranks": [0]}, "rank 0 is blamed and did nothing"),
        ({"culprit_ranks": []}, "missing_participant blames (), not ((2,),)"),
        ({"waiting_ranks": [0]}, "missing_participant: waiting (0,), not (0, 1)"),
        ({"summary": "rank 2 is away"}, "missing_participant does not mention 'loader'"),
        ({"kind": "deadlock"}, "no missing_participant; said was: deadlock [2]"),
        ({"kind": "deadlock"}, "also said: deadlock [2]"),
        ({"locations": []}, f"missing_participant: {AWAY} shown are []"),
    ],
)
def test_a_wrong_report_does_not_pass(changes: dict[str, Any], said: str) -> None:
    """Each thing that can be wrong about a finding is said."""
    assert said in problems(finding(**changes))


@pytest.mark.parametrize(("code", "healthy"), [(0, False), (1, True), (2, False)])
def test_exit_code_and_healthy_must_agree_with_the_findings(code: int, healthy: bool) -> None:
    said = f"healthy is {healthy} and the exit code {code} with 1 findings"
    assert problems(finding(), code=code, healthy=healthy) == [said]


def test_blame_where_nobody_can_be_blamed_is_wrong() -> None:
    """A row that expects no culprit does not take one."""
    expected = (Expected(kinds=("deadlock",), culprits=(NOBODY,)),)
    row = Row(number=4, program="faults/slow_loader.py", expected=expected)
    report = {"findings": [finding(kind="deadlock")], "healthy": False}
    told = ["rank 2 is blamed and did nothing", "deadlock blames (2,), not ((),)"]
    assert judge(row, report, 1) == told


PROCESS = {
    "def": "process", "process": "ab", "host": "h", "boot_id": "b", "env": {"RANK": "1"},
    "t0": 1_000_000_000, "unix_ns": 5_000_000_000, "start_ns": 4_000_000_000,
}  # fmt: skip
BEGIN = {"b": 1, "t": 2_000_000, "s": 3, "q": 1}
END = {"e": 1, "d": 1_000_000, "u": 500_000}


def write(folder: Path, tail: bytes) -> None:
    """A journal of one process and one operation, and what a killed process leaves behind it."""
    folder.mkdir()
    (folder / "j.defs.jsonl").write_text(json.dumps(PROCESS) + "\n")
    operations = f"{json.dumps(BEGIN)}\n{json.dumps(END)}\n".encode()
    (folder / "j.000001.ops.jsonl").write_bytes(operations + tail)


def read(folder: Path) -> list[dict[str, object]]:
    text = (folder / "j.defs.jsonl").read_text() + (folder / "j.000001.ops.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_offset_and_drift_move_every_time(tmp_path: Path) -> None:
    """A second late and 1000 ppm fast: anchors move, durations grow, host and boot are others."""
    write(tmp_path / "in", b'{"b":2,"t":3' + b"\0" * 100)
    shift_clocks(tmp_path / "in", tmp_path / "out", {1: (1.0, 1000.0)})
    assert read(tmp_path / "out") == [
        {
            **PROCESS, "t0": 1_001_000_000, "unix_ns": 6_000_000_000, "start_ns": 4_999_000_000,
            "host": "host-1000000000", "boot_id": "boot-1000000000-1.001",
        },
        {**BEGIN, "t": 2_002_000},
        {**END, "d": 1_001_000, "u": 500_500},
    ]  # fmt: skip


def test_other_ranks_stay_on_one_host(tmp_path: Path) -> None:
    """Ranks without a clock of their own share the host of offset nought."""
    write(tmp_path / "in", b"")
    shift_clocks(tmp_path / "in", tmp_path / "out", {2: (1.0, 0.0)})
    first = read(tmp_path / "out")[0]
    assert (first["unix_ns"], first["host"]) == (5_000_000_000, "host-0")


def test_hosts_do_not_meet_at_a_loopback_address(tmp_path: Path) -> None:
    """Otherwise the reader would rightly take them for two jobs with a store each."""
    write(tmp_path / "in", b'{"def":"store","n":1,"name":"tcp://127.0.0.1:5"}\n')
    shift_clocks(tmp_path / "in", tmp_path / "out", {1: (0.0, 0.0)})
    assert read(tmp_path / "out")[-1] == {"def": "store", "n": 1, "name": "tcp://10.0.0.1:5"}
