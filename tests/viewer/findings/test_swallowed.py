"""A call that raised on one rank, which caught that and went on, while the others are in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, Journal
from support.scenes import PEER_GONE, beat, findings, only, ranks, steps

ERROR = "TypeError: cannot pickle '_thread.lock' object"
TOLD = f"went on without it: {ERROR}."


def gather_object(journal: Journal, group: int, t: int, q: int, *, raises: str = "") -> None:
    """``all_gather_object``, in its first collective; or raised before that, as it pickles."""
    where = journal.stack(("train.py", 15, "collect"), ("train.py", 32, "main"))
    outer = journal.call(
        "all_gather_object", kind="composed", group=group, origin="python", stack=where
    )
    number = journal.begin(outer, t)
    if raises:
        journal.end(number, MS // 4, x=journal.string(raises))
    else:
        journal.begin(journal.collective(group, "all_gather", stack=where), t + 1000, q=q, p=number)


def scatter(journal: Journal, group: int, t: int, q: int, *, raises: str = "") -> None:
    """``scatter``, in flight; or refused on issue: then its number is given back."""
    call = journal.collective(group, "scatter", stack=journal.stack(("train.py", 16, "share")))
    number = journal.begin(call, t, q=q)
    if raises:
        journal.end(number, MS // 4, x=journal.string(raises), f=1)


@pytest.mark.parametrize("make", [gather_object, scatter])
@pytest.mark.parametrize(("world_size", "who"), [(3, [1]), (2, [1]), (3, [1, 2])])
def test_the_exception_is_told_and_who_went_on(
    tmp_path: Path, make: type, world_size: int, who: list[int]
) -> None:
    """Be they one of two, or most: it is they who are not where they should be."""
    for journal, group in steps(tmp_path, world_size):
        raises = ERROR if journal.rank in who else ""
        make(journal, group, 200 * MS, 3, raises=raises)
        if raises:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
        beat(journal, 20)
    found = only(findings(tmp_path))
    line = 15 if make is gather_object else 16
    assert (found.kind, found.certainty) == (
        "op_mismatch",
        "certain" if len(who) == 1 else "likely",
    )
    assert ranks(tmp_path, found.culprits) == who
    assert found.summary.endswith(TOLD)
    assert f"Just before, {'scatter' if line == 16 else 'all_gather_object'} (train.py:{line})" in (
        found.summary
    )
    assert (found.hint or "").startswith(f"Find why the call at train.py:{line} raised on rank")
    assert ERROR in (found.hint or "")
    assert "inputs" not in (found.hint or "")
    assert any(place.line == line and place.process in found.culprits for place in found.locations)


@pytest.mark.parametrize("between", ["call", "thread", "peer", "place"])
def test_an_exception_of_something_else_is_not_told(tmp_path: Path, between: str) -> None:
    """Another call came after it in that group; another thread; over a lost peer; elsewhere."""
    for journal, group in steps(tmp_path, 3):
        at = 4 if between == "call" else 3
        if journal.rank == 1:
            line = journal.stack(("other.py", 99, "log"))
            kind, op = "composed", "gather_object" if between == "place" else "all_gather_object"
            outer = journal.call(op, kind=kind, group=group, origin="python", stack=line)
            thread = {"h": 1} if between == "thread" else {}
            number = journal.begin(outer, 200 * MS, **thread)
            error = journal.string(PEER_GONE if between == "peer" else ERROR)
            journal.end(number, MS // 4, x=error)
        if between == "call":
            journal.run(journal.collective(group), t=205 * MS, d=MS // 2, q=3)
        if journal.rank == 1:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=at)
        else:
            gather_object(journal, group, 210 * MS, at)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("op_mismatch", [1])
    assert "raised" not in found.summary + (found.hint or "")


@pytest.mark.parametrize("make", [gather_object, scatter])
def test_who_went_on_to_nothing_is_missing_for_that(tmp_path: Path, make: type) -> None:
    """Rank 1 caught it and is in no collective since."""
    for journal, group in steps(tmp_path, 3):
        make(journal, group, 200 * MS, 3, raises=ERROR if journal.rank == 1 else "")
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [1])
    assert found.summary.endswith(TOLD)
    assert (found.hint or "").startswith("Find why the call at train.py:1")


def test_a_job_that_probes_is_not_blamed_for_it(tmp_path: Path) -> None:
    """All ranks tried a call that their backend has not, and rank 1 is in its loader now."""
    for journal, group in steps(tmp_path, 3):
        scatter(journal, group, 150 * MS, 3, raises=ERROR)
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [1])
    assert "raised" not in found.summary + (found.hint or "")


@pytest.mark.parametrize("make", [gather_object, scatter])
def test_who_went_on_to_another_group_is_told_of_in_the_deadlock(
    tmp_path: Path, make: type
) -> None:
    """Rank 1 is in a barrier of all, rank 0 in the call of their group that raised on rank 1."""
    for journal, group in steps(tmp_path, 3):
        rank = journal.rank or 0
        if rank < 2:
            sub = journal.group(name="1", ranks=[0, 1], size=2, rank=rank, default=False)
            journal.run(journal.collective(sub), t=150 * MS, d=MS // 2, q=1)
            make(journal, sub, 200 * MS, 2, raises=ERROR if rank == 1 else "")
        if rank:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert found.kind == "deadlock"
    assert found.summary.endswith(f"raised on rank 1, which {TOLD}")
    assert (found.hint or "").startswith("Find why the call at train.py:1")
