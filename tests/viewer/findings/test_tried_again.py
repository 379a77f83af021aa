"""An attempt that failed and was repeated with success."""

from __future__ import annotations

from pathlib import Path

from support.journals import Journal
from support.scenes import S, all_gone, fail, findings, leave, only


def restarted(folder: Path) -> tuple[Journal, Journal]:
    """torchrun's agent, whose rank 0 failed and was started anew; it, and the second attempt."""
    agent = Journal(folder, pid=500, role="agent")
    tries = [
        Journal(
            folder, rank=0, world_size=1, pid=600 + n, parent=agent.process, keys={"attempt": n}
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
