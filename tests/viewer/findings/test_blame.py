"""Who looks guilty and need not be: whoever polls a store, is frozen, or is ended by a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import Look
from support.journals import MS, Journal
from support.scenes import (
    PEER_GONE,
    S,
    alive,
    all_gone,
    beat,
    fail,
    finds,
    hang_without,
    nobody_knows,
    steps,
)


def poll(journal: Journal, until_s: int) -> None:
    """It asks for a count in the store every half second."""
    where = journal.stack(("train.py", 60, "wait_for_all"))
    store = journal.prefix_store(1, "app")
    add = journal.call("store.add", kind="store", store=store, origin="python", stack=where)
    for n in range(1, 2 * until_s):
        journal.run(add, t=n * S // 2, d=MS, k="done/2")


@pytest.mark.parametrize("polls", [True, False])
def test_who_polls_a_store_waits_for_somebody_as_well(tmp_path: Path, *, polls: bool) -> None:
    """Rank 0 asks for the count of those that are done; another rank forgot to add to it."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank:
            journal.begin(journal.collective(group, "barrier", shapes=None), 200 * MS, q=3)
        elif polls:
            poll(journal, 20)
    found = finds(
        tmp_path, "missing_participant", [] if polls else [0],
        certainty="likely" if polls else "certain",
    )  # fmt: skip
    if polls:
        assert "asks again and again (store.add of 'app/done/2' at train.py:60)" in found.summary


def test_a_thread_that_ends_the_process_under_a_call(tmp_path: Path) -> None:
    """The main thread is in a collective when another one calls ``os._exit(0)``."""
    for journal, group in steps(tmp_path, 3):
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        if journal.rank == 1:
            stack = journal.stack(("train.py", 9, "watchdog"))
            journal.define("exit", t=300 * MS, how="os._exit", code=0, stack=stack)
            continue
        journal.end(number, 110 * MS, x=journal.string(PEER_GONE))
        fail(journal, 311 * MS, "RuntimeError", PEER_GONE.partition(": ")[2], line=40)
    found = finds(tmp_path, "process_failed", [1], look=all_gone)
    assert "left by os._exit(0) at train.py:9 in watchdog" in found.summary


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("look", [nobody_knows, all_gone])
def test_a_thread_gives_up_what_another_awaits(tmp_path: Path, look: Look, ranks: int) -> None:
    """A watchdog: rank 0 is missing; of two an untraced launcher ends the other one."""
    at_s = 8 if ranks == 3 else 12
    for journal, group in steps(tmp_path, ranks):
        if journal.rank:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        if journal.rank == 1:
            stack = journal.stack(("train.py", 9, "watchdog"))
            journal.define("exit", t=at_s * S, how="os._exit", code=3, stack=stack)
        else:
            beat(journal, 20 if ranks == 3 else at_s)
    told = ("Rank 1 left by os._exit(3).",)
    finds(tmp_path, "missing_participant", [0], consequences=told, look=look)


def test_a_thread_that_gives_up_too_early_to_tell(tmp_path: Path) -> None:
    """The other one might still have come: it is said who left, and where."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
            stack = journal.stack(("train.py", 9, "watchdog"))
            journal.define("exit", t=8 * S, how="os._exit", code=3, stack=stack)
        else:
            beat(journal, 8)
    found = finds(tmp_path, "process_failed", [1])
    assert "left by os._exit(3) at train.py:9 in watchdog" in found.summary


def test_a_member_that_was_frozen_inside_of_a_collective(tmp_path: Path) -> None:
    """All have begun it; rank 2 gives no sign of life since, and nobody lost its connection."""
    for journal, group in steps(tmp_path, 3):
        journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 0 if journal.rank == 2 else 30)
    found = finds(tmp_path, "no_progress", [2], certainty="likely", look=all_gone)
    assert "rank 2 has been frozen for 29.8 s" in found.summary


def test_the_exception_of_a_thread_is_told_of_whoever_waits_for_it(tmp_path: Path) -> None:
    """Rank 1's loading thread failed; its main thread waits for the next batch."""
    for journal, _ in hang_without(tmp_path, 3, 1):
        thread = journal.numbered("thread", name="load", native=7)
        stack = journal.stack(("train.py", 13, "load"))
        keys = {"type": "OSError", "text": "disk is gone", "stack": stack, "h": thread}
        journal.define("failure", t=180 * MS, **keys)
    found = finds(tmp_path, "missing_participant", [1])
    assert "thread first: OSError: disk is gone at train.py:13 in load" in (found.hint or "")


def test_an_exception_of_whom_a_finding_names_is_always_quoted(tmp_path: Path) -> None:
    """Another operation was called; the rank that did ends by an exception of its own."""
    for journal, group in hang_without(tmp_path, 3, 1, beats=False):
        journal.run(journal.collective(group, "broadcast"), t=200 * MS, d=MS, q=3)
        fail(journal, 400 * MS, "KeyError", "'lr'")
    found = finds(tmp_path, "op_mismatch", [1])
    assert any("KeyError: 'lr'" in one for one in (found.summary, *found.consequences))
