"""Which findings count while the job runs: what holds up somebody now, as far as that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis.live import AGAIN_S, Picture, gave_up, open_waits, picture
from support.journals import MS, Journal
from support.scenes import PEER_GONE, S, beat, fail, join, mesh, steps, verdict

LIMIT_S = 10.0


def now(folder: Path, age_s: int, **changes: Any) -> Picture:
    """The picture where rank 0 has not come to a collective in which rank 1 waits."""
    for journal, group in steps(folder, 2):
        if journal.rank == 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, age_s)
    case, found = verdict(folder)
    given: dict[str, Any] = {"unknown": (), "asks": False, "looked_into": False, **changes}
    given.setdefault("starved", lambda _: 0.0)
    return picture(case, found, LIMIT_S, **given)


def test_who_has_waited_for_the_limit_stands_still(tmp_path: Path) -> None:
    """And is told by a signature that stays the same."""
    found = now(tmp_path, 12)
    assert [one.kind for one in found.errors] == ["missing_participant"]
    assert found.waiting


def test_before_the_limit_nothing_is_told(tmp_path: Path) -> None:
    """But when to look again."""
    found = now(tmp_path, 8)
    assert found.errors == []
    assert 0 < found.next_s < 4


@pytest.mark.parametrize(("share", "told"), [(0.0, True), (0.5, False)])
def test_who_waits_for_a_processor_is_not_blamed(
    tmp_path: Path, share: float, *, told: bool
) -> None:
    """Of twelve seconds it had six: without the load nobody would have waited for the limit."""
    found = now(tmp_path, 12, starved=lambda _: share)
    assert bool(found.errors) is told
    assert (found.next_s == AGAIN_S) is not told


@pytest.mark.parametrize("age_s", [12, 14])
def test_others_may_be_about_to_answer(tmp_path: Path, age_s: int) -> None:
    """So long beyond the limit nobody is blamed; then what is known is told."""
    found = now(tmp_path, age_s, unknown=(2,), asks=True)
    assert bool(found.errors) is (age_s == 14)
    assert found.next_s == (AGAIN_S if age_s == 12 else LIMIT_S)


@pytest.mark.parametrize(
    ("age_s", "moved_s", "told"), [(24, 22, False), (24, 2, True), (70, 68, True)]
)
def test_who_imports_is_waited_for_longer(
    tmp_path: Path, age_s: int, moved_s: int, *, told: bool
) -> None:
    """The first functional collective imports half of torch; an import that stands still hangs."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        else:
            stack = journal.stack(
                ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"),
                ("/src/train.py", 30, "main"),
            )
            journal.record(at=moved_s * S, h=0, k=stack)
        beat(journal, age_s)
    _, found = verdict(tmp_path)
    assert [one.kind for one in found] == ["missing_participant"] * told


def test_who_starts_is_told_in_the_call_of_the_program(tmp_path: Path) -> None:
    """Rank 0 serves the store and waits in its constructor, rank 1 is in that of the group already:
    both are in ``init_process_group``. Nobody knows of rank 2.
    """
    for rank in range(2):
        journal = Journal(tmp_path, pid=4000 + rank, rank=rank, world_size=3)
        outer, meet, store = join(journal, 100 * MS, 3)
        if journal.rank == 1:
            journal.end(store, MS)
            journal.end(meet, 2 * MS)
            mesh(journal, 110 * MS, outer, 3, 1, "default_pg", "0/", "cpu/")
        beat(journal, 70)
    case, found = verdict(tmp_path)
    seen = picture(
        case, found, LIMIT_S, unknown=[2], asks=False, looked_into=False, starved=lambda _: 0.0
    )
    (told,) = (one.summary for one in seen.errors)
    assert told.startswith("Ranks 0, 1 have been waiting in init_process_group at train.py:5")
    assert told.endswith("rank 2 may be missing there.")


@pytest.mark.parametrize(("error", "later"), [(True, False), (True, True), (False, False)])
def test_who_gave_up_does_not_go_on(tmp_path: Path, *, error: bool, later: bool) -> None:
    """A lost connection ends a wait as well; unless the program goes on in another group."""
    told: set[tuple[str, int]] = set()
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            fail(journal, 12 * S, "ValueError", "bad batch")
            continue
        number = journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 12)
        told |= {w for w in open_waits(verdict(tmp_path)[0]) if w[1] == number}
        journal.end(number, 13 * S, **({"x": journal.string(PEER_GONE)} if error else {}))
        if later:
            journal.run(journal.collective(group), 14 * S, MS, q=4)
    case, _ = verdict(tmp_path)
    assert told
    assert not told & open_waits(case)
    assert gave_up(case, told) is (error and not later)
