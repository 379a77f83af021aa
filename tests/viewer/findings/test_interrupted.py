"""Ctrl-C and signals to the launcher: what stood before is the verdict, and nobody is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.report import healthy
from support.journals import MS, Journal
from support.scenes import (
    PEER_GONE,
    S,
    alive,
    beat,
    fail,
    findings,
    finds,
    only,
    ranks,
    stand,
    steps,
    verdict,
)


def interrupt(journal: Journal, t: int) -> None:
    stack = journal.stack(("train.py", 44, "load"))
    journal.define("failure", t=t, type="KeyboardInterrupt", text="", stack=stack, h=0)
    journal.define("exit", t=t + MS, how="exception")


def lose(journal: Journal, group: int, t: int) -> None:
    """It is in an all_reduce since 200 ms when the connection goes."""
    number = journal.begin(journal.collective(group), 200 * MS, q=3)
    journal.end(number, t - 200 * MS, x=journal.string(PEER_GONE))
    fail(journal, t + MS, "RuntimeError", PEER_GONE.partition(": ")[2], line=40)


def test_a_job_that_is_interrupted_is_healthy(tmp_path: Path) -> None:
    """Ranks 0 and 2 are interrupted between calls; rank 1 loses them in its next one."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            lose(journal, group, 800 * MS)
        else:
            interrupt(journal, 790 * MS)
    found = finds(tmp_path, "process_failed", [], severity="note")
    assert found.summary.startswith("Ranks 0-2 were interrupted from outside (SIGINT)")
    assert healthy([found])
    case, told = verdict(tmp_path)
    said = "ranks 0, 2  killed  was interrupted from outside  train.py:44 in load"
    assert places(case, told)[-1].line(case) == said


def test_a_launcher_that_is_stopped_interrupts_its_workers(tmp_path: Path) -> None:
    """Workers end by the same signal, or each in its own way."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    for journal, group in steps(tmp_path, 2, parent=agent.process):
        end = {"pid": journal.pid, "event": "killed", "signal": "SIGTERM", "rank": journal.rank}
        agent.define("worker", t=700 * MS, **end)
        if journal.rank == 1:
            lose(journal, group, 800 * MS)
    stack = agent.stack(("api.py", 1, "_terminate_process_handler"))
    text = "Process 3999 got signal: 15"
    agent.define("failure", t=790 * MS, type="SignalException", text=text, stack=stack, h=0)
    agent.define("exit", t=791 * MS, how="exception", code=1)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits) == ("note", ())
    told = "Agent 3999 was interrupted from outside (torchrun: Process 3999 got signal: 15);"
    assert found.summary.startswith(told)


def test_what_hung_before_is_the_verdict(tmp_path: Path) -> None:
    """Rank 1 was in its loader for long; that all were interrupted there is no end of its own."""
    for journal, group in alive(steps(tmp_path, 3), 9):
        if journal.rank == 1:
            stand(journal, 2 * S, "train.py", 44, "load")
            interrupt(journal, 10 * S)
        elif journal.rank == 0:
            lose(journal, group, 10 * S + 5 * MS)
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            interrupt(journal, 10 * S)
    missing, note = findings(tmp_path)
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    assert "waiting at train.py:10 for 9.8 s; rank 1 is at train.py:44 in load" in missing.summary
    assert "uneven" not in (missing.hint or "")
    assert note.severity == "note"


@pytest.mark.parametrize("word", [True, False])
def test_what_lived_until_all_were_interrupted_was_missing(tmp_path: Path, word: bool) -> None:
    """It ended at once, with a word of its own or without one, and others long after it."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    for journal, group in steps(tmp_path, 3, parent=agent.process):
        if journal.rank == 1:
            beat(journal, 10)
            stand(journal, 2 * S, "train.py", 44, "load")
            if word:
                interrupt(journal, 11 * S)
        else:
            beat(journal, 14)
            journal.begin(journal.collective(group), 200 * MS, q=3)
            interrupt(journal, 15 * S)
    stack = agent.stack(("api.py", 1, "_terminate_process_handler"))
    text = "Process 3999 got signal: 2"
    agent.define("failure", t=11 * S, type="SignalException", text=text, stack=stack, h=0)
    agent.define("exit", t=36 * S, how="exception", code=1)
    missing, _ = findings(tmp_path)
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    assert (missing.certainty, missing.settles) == ("certain", ())


def test_what_was_silent_before_all_were_interrupted_may_have_ended(tmp_path: Path) -> None:
    """Its last sign is long before the signal."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            beat(journal, 2)
            stand(journal, 2 * S, "train.py", 44, "load")
        else:
            beat(journal, 14)
            journal.begin(journal.collective(group), 200 * MS, q=3)
            interrupt(journal, 15 * S)
    missing = next(one for one in findings(tmp_path) if one.kind == "missing_participant")
    assert missing.certainty == "likely"
    assert missing.settles == ("see whether rank 1 still lived then (the host's log, dmesg)",)


def test_one_rank_that_is_interrupted_broke_the_job_and_is_not_blamed(tmp_path: Path) -> None:
    """Whoever sent it the signal is not in the journals."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            interrupt(journal, 790 * MS)
        else:
            lose(journal, group, 800 * MS)
    found = finds(tmp_path, "process_failed", [], severity="error")
    assert found.summary == "Rank 1 was interrupted from outside (SIGINT) at train.py:44 in load."
    assert len(found.consequences) == 2


def test_a_rank_awaited_for_long_when_it_was_interrupted_is_missing(tmp_path: Path) -> None:
    """The signal only ended what hung."""
    for journal, group in alive(steps(tmp_path, 3), 19):
        if journal.rank == 1:
            stand(journal, 2 * S, "train.py", 44, "load")
            interrupt(journal, 20 * S)
        else:
            lose(journal, group, 20 * S + 5 * MS)
    finds(tmp_path, "missing_participant", [1])


def test_a_rank_that_was_interrupted_alone_lived_until_then(tmp_path: Path) -> None:
    """Others waited for it before, and hung on after it."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            beat(journal, 19)
            stand(journal, 2 * S, "train.py", 44, "load")
            interrupt(journal, 20 * S)
        else:
            beat(journal, 30)
            journal.begin(journal.collective(group), 200 * MS, q=3)
    finds(tmp_path, "missing_participant", [1], certainty="certain")


@pytest.mark.parametrize("code", [0, 1])
def test_a_caught_ctrl_c_leaves_what_hung_before(tmp_path: Path, code: int) -> None:
    """Each exits in its handler, so that its call has no end; beats say that no more is lost."""
    for journal, group in alive(steps(tmp_path, 3), 10):
        if journal.rank == 1:
            stand(journal, 2 * S, "train.py", 44, "load")
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        causes = ["KeyboardInterrupt"]
        journal.define("exit", t=11 * S, how="exit", code=code, causes=causes)
    case, found = verdict(tmp_path)
    missing, note = found
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    assert (missing.certainty, note.severity, case.incomplete) == ("certain", "note", ())
    states = {end.state for end in case.evidence.ends}
    assert states == {"failed" if code else "exited"}
