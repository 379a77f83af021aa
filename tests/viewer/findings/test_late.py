"""Who is late, and what is no lateness; Ctrl-C and signals to the launcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.diagnosis.report import healthy
from support.journals import MS, Journal, S
from support.scenes import alive, findings, finds, hang_without, only, ranks, steps, verdict

TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
IN_AGENT = ("api.py", 1, "_terminate_process_handler")


def come_late(journal: Journal, group: int) -> None:
    """Arrive 7.8 s after the others had given up, and stand there."""
    journal.lose(group, 14 * S, 3 * S, fails=18 * S)
    journal.stand(16 * S, "train.py", 10, "step")


def late(folder: Path, seen_s: float) -> Iterator[tuple[Journal, int]]:
    """The others wait six seconds for rank 1, whose rest is the loop's, and end."""
    for journal, group in steps(folder, 3):
        if journal.rank == 1:
            journal.stand(round(seen_s * S), "loader.py", 7, "load")
            yield journal, group
        else:
            journal.lose(group, 200 * MS, 6 * S, TIMED_OUT, fails=7 * S)


@pytest.mark.parametrize(
    ("seen_s", "told"),
    [
        (2.0, "last seen at loader.py:7 in load until then."),
        (0.15, "last seen at loader.py:7 in load until then."),
        (8.0, "at loader.py:7 in load 1.8 s after that."),
    ],
)
def test_a_late_rank_is_told_where_it_was(tmp_path: Path, seen_s: float, told: str) -> None:
    """Noted while they waited; before that, and it had not moved since; or when they had gone."""
    for journal, group in late(tmp_path, seen_s):
        come_late(journal, group)
    found = finds(tmp_path, "missing_participant", [1], ends=f"; rank 1 was {told}")
    assert (found.locations[0].file, found.locations[0].line) == ("loader.py", 7)


def test_where_it_was_is_known_although_its_stack_was_written_at_the_end(tmp_path: Path) -> None:
    """A launcher's SIGTERM has that done: the newest note does not take the place of another."""
    for journal, group in late(tmp_path, 2):
        journal.lose(group, 14 * S, 3 * S)
        with journal.definitions.open("a") as file:
            file.write("Stack (most recent call first):\n")
            file.write('  File "/src/train.py", line 99 in last\n')
    assert "rank 1 was last seen at loader.py:7 in load" in only(findings(tmp_path)).summary


def test_what_was_noted_before_other_work_says_nothing(tmp_path: Path) -> None:
    """It has moved since, and nobody saw to where."""
    for journal, group in late(tmp_path, 0.15):
        journal.run(journal.store_call("set", 9), 190 * MS, MS, k="a")
        come_late(journal, group)
    assert "last seen" not in only(findings(tmp_path)).summary


