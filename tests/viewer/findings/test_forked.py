"""A forked child that calls in a group of its parent's."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.journals import MS, Journal
from support.scenes import beat, findings, only, ranks, steps


def forked(parent: Journal) -> Journal:
    """A child with its parent's variables."""
    return Journal(
        parent.folder,
        pid=5001,
        role="child",
        parent=parent.process,
        rank=parent.rank,
        world_size=parent.world_size,
    )


def test_a_forked_child_in_an_inherited_group_is_told_as_that(tmp_path: Path) -> None:
    """Neither its parent is there for it, nor is anybody missing; the others get on."""
    for journal, group in steps(tmp_path, 2, count=0):
        call = journal.collective(group)
        for number in range(1, 20):
            journal.run(call, t=number * 900 * MS, d=MS, q=number)
        beat(journal, 20)
        if journal.rank == 1:
            child = forked(journal)
            child.begin(child.collective(child.world()), 2_000 * MS, q=3)
            beat(child, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.severity, found.certainty) == ("not_in_group", "error", "certain")
    assert found.waiting == ()
    assert found.summary.startswith(
        "Process 5001, a forked child of rank 1, has been in all_reduce"
    )


@pytest.mark.parametrize("parent", [0, 1], ids=["the server of the store", "a client"])
def test_the_calls_of_a_copy_are_not_its_parents(tmp_path: Path, parent: int) -> None:
    """The parent stands in a loader, and its child has called as often as the others."""
    for journal, group in steps(tmp_path, 2, count=2):
        if journal.rank != parent:
            journal.begin(journal.collective(group), 2_000 * MS, q=3)
        else:
            child = forked(journal)
            child.begin(child.collective(child.world()), 2_000 * MS, q=3)
            beat(child, 20)
        beat(journal, 20)
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"missing_participant", "not_in_group"}
    missing = next(f for f in found if f.kind == "missing_participant")
    assert ranks(tmp_path, missing.culprits) == [parent]
