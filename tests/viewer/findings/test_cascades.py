"""A failure of a process's own, and one that passes on that communication with others broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.trace.process import Process
from support.journals import MS, PEER_GONE, Journal, S
from support.scenes import (
    all_gone,
    findings,
    finds,
    hang_without,
    nobody_knows,
    only,
    ranks,
    steps,
    verdict,
)

TIMED_OUT = "RuntimeError: Timed out waiting 6000ms for recv operation to complete"
LOOKS_LIKE_IT = [
    ("RuntimeError", "DataLoader timed out after 5 seconds"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("ReadTimeoutError", "Read timeout on endpoint URL"),
]


@pytest.mark.parametrize(("kind", "text"), LOOKS_LIKE_IT)
def test_a_text_like_a_lost_rank_is_no_evidence(tmp_path: Path, kind: str, text: str) -> None:
    """No operation of rank 1 ended in that error, so it is its own."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.fail(210 * MS, kind, text)
        else:
            journal.lose(group, 200 * MS, 30 * MS, fails=240 * MS)
    finds(tmp_path, "process_failed", [1], certainty="certain")


WRAPPED = "Got the following error when running the callback: "


@pytest.mark.parametrize("left_out", [False, True])
def test_what_a_callback_makes_of_a_lost_rank_is_no_failure(tmp_path: Path, left_out: bool) -> None:
    """A hook's future raises anew with that text; the rank that went has other words."""
    text = WRAPPED + PEER_GONE
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.fail(210 * MS, "RuntimeError", "unmarked_param_indices is not empty at 7")
        else:
            journal.lose(group, 200 * MS, 42 * MS)
            told = f"{text[: len(WRAPPED) + 60]} ... {text[-20:]}" if left_out else text
            journal.fail(240 * MS, "RuntimeError", told)
    finds(tmp_path, "process_failed", [1], certainty="certain", says="unmarked")


def test_what_differs_by_rank_in_a_text_makes_no_second_failure(tmp_path: Path) -> None:
    """A number, a path and what stands in quotes."""
    for journal, _ in steps(tmp_path, 3):
        rank = journal.rank or 0
        text = f"no file '{'abc'[rank]}' in /data/{rank}/x after {rank} tries"
        journal.fail(240 * MS, "RuntimeError", text)
    assert ranks(tmp_path, only(findings(tmp_path)).culprits) == [0, 1, 2]


PACKAGES = "/env/lib/python3.11/site-packages/torch"
INSIDE = (f"{PACKAGES}/distributed/distributed_c10d.py", 3252, "all_reduce")
HANDLERS = [
    (f"{PACKAGES}/utils/data/_utils/signal_handling.py", 73, "handler"),
    ("/src/train.py", 8, "on_alarm"),
]


def raised_inside(
    journal: Journal, group: int, handler: tuple[str, int, str], t: int, d: int
) -> None:
    """A handler of signals raises while the process is in an all_reduce."""
    text = "a worker is killed by signal: Killed."
    journal.lose(group, t, d, f"RuntimeError: {text}")
    journal.fail(t + d + MS, "RuntimeError", text, handler, INSIDE, ("/src/train.py", 30, "step"))


@pytest.mark.parametrize("handler", HANDLERS, ids=["loader", "user"])
@pytest.mark.parametrize("late", [0, 3 * S])
def test_what_a_signal_handler_raises_inside_of_a_collective_is_its_own(
    tmp_path: Path, handler: tuple[str, int, str], late: int
) -> None:
    """Rank 1's worker was killed; the others are in the collective, or come to it later."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            raised_inside(journal, group, handler, 200 * MS, 20 * MS)
        else:
            journal.lose(group, 201 * MS + late, 30 * MS, fails=240 * MS + late)
    finds(tmp_path, "process_failed", [1], certainty="certain")


def test_a_handler_that_leaves_ends_its_own_process(tmp_path: Path) -> None:
    """Rank 1's handler of SIGTERM calls sys.exit while it is in a collective."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.lose(group, 200 * MS, 20 * MS, "SystemExit: 3")
            asked = journal.stack(("/src/train.py", 8, "on_term"))
            journal.define("exit", t=222 * MS, how="exit", code=3, stack=asked)
        else:
            journal.lose(group, 201 * MS, 30 * MS, fails=240 * MS)
    finds(tmp_path, "process_failed", [1])


