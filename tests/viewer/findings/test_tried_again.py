"""An attempt that failed and was repeated with success."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.diagnosis import live
from support.journals import Journal
from support.scenes import S, all_gone, beat, fail, findings, join, leave, only, verdict


def restarted(folder: Path, size: int = 1) -> tuple[Journal, Journal]:
    """torchrun's agent, whose rank 0 failed and was started anew; it, and the second attempt."""
    agent = Journal(folder, pid=500, role="agent")
    tries = [
        Journal(
            folder, rank=0, world_size=size, pid=600 + n, parent=agent.process, keys={"attempt": n}
        )
        for n in range(2)
    ]
    fail(tries[0], S, "ValueError", "bad batch")
    return agent, tries[1]


def test_a_failure_that_was_overcome_is_a_note(tmp_path: Path) -> None:
    """It cost an attempt, and the job ended well."""
    agent, second = restarted(tmp_path)
    leave(second, 3 * S)
    leave(agent, 4 * S)
    found = only(findings(tmp_path, look=all_gone))
    assert (found.kind, found.severity) == ("process_failed", "note")
    assert found.summary.startswith("Attempt 0 failed (Rank 0 failed first: ValueError: bad batch")
    assert found.summary.endswith("; attempt 1 ran to its end.")


def test_one_whose_launcher_failed_is_a_fault(tmp_path: Path) -> None:
    """No later attempt came through."""
    agent, second = restarted(tmp_path)
    leave(second, 3 * S)
    fail(agent, 4 * S, "ChildFailedError", "train.py FAILED")
    found = findings(tmp_path, look=all_gone)
    assert found[0].severity == "error"


def test_an_attempt_that_failed_holds_up_nobody_of_the_next_one(tmp_path: Path) -> None:
    """That one starts, and a rank of it imports for long: while it runs nothing is stalled."""
    agent, second = restarted(tmp_path, 2)
    join(second, 3 * S, 2)
    for journal in (agent, second):
        beat(journal, 20)
    case, found = verdict(tmp_path)
    assert {(f.kind, f.severity) for f in found} == {
        ("process_failed", "error"),
        ("rendezvous_incomplete", "note"),
    }
    assert live.stalled(case, found, 10.0) == []
    late = verdict(tmp_path, stall_s=2)
    told = [f.kind for f in live.stalled(*late, 2.0)]
    assert told == ["rendezvous_incomplete", "process_failed"]  # what holds up the living is first