def test_who_broke_since_the_others_had_gone_is_told_where_it_was_before(tmp_path: Path) -> None:
    """Its own operation is another one, and its error is about those who were gone."""
    for journal, group in late(tmp_path, 3):
        there = journal.stack(("loader.py", 7, "load"))
        for half in range(7, 28):  # noted anew whenever another thread of it does something
            journal.record(at=half * S // 2, h=0, k=there)
        send = journal.message(group, "send", peer=0)
        journal.break_off(send, 14 * S, MS, 15 * S, q=1, refused=True)
    found = finds(tmp_path, "missing_participant", [1])
    assert "rank 1 was last seen at loader.py:7 in load until they gave up, and" in found.summary
    assert (found.locations[0].file, found.locations[0].line) == ("loader.py", 7)


def test_waits_that_followed_one_another_are_no_cycle(tmp_path: Path) -> None:
    """Rank 0 gave up a key that rank 1 set later, and was gone when rank 1 waited for it."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            get, text = journal.store_call("get", 9), "DistStoreError: wait timeout after 3 s"
            journal.break_off(get, 200 * MS, 3 * S, 4 * S, text, k="a")
        else:
            journal.stand(2 * S, "loader.py", 7, "load")
            journal.run(journal.store_call("set", 11), 6 * S, MS, k="a")
            journal.lose(group, 6 * S + 2 * MS, 3 * S, fails=10 * S)
    found = finds(tmp_path, "store_key_missing", [1])
    assert "rank 1 set it 2.8 s later; rank 1 was last seen at loader.py:7" in found.summary


@pytest.mark.parametrize("begun_ms", [190, 1_000], ids=["before", "after"])
@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'layer 7'",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error",
        "DistBackendError: NCCL error: Duplicate GPU detected : rank 0 and rank 1 both on device 0",
    ],
)
def test_who_breaks_by_itself_has_not_given_up(tmp_path: Path, text: str, begun_ms: int) -> None:
    """Whether the others come to it before or after that: it is what failed."""
    for journal, group in steps(tmp_path, 3):
        at = begun_ms * MS if journal.rank else 200 * MS
        number = journal.begin(journal.collective(group), at, q=3)
        if journal.rank == 0:
            journal.end(number, MS, x=journal.string(text))
            kind, _, message = text.partition(": ")
            journal.fail(300 * MS, kind, message)
        else:
            journal.record(hb=60 * S)
    finds(tmp_path, "process_failed", [0])


def hung(folder: Path, at: int, agent: Journal | None = None, *, handler: bool = False) -> None:
    """Ranks 0 and 2 are in their third call; rank 1 comes ``at``, and all are killed soon after."""
    keys: dict[str, Any] = {} if agent is None else {"parent": agent.process}
    for journal, group in steps(folder, 3, **keys):
        journal.beat(at // S, 0)
        if journal.rank == 1:
            journal.stand(min(2 * S, at - MS), "loader.py", 7, "load")
            args = {"handler": True} if handler else None
            call = journal.collective(group, "broadcast", root=0, args=args)
            journal.begin(call, at, q=3)
            journal.stand(at + 2 * S, "train.py", 50, "on_term")
            journal.beat(at // S + 4, at // S + 2)
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            journal.beat(at // S + 4, at // S + 2)


def check_missing(folder: Path) -> None:
    found = next(one for one in findings(folder) if one.severity == "error")
    assert (found.kind, ranks(folder, found.culprits)) == ("missing_participant", [1])
    assert "rank 1 is at loader.py:7 in load" in found.summary


def test_a_broadcast_in_a_handler_of_signals(tmp_path: Path) -> None:
    """Nobody traced has sent the signal; the others had been waiting for long."""
    hung(tmp_path, 14 * S, handler=True)
    check_missing(tmp_path)


@pytest.mark.parametrize("handler", [False, True])
def test_one_that_met_nobody_who_waited_for_long(tmp_path: Path, handler: bool) -> None:
    """Then it is a call of the program's like all others, as is one that no handler makes."""
    hung(tmp_path, S if handler else 14 * S, handler=handler)
    assert only(findings(tmp_path)).kind == "op_mismatch"


@pytest.mark.parametrize("why", ["signal", "failure"])
def test_a_broadcast_since_the_launcher_ended_its_workers(tmp_path: Path, why: str) -> None:
    """Whatever it is called from; the launcher was sent a signal, or a rank had failed."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    stop = agent.call("stop_workers", kind="composed", origin="python", args={"signal": "SIGTERM"})
    hung(tmp_path, 14 * S + MS, agent)
    if why == "failure":
        agent.beat(18)
        agent.begin(stop, 14 * S)
    else:
        number = agent.begin(stop, 14 * S)
        agent.end(number, 3 * S)
        agent.fail(17 * S, "SignalException", "Process 3999 got signal: 15")
    check_missing(tmp_path)


def test_ranks_that_end_together_by_a_collective_are_well(tmp_path: Path) -> None:
    """Each asks for a last barrier in its handler, and they meet there."""
    for journal, group in steps(tmp_path, 2):
        call = journal.collective(group, "barrier", args={"handler": True})
        journal.run(call, 200 * MS, MS, q=3)
        journal.leave(300 * MS)
    assert findings(tmp_path) == []


def interrupt(journal: Journal, t: int) -> None:
    journal.failure(t, "KeyboardInterrupt", "", ("train.py", 44, "load"))
    journal.define("exit", t=t + MS, how="exception")


def loses(journal: Journal, group: int, t: int) -> None:
    """It is in an all_reduce since 200 ms when the connection goes."""
    call = journal.collective(group)
    journal.break_off(call, 200 * MS, t - 200 * MS, t + MS, q=3, line=40)


def test_a_job_that_is_interrupted_is_healthy(tmp_path: Path) -> None:
    """Ranks 0 and 2 are interrupted between calls; rank 1 loses them in its next one."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            loses(journal, group, 800 * MS)
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
            loses(journal, group, 800 * MS)
    agent.fail(790 * MS, "SignalException", "Process 3999 got signal: 15", IN_AGENT)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits) == ("note", ())
    told = "Agent 3999 was interrupted from outside (torchrun: Process 3999 got signal: 15);"
    assert found.summary.startswith(told)