def test_an_alarm_after_long_waiting_gives_up_on_who_is_missing(tmp_path: Path) -> None:
    """Ranks 0 and 1 watch their steps by SIGALRM; rank 2 is in its loader."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 2:
            journal.stand(2 * S, "/src/loader.py", 8, "load")
            journal.beat(40)
        else:
            raised_inside(journal, group, HANDLERS[1], 200 * MS, 30 * S)
    finds(tmp_path, "missing_participant", [2])


def test_who_aborts_after_what_others_have_done_failed_by_itself(tmp_path: Path) -> None:
    """Rank 0 aborts; its reducer's operation has no end, but rank 1 is through with it."""
    for journal, group in steps(tmp_path, 2):
        call = journal.collective(group, origin="c++", stack=None)
        number = journal.issue(call, 200 * MS, q=3, d=MS)
        if journal.rank == 1:
            journal.end(number, 2 * MS)
            store = journal.call("store.get", kind="store", store=1, origin="python")
            asked = journal.begin(store, 210 * MS, k="step/1")
            kind, text = "DistNetworkError", "Connection reset by peer"
            journal.end(asked, 60 * MS, x=journal.string(f"{kind}: {text}"))
            journal.fail(275 * MS, kind, text)

    def aborted(process: Process) -> Observation:
        return Observation(alive=False, code=-6) if process.rank == 0 else all_gone(process)

    finds(tmp_path, "process_failed", [0], look=aborted)


def test_all_at_once_is_not_nothing(tmp_path: Path) -> None:
    """Every rank's loader times out: none of them lost another one."""
    for journal, _ in steps(tmp_path, 3):
        journal.fail(210 * MS, *LOOKS_LIKE_IT[0])
    finds(tmp_path, "process_failed", [0, 1, 2])


