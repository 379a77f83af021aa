"""Of a rank that others wait for it is told whether it is at work, stands or spins, and until when
they wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from disttrace.journal.code_files import LOOP
from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.diagnosis.report import finding as as_values
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.evidence.endings import Endings
from disttrace_viewer.trace.process import Process
from support.journals import S, workers
from support.scenes import verdict

MB = 1_000_000
LIMIT = 1800 * S


@pytest.fixture(autouse=True)
def now_is_the_newest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endings, "cut_ns", property(lambda evidence: evidence.trace.end_ns))


def alive(_process: Process) -> Observation:
    return Observation(True)


def scene(
    folder: Path, used: dict[str, int] | None, lines: Sequence[int] = (12,), now: int = 12, *,
    loop: int | None = None, frozen: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Rank 1 waits for rank 0, which was seen every other second at these lines of tokenize."""
    for journal in workers(folder, 2):
        group = journal.numbered(
            "group", name="0", ranks=[0, 1], rank=journal.rank, default=True, timeout=LIMIT,
            backends={"cpu": "gloo"},
        )  # fmt: skip
        call = journal.collective(group, "all_reduce")
        journal.run(call, S, S // 10, q=1)
        if journal.rank == 1:
            journal.begin(call, 2 * S, q=2)
        else:
            for place, line in enumerate(lines):
                inner = [] if loop is None else [(LOOP, loop, "")]
                at = journal.stack(*inner, ("/a/data.py", line, "tokenize"))
                journal.record(at=(3 + 2 * place) * S, k=at)
            if used is not None:
                journal.define("activity", t=now * S, over=5 * S, **used)
        if not frozen or journal.rank == 1:
            journal.record(hb=now * S)
    case, found = verdict(folder, look=alive)
    (one,) = [f for f in found if f.kind == "missing_participant"]
    assert "/a/data.py:" in " ".join(Verdict(case, found).blame.lines.values())
    return as_values(case, one)


MOVING, STANDING = (12, 13, 14, 12, 13), (12,)
IDLE = {"cpu": 0, "read": 900, "written": 100, "faults": 3}
BUSY = {**IDLE, "cpu": 4 * S, "busy": 1}


@pytest.mark.parametrize(
    ("used", "lines", "state"),
    [
        (BUSY, MOVING, "moves"),
        (BUSY, STANDING, "moves"),  # one long call, or a comprehension
        (IDLE, STANDING, "stands"),
        (IDLE, (12, 13), "stands"),  # it went there when it had come through the call
        (IDLE, MOVING, "moves"),
        ({**IDLE, "others": 1}, STANDING, "moves"),
        ({**IDLE, "written": 100_000}, STANDING, "moves"),
        ({**IDLE, "received": 50_000}, STANDING, "moves"),
        ({**IDLE, "received": 900}, STANDING, "stands"),
        ({"cpu": 0, "faults": 3}, STANDING, "unknown"),  # what it reads is hidden
        (None, MOVING, "unknown"),
        (None, STANDING, "unknown"),
    ],
)
def test_what_it_does(
    tmp_path: Path, used: dict[str, int] | None, lines: Sequence[int], state: str
) -> None:
    """By the lines at which it was seen, and what the kernel counts."""
    found = scene(tmp_path, used, lines)
    (did,) = found["activity"]
    assert (did["rank"], did["state"]) == (0, state)
    assert did["lines"][0] == f"/a/data.py:{lines[-1]}"
    assert did["cpu"] == (None if used is None else used["cpu"] / (5 * S))
    assert did["read_bytes"] == (used or {}).get("read")
    assert found["severity"] == ("warning" if state == "moves" else "error")
    assert found["culprit_ranks"] == [0]
    assert found["certainty"] == "certain"


TURNS = [
    (BUSY, STANDING, "spins"),
    ({**BUSY, "read": 60 * MB}, STANDING, "moves"),
    ({**BUSY, "faults": 90_000}, STANDING, "moves"),
    ({**BUSY, "cpu": 8 * S}, STANDING, "moves"),  # other threads compute
    ({**BUSY, "others": 1}, STANDING, "moves"),
    (IDLE, STANDING, "stands"),
]


@pytest.mark.parametrize(
    ("used", "lines", "state"),
    [
        *TURNS,
        (BUSY, MOVING, "spins"),  # the loop has several lines
        (IDLE, MOVING, "stands"),
        ({**BUSY, "beside": 1}, STANDING, "moves"),
    ],
)
def test_who_only_looks_whether_others_got_something_done(
    tmp_path: Path, used: dict[str, int], lines: Sequence[int], state: str
) -> None:
    """In a loop that changes nothing: what its main thread computes is nothing."""
    found = scene(tmp_path, used, lines, loop=12)
    assert found["activity"][0]["state"] == state
    assert found["severity"] == ("warning" if state == "moves" else "error")


@pytest.mark.parametrize(("used", "lines", "state"), TURNS)
def test_who_holds_the_gil(
    tmp_path: Path, used: dict[str, int], lines: Sequence[int], state: str
) -> None:
    """A call that computes may do so for a minute (to sort takes its time); one that waits not."""
    found = scene(tmp_path / "a", used, lines, now=70, frozen=True)["activity"][0]["state"]
    soon = scene(tmp_path / "b", used, lines, now=20, frozen=True)
    assert found == state
    assert soon["activity"][0]["state"] == ("stands" if used is IDLE else "moves")
    assert soon["severity"] == ("error" if used is IDLE else "warning")


def test_sentences(tmp_path: Path) -> None:
    found = scene(tmp_path / "a", {**BUSY, "read": 340 * MB}, MOVING)
    used = "80 % of a core, 340 MB read in the last 5.0 s."
    said = f", not in any collective. Rank 0 is at work in tokenize at data.py:13: {used}"
    assert found["summary"].endswith(said)
    assert found["hint"].startswith("Nothing stands still,")
    said = "Rank 0 stands at data.py:12 in tokenize, no CPU time for 5.0 s."
    assert scene(tmp_path / "b", IDLE)["summary"].endswith(said)
    said = "Rank 0 spins at data.py:12 in tokenize: 80 % of a core for 5.0 s, without any effect."
    assert scene(tmp_path / "c", BUSY, loop=12)["summary"].endswith(said)
    assert scene(tmp_path / "d", None)["summary"].endswith("not in any collective.")


def test_time_left(tmp_path: Path) -> None:
    """To the nanosecond: the limit counts from the begin of the call."""
    found = scene(tmp_path, IDLE)["deadline"]
    assert found["limit_s"] == 1800
    assert (found["whose"], found["then"]) == ("group", "gloo raises in the ranks that wait")


def test_near_its_end_work_is_late(tmp_path: Path) -> None:
    """Who is at work a minute before the limit strikes is told as an error again."""
    assert scene(tmp_path / "a", {**BUSY, "others": 1}, now=1741)["severity"] == "warning"
    assert scene(tmp_path / "b", {**BUSY, "others": 1}, now=1743)["severity"] == "error"
