"""What a destruction that does not return waits for, and an abort while a device is at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.liveness import Observation
from support.journals import MS, Journal
from support.scenes import S, beat, findings, leave, only, ranks, stand, steps


def destroy(journal: Journal, t: int) -> int:
    where = journal.stack(("train.py", 40, "main"))
    call = journal.call("destroy_process_group", kind="composed", stack=where)
    return journal.begin(call, t)


@pytest.mark.parametrize("since", [1, 12])
def test_it_waits_for_the_oldest_work_from_its_own_begin_on(tmp_path: Path, since: int) -> None:
    """Rank 0 issued all_reduce #3, and waits for it only in the destruction."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            work = journal.begin(journal.collective(group, asynchronous=True), 200 * MS, q=3)
            journal.record(i=work, d=MS)
            destroy(journal, since * S)
        else:
            stand(journal, 3 * S, "/src/loader.py", 9, "load")
        beat(journal, 20)
    found = findings(tmp_path)
    if since > 10:
        assert found == []
        return
    assert only(found).kind == "missing_participant"
    assert ranks(tmp_path, only(found).culprits) == [1]
    assert "rank 0 has been waiting at train.py:10 for 19.0 s" in only(found).summary


def test_without_a_record_of_its_work_nobody_is_blamed(tmp_path: Path) -> None:
    """The program dropped the Work, so nobody knows of its end."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 0:
            destroy(journal, 1 * S)
        else:
            stand(journal, 3 * S, "/src/loader.py", 9, "load")
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.culprits) == ("no_progress", ())
    assert "in destroy_process_group at train.py:40 for 19.0 s" in found.summary


@pytest.mark.parametrize(("held_by", "told_s"), [("nobody", 70), ("a graph", 20)])
def test_all_that_destroy_their_groups_have_a_minute(
    tmp_path: Path, held_by: str, told_s: int
) -> None:
    """NCCL takes seconds for some dozen communicators; a graph that holds any keeps it for ever."""
    for until in (20, 70):
        folder = tmp_path / str(until)
        for journal, group in steps(folder, 2):
            if held_by == "a graph":
                call = journal.collective(group, op="graph_replay(all_reduce)", backend="graph")
                journal.run(call, 200 * MS, MS, q=1)
            destroy(journal, 1 * S)
            beat(journal, until)
        found = findings(folder)
        assert [f.kind for f in found] == ["no_progress"] * (until >= told_s)
        assert all(("reset()" in (f.hint or "")) == (held_by == "a graph") for f in found)


def test_a_device_says_itself_what_it_is_at(tmp_path: Path) -> None:
    """One finding, and not another one for the destruction."""
    for journal, group in steps(tmp_path, 2):
        call = journal.collective(group, backend="nccl", device="cuda")
        if journal.rank == 0:
            work = journal.begin(call, 200 * MS, q=1)
            journal.record(i=work, d=MS)
            destroy(journal, 1 * S)
        else:
            stand(journal, 3 * S, "/src/loader.py", 9, "load")
        beat(journal, 20)
    assert only(findings(tmp_path)).kind == "missing_participant"


@pytest.mark.parametrize(("lived_s", "kind"), [(0, "process_failed"), (5, "no_progress")])
def test_an_abort_just_after_enqueueing_is_its_own(tmp_path: Path, lived_s: int, kind: str) -> None:
    """A backend of devices ends an innocent process too, but over what has been late for long."""
    for journal, group in steps(tmp_path, 3, count=0):
        call = journal.collective(group, backend="nccl", device="cuda")
        for number in (1, 2):
            work = journal.begin(call, (199 + number) * MS, q=number)
            journal.record(i=work, d=MS // 10)
        beat(journal, lived_s if journal.rank == 1 else 20)
    found = findings(tmp_path, look=lambda p: Observation(p.rank != 1, -6 if p.rank == 1 else None))
    assert only(found).kind == kind


@pytest.mark.parametrize("first_is_over", [True, False])
def test_who_ends_before_its_device_is_through_is_missing_there(
    tmp_path: Path, *, first_is_over: bool
) -> None:
    """It had issued the same collectives as the others, and waited for none; the network may have
    been at fault before, so that is likely only.
    """
    for journal, group in steps(tmp_path, 3, count=0):
        call = journal.collective(group, backend="nccl", device="cuda")
        for number in (1, 2):
            work = journal.begin(call, (199 + number) * MS, q=number)
            journal.record(i=work, d=MS // 10)
            if number == 1 and (journal.rank != 2 or first_is_over):
                journal.record(c=work, d=MS)
        if journal.rank == 2:
            leave(journal, 210 * MS)
        else:
            beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert ranks(tmp_path, found.culprits) == [2]
    assert found.summary.startswith(
        "Rank 2 ended before all_reduce #2 of the default group was over on its device: ranks 0, 1"
    )


@pytest.mark.parametrize("parted", [True, False])
def test_who_has_parted_left_its_loop_earlier(tmp_path: Path, *, parted: bool) -> None:
    """It uploads its model meanwhile: no data loader, and no lock."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            if parted:
                journal.end(destroy(journal, 200 * MS), MS)
            stand(journal, 1 * S, "/src/train.py", 50, "upload")
        else:
            journal.begin(journal.collective(group), 200 * MS, q=3)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("missing_participant", [0])
    assert ("uneven inputs" in (found.hint or "")) is parted