@pytest.mark.parametrize("how", ["later", "chain", "exit", "os._exit"])
def test_survivors_end_in_their_own_ways(tmp_path: Path, how: str) -> None:
    """They catch the lost connection, and save, raise their own exception, or leave with a code."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.fail(210 * MS, "ValueError", "the loss is not a number")
            continue
        journal.lose(group, 200 * MS, 30 * MS)
        if how == "later":
            journal.fail(5 * S, "SystemError", "training aborted")
        elif how == "chain":
            journal.fail(5 * S, "OSError", "cannot go on", causes=[PEER_GONE])
        else:
            journal.define("exit", t=5 * S, how=how, code=13)
    found = finds(tmp_path, "process_failed", [1])
    assert len(found.consequences) == 2  # the operation, and how they ended
    if how == "exit":
        assert found.consequences[-1] == "Ranks 0, 2 ended with exit code 13."


def test_a_process_that_recovered_fails_by_itself(tmp_path: Path) -> None:
    """What it lost before it exchanged something again has nothing to do with its end."""
    for journal, group in steps(tmp_path, 2):
        journal.lose(group, 200 * MS, 30 * MS, TIMED_OUT)
        journal.run(journal.collective(group), t=1 * S, d=MS, q=4)
        if journal.rank == 1:
            journal.fail(2 * S, "KeyError", "'step'", causes=[TIMED_OUT])
        else:
            journal.break_off(journal.collective(group), 2 * S, 30 * MS, 3 * S, q=5)
    found = [f for f in findings(tmp_path) if f.kind == "process_failed"]
    assert ranks(tmp_path, only(found).culprits) == [1]


def test_a_polled_store_is_no_excuse(tmp_path: Path) -> None:
    """Rank 1 asked for a key with a short time-out, again and again, and then failed by itself."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            get = journal.call("store.wait", kind="store", store=1)
            for number in range(5):
                n = journal.begin(get, (200 + number) * MS, k="message")
                text = "DistStoreError: wait timeout after 50ms"
                journal.end(n, MS // 2, x=journal.string(text), f=1)
            journal.fail(300 * MS, "ValueError", "the loss is not a number")
        else:
            journal.lose(group, 200 * MS, 200 * MS, fails=410 * MS)
    finds(tmp_path, "process_failed", [1])


@pytest.mark.parametrize("then", ["raise", "go", "leave"])
def test_who_arrives_after_the_time_out_is_missing(tmp_path: Path, then: str) -> None:
    """Whatever the others did about it; a second of margin is for survivors that fail in a row."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.lose(group, 14 * S, MS, fails=15 * S)
            continue
        journal.lose(group, 200 * MS, 6 * S, TIMED_OUT)
        if then == "raise":
            journal.fail(7 * S, "RuntimeError", TIMED_OUT.partition(": ")[2])
        elif then == "leave":
            journal.leave(8 * S)
        else:
            journal.beat(40)
    found = finds(tmp_path, "missing_participant", [1], certainty="certain")
    assert found.summary == (
        "Rank 1 arrived at all_reduce #3 of the default group 7.8 s after the others had given up:"
        " ranks 0, 2 waited for it at train.py:10 for 6.0 s."
    )


def test_what_cxx_code_gave_up_without_a_record_was_given_up(tmp_path: Path) -> None:
    """DDP raised the time-out, and nobody saw the operation end. Rank 1 comes long after."""
    torch = "/usr/lib/python3/site-packages/torch/autograd/graph.py"
    for journal, group in steps(tmp_path, 2):
        late = journal.rank == 1
        call = journal.collective(group, asynchronous=True, origin="c++")
        number = journal.issue(call, 14 * S if late else 200 * MS, q=3, d=MS)
        if late:
            journal.end(number, 2 * MS, x=journal.string(PEER_GONE))
            journal.fail(15 * S, "RuntimeError", PEER_GONE.partition(": ")[2])
            continue
        journal.beat(6)
        kind, text = TIMED_OUT.split(": ")
        journal.fail(6 * S, kind, text, (torch, 841, "backward"), ("train.py", 31, "step"))
    found = finds(tmp_path, "missing_participant", [1])
    assert "arrived at all_reduce #3 of the default group 8.0 s after" in found.summary


@pytest.mark.parametrize("how", ["collective", "key"])
def test_who_was_held_up_elsewhere_is_not_to_blame(tmp_path: Path, how: str) -> None:
    """Rank 1 is late since it waited for rank 2, which had gone nowhere."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 0:
            journal.lose(group, 200 * MS, 6 * S, TIMED_OUT)
            journal.beat(40)
            continue
        first, begins = journal.rank == 1, 150 * MS if journal.rank == 1 else 11 * S
        if how == "collective":
            pair = journal.group(2, name="1", ranks=[1, 2], rank=int(not first), size=2)
            journal.run(journal.collective(pair, "reduce"), begins, 11 * S + MS - begins, q=1)
        else:
            call = journal.call("store.get" if first else "store.set", kind="store", store=1)
            journal.run(call, begins, 11 * S + MS - begins, k="ready")
        journal.lose(group, 11 * S + 2 * MS, MS, fails=12 * S)
    found = finds(tmp_path, "missing_participant", [2], certainty="likely")
    assert "rank 1 waited for rank 2 in " in found.summary


def test_within_a_second_nobody_is_late(tmp_path: Path) -> None:
    """Two survivors of a third fail one after the other."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            journal.fail(210 * MS, "ValueError", "the loss is not a number")
            continue
        journal.lose(group, (200 + 500 * (journal.rank or 0)) * MS, 20 * MS, fails=2 * S)
    finds(tmp_path, "process_failed", [1])


def test_a_time_out_that_harmed_nobody_is_silent(tmp_path: Path) -> None:
    """All caught it and left well: they may have wanted to know whether the others are there."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.lose(group, 200 * MS, 6 * S, TIMED_OUT)
        journal.leave(8 * S)
    assert findings(tmp_path) == []


def test_a_message_to_who_had_given_up(tmp_path: Path) -> None:
    """Rank 0 timed out over a receive; rank 1 sends eight seconds later."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            receive = journal.message(group, "recv", 1)
            journal.break_off(receive, 200 * MS, 6 * S, 7 * S, TIMED_OUT, q=1)
        else:
            send = journal.message(group, "send", 0)
            journal.break_off(send, 14 * S, MS, 15 * S, q=1, refused=True)
    finds(tmp_path, "unmatched_recv", [1], says="rank 1 posted the send 7.8 s later")


def test_two_that_die_at_once_are_one_failure(tmp_path: Path) -> None:
    """What the survivors lose shows that not everything was ended from outside."""
    for journal, group in steps(tmp_path, 4):
        if journal.rank in (1, 2):
            continue
        journal.lose(group, 200 * MS, 100 * MS, fails=400 * MS)
    finds(tmp_path, "process_failed", [1, 2], certainty="certain", look=all_gone)


def test_a_main_thread_that_failed_is_told_while_another_one_lives(tmp_path: Path) -> None:
    """It stands in threading's shutdown, and that is not where it went wrong."""
    for journal, _ in hang_without(tmp_path, 2, 1):
        journal.failure(210 * MS, "ValueError", "no")
        shut = journal.stack(("/usr/lib/python3.12/threading.py", 1590, "_shut"))
        journal.record(at=3 * S, h=0, k=shut)
    found = finds(tmp_path, "process_failed", [1])
    assert found.summary == (
        "Rank 1 failed first: ValueError: no (train.py:30); it lives on, for another thread"
        " still runs."
    )


def test_what_a_hook_calls_after_an_exception_belongs_to_it(tmp_path: Path) -> None:
    """``sys.excepthook`` and ``atexit`` run on the rank that raised alone; live and afterwards."""
    for journal, group in hang_without(tmp_path, 3, 1):
        journal.failure(190 * MS, "ValueError", "no")
        there = journal.stack(("train.py", 70, "flush"))
        journal.begin(journal.collective(group, "barrier", stack=there), 200 * MS, q=3)
    for look in (nobody_knows, all_gone):
        found = finds(tmp_path, "process_failed", [1], look=look)
        assert found.summary == (
            "Rank 1 failed first: ValueError: no (train.py:30); at its end in barrier #3 of the"
            " default group (train.py:70)."
        )


def test_failures_that_nothing_explains_are_told_without_a_culprit(tmp_path: Path) -> None:
    """Rank 0 served the store and left; the others lose it while they make a group."""
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 0:
            journal.leave(210 * MS)
            continue
        make = journal.call(
            "ProcessGroupGloo", kind="constructor", store=2,
            stack=("train.py", 6, "main"),
            args={"rank": (journal.rank or 0) - 1, "size": 2},
        )  # fmt: skip
        number = journal.begin(make, 300 * MS)
        text = "DistNetworkError: Broken pipe"
        journal.end(number, MS, x=journal.string(text), f=1)
        journal.fail(310 * MS, "DistNetworkError", "Broken pipe")
    found = finds(tmp_path, "process_failed", [], certainty="likely", waiting=[1, 2])
    assert "served by rank 0, which has ended before" in found.summary


@pytest.mark.parametrize("kind", ["message", "collective", "waited", "c++"])
def test_who_ends_without_waiting_for_its_part_takes_it_away(tmp_path: Path, kind: str) -> None:
    """Rank 0 keeps its works and leaves, rank 1 is in that; who waited has done its part."""
    for journal, group in steps(tmp_path, 2):
        mine, origin = journal.rank or 0, "c++" if kind == "c++" else "python"
        if kind == "message":
            call, number = journal.message(group, "recv" if mine else "send", 1 - mine), 1
        else:
            call, number = journal.collective(group, asynchronous=not mine, origin=origin), 3
        begun = journal.begin(call, 200 * MS, q=number)
        if mine == 0:
            journal.record(i=begun, d=MS)
            if kind == "waited":
                journal.record(w=begun, d=2 * MS)
                journal.record(e=begun, d=3 * MS)
            journal.leave(210 * MS)
            continue
        journal.end(begun, 400 * MS, x=journal.string(PEER_GONE))
        journal.fail(700 * MS, "RuntimeError", PEER_GONE.partition(": ")[2])
    found = only(findings(tmp_path, look=all_gone))
    left = kind in ("message", "collective")
    assert ranks(tmp_path, found.culprits) == ([0] if left else [])
    told = "and rank 0 had ended before without waiting for its"
    assert (told in found.summary) is left


def test_who_gives_up_has_lost_no_connection(tmp_path: Path) -> None:
    """Rank 0 is in there as well, and was late by more than the others had time for."""
    for journal, _ in steps(tmp_path, 3):
        make = journal.call(
            "ProcessGroupGloo", kind="constructor", store=2,
            stack=("train.py", 6, "main"), args={"rank": journal.rank, "size": 3},
        )  # fmt: skip
        number = journal.begin(make, 300 * MS)
        if journal.rank:
            text = "wait timeout after 0ms, keys: /rpc_prefix_0/0/0"
            journal.end(number, MS, x=journal.string(f"DistStoreError: {text}"), f=1)
            journal.fail(310 * MS, "DistStoreError", text)
        else:
            journal.beat(20)
    found = finds(tmp_path, "process_failed", [], certainty="likely")
    assert found.summary.startswith(
        "Ranks 1, 2 gave up in ProcessGroupGloo (train.py:6), and no journal says who did not come"
    )
    assert (found.hint or "").startswith("See who comes there only after the time-out")


@pytest.mark.parametrize(
    ("state", "words", "line", "hint"),
    [
        (
            "T",
            "is stopped (SIGSTOP, or a debugger)",
            "rank 1  stopped  by SIGSTOP, or a debugger",
            "`kill -CONT 4001`",
        ),
        (
            "D",
            "is in uninterruptible sleep (disk, NFS or a driver)",
            "rank 1  in uninterruptible sleep (disk, NFS or a driver)",
            "Look at what this rank does there",
        ),
    ],
)
def test_what_the_kernel_says_of_a_missing_rank(
    tmp_path: Path, state: str, words: str, line: str, hint: str
) -> None:
    """Stopped, or waiting for a disk."""

    def look(process: Process) -> Observation:
        return Observation(True, state=state if process.rank == 1 else "S")

    list(hang_without(tmp_path, 2, 1, beats=False))
    case, found = verdict(tmp_path, look=look)
    missing = only(found)
    assert (missing.kind, ranks(tmp_path, missing.culprits)) == ("missing_participant", [1])
    assert f"rank 1 {words}" in missing.summary
    assert hint in (missing.hint or "")
    assert places(case, found)[0].line(case) == line