def test_what_hung_before_is_the_verdict(tmp_path: Path) -> None:
    """Rank 1 was in its loader for long; that all were interrupted there is no end of its own."""
    for journal, group in alive(steps(tmp_path, 3), 9):
        if journal.rank == 1:
            journal.stand(2 * S, "train.py", 44, "load")
            interrupt(journal, 10 * S)
        elif journal.rank == 0:
            loses(journal, group, 10 * S + 5 * MS)
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            interrupt(journal, 10 * S)
    missing, note = findings(tmp_path)
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    assert "waiting at train.py:10 for 9.8 s; rank 1 is at train.py:44 in load" in missing.summary
    assert "uneven" not in (missing.hint or "")
    assert note.severity == "note"


@pytest.mark.parametrize(("until_s", "word"), [(10, True), (10, False), (2, False)])
def test_what_lived_until_all_were_interrupted_was_missing(
    tmp_path: Path, until_s: int, word: bool
) -> None:
    """It ended at once, with a word of its own or without one, and others long after it. If its
    last sign is long before the signal it may have ended.
    """
    agent = Journal(tmp_path, pid=3999, role="agent")
    for journal, group in steps(tmp_path, 3, parent=agent.process):
        if journal.rank == 1:
            journal.beat(until_s)
            journal.stand(2 * S, "train.py", 44, "load")
            if word:
                interrupt(journal, 11 * S)
        else:
            journal.beat(14)
            journal.begin(journal.collective(group), 200 * MS, q=3)
            interrupt(journal, 15 * S)
    agent.failure(11 * S, "SignalException", "Process 3999 got signal: 2", IN_AGENT)
    agent.define("exit", t=36 * S, how="exception", code=1)
    missing, _ = findings(tmp_path)
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    settles = ("see whether rank 1 still lived then (the host's log, dmesg)",)
    told = ("certain", ()) if until_s == 10 else ("likely", settles)
    assert (missing.certainty, missing.settles) == told


def test_one_rank_that_is_interrupted_broke_the_job_and_is_not_blamed(tmp_path: Path) -> None:
    """Whoever sent it the signal is not in the journals."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            interrupt(journal, 790 * MS)
        else:
            loses(journal, group, 800 * MS)
    found = finds(tmp_path, "process_failed", [], severity="error")
    assert found.summary == "Rank 1 was interrupted from outside (SIGINT) at train.py:44 in load."
    assert len(found.consequences) == 2


def test_a_rank_awaited_for_long_when_it_was_interrupted_is_missing(tmp_path: Path) -> None:
    """The signal only ended what hung."""
    for journal, group in alive(steps(tmp_path, 3), 19):
        if journal.rank == 1:
            journal.stand(2 * S, "train.py", 44, "load")
            interrupt(journal, 20 * S)
        else:
            loses(journal, group, 20 * S + 5 * MS)
    finds(tmp_path, "missing_participant", [1])


def test_a_rank_that_was_interrupted_alone_lived_until_then(tmp_path: Path) -> None:
    """Others waited for it before, and hung on after it."""
    for journal, _ in hang_without(tmp_path, 3, 1, beats=False, until_s=30):
        journal.beat(19)
        journal.stand(2 * S, "train.py", 44, "load")
        interrupt(journal, 20 * S)
    finds(tmp_path, "missing_participant", [1], certainty="certain")


@pytest.mark.parametrize("code", [0, 1])
def test_a_caught_ctrl_c_leaves_what_hung_before(tmp_path: Path, code: int) -> None:
    """Each exits in its handler, so that its call has no end; beats say that no more is lost."""
    for journal, group in alive(steps(tmp_path, 3), 10):
        if journal.rank == 1:
            journal.stand(2 * S, "train.py", 44, "load")
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
