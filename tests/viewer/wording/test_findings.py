"""Sentences of findings from values by hand: no journal, no rule; one subject and many."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from disttrace_viewer.analysis.process_ends import ALIVE, CLEAN, SILENT, End
from disttrace_viewer.findings.rules import claims, ended_unseen, outside, process_failed
from disttrace_viewer.findings.rules.outside import Doing
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Frame, Worker
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.sentences import ended

LOADER = Doing(End(ALIVE, 0), at=Frame("/app/loader.py", 9, "load"))


def trace(size: int = 4) -> Trace:
    """Ranks and nothing else."""
    found = object.__new__(Trace)
    ranks = [SimpleNamespace(rank=rank, label=f"rank {rank}") for rank in range(size)]
    vars(found).update(processes=ranks)
    return found


@pytest.mark.parametrize(
    ("end", "one", "many"),
    [
        (End(CLEAN, 0), "has ended", "have ended"),
        (End(SILENT, 0, -9), "was ended by SIGKILL", "were ended by SIGKILL"),
        (End(SILENT, 0, -2), "was ended by SIGINT", "were ended by SIGINT"),
    ],
)
def test_an_end_follows_one_subject_or_many(end: End, one: str, many: str) -> None:
    """The verb agrees."""
    assert (ended(end), ended(end, many=True)) == (one, many)


def test_those_at_one_place_share_a_clause() -> None:
    """By name, or as who was named just before; at several places by name again."""
    here = "at loader.py:9 in load, not in any collective"
    gone = Doing(End(CLEAN, 0))
    assert outside.where(trace(), {}) == ""
    assert outside.where(trace(), {2: LOADER}) == f"; rank 2 is {here}"
    assert outside.where(trace(), {2: LOADER}, named=True) == f"; it is {here}"
    assert outside.where(trace(), {2: LOADER, 3: LOADER}, named=True) == f"; they are {here}"
    several = outside.where(trace(), {1: gone, 2: LOADER, 3: LOADER}, named=True)
    assert several == f"; rank 1 has ended, ranks 2, 3 are {here}"


def test_a_worker_without_a_journal() -> None:
    """What is sure, and what may only lack its journal, of one and of many."""
    worker = Worker(0, 4711, "failed", 1, 0, 3, None)
    words = [
        ended_unseen.words(worker, sure=s, many=m) for s in (True, False) for m in (False, True)
    ]
    assert words == [
        "ended with exit code 3 before it used torch.distributed",
        "ended with exit code 3 before they used torch.distributed",
        "ended with exit code 3, and no journal of it was found",
        "ended with exit code 3, and no journal of them was found",
    ]


def test_sides_are_told_in_the_order_given() -> None:
    """The odd one first, with a verb of its own number."""
    said = claims.world_size_summary(trace(3), {2: 4, 0: 3, 1: 3}, "tcp://a:1")
    assert said.endswith("its world size at tcp://a:1: rank 2 claims 4 and ranks 0, 1 claim 3.")
    assert sentences.have([1]) == "has"


def test_a_failure_says_what_the_process_did_last_only_where_nothing_tells_more() -> None:
    """``it lives on`` where a thread keeps it alive."""
    end = End(SILENT, 0, lingers=True)
    said = process_failed.summary(trace(), [1], end, None, None)
    assert said.startswith("Rank 1 ended without an exit record")
    assert said.endswith("; it lives on, for another thread still runs.")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (-9, "out-of-memory killer"),
        (-11, "native code (run with PYTHONFAULTHANDLER=1)"),
        (-15, "who sent it"),
        (-24, "limit of CPU time"),
        (-14, "signal.alarm"),
        (-44, "or a crash in native code (run with"),
        (None, "or a crash in native code (run with"),
    ],
)
def test_what_to_look_for_depends_on_the_signal(code: int | None, what: str) -> None:
    """A rank that got SIGTERM did not run out of memory."""
    said = process_failed.hint(End(SILENT, 0, code=code), others=True)
    assert what in said
    assert said.endswith(".")
    assert ("dmesg" in said) is (code in (-9, -44, None))
