"""A first call of NCCL takes long while all are in it: a note, and a stall only after long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.diagnosis.report import healthy
from disttrace_viewer.findings.rules.communicator_creation import is_start
from support.journals import MS, Journal, workers
from support.scenes import S, beat, findings, only, ranks, steps

NCCL: dict[str, Any] = {"backends": {"cuda": "nccl"}}
ON_DEVICE: dict[str, Any] = {"backend": "nccl", "device": "cuda"}


def group_of(journal: Journal, size: int = 3, **keys: Any) -> int:
    """The default group, on NCCL with its time-out of ten minutes."""
    store = journal.prefix_store(journal.tcp_store(server=journal.rank == 0), "default_pg", "0/")
    return journal.group(store, size=size, **{**NCCL, "timeout": 600 * S, **keys})


def first_call(
    folder: Path, seconds: int, *, op: str = "all_reduce", missing: int | None = None
) -> None:
    """Ranks 0 to 2 in their first collective for so long; rank 2 has come a second later."""
    for journal in workers(folder, 3):
        call = journal.collective(group_of(journal), op, **ON_DEVICE)
        if journal.rank != missing:
            journal.begin(call, S * (1 + (journal.rank == 2)), q=1)
        beat(journal, seconds + 1)


@pytest.mark.parametrize("seconds", [12, 40, 120])
@pytest.mark.parametrize("op", ["all_reduce", "barrier"])
def test_all_members_are_in_the_first_call_of_a_group(
    tmp_path: Path, seconds: int, op: str
) -> None:
    """Nothing is wrong, and the sentence says what goes on."""
    first_call(tmp_path, seconds, op=op)
    found = only(findings(tmp_path))
    assert (found.severity, found.culprits, is_start(found)) == ("note", (), True)
    assert healthy([found])
    assert "NCCL makes the communicator of the default group" in found.summary
    assert "all members are in it" in found.summary
    assert f"{seconds - 2} s so far" in found.summary  # since the last one came


def test_after_a_quarter_of_the_time_out_it_is_a_stall(tmp_path: Path) -> None:
    """150 s by the default."""
    first_call(tmp_path, 155)
    found = only(findings(tmp_path))
    assert (found.kind, found.severity) == ("no_progress", "error")
    assert not is_start(found)


def test_the_groups_own_time_out_counts(tmp_path: Path) -> None:
    """Of two hours, thirty minutes are healthy; of a minute not even twenty seconds."""
    for name, timeout_s, seconds, severity in (
        ("long", 7200, 1700, "note"),
        ("short", 60, 20, "error"),
    ):
        for journal in workers(tmp_path / name, 2):
            group = group_of(journal, 2, timeout=timeout_s * S)
            journal.begin(journal.collective(group, **ON_DEVICE), S, q=1)
            beat(journal, seconds)
        assert only(findings(tmp_path / name)).severity == severity


def test_who_is_missing_is_told_at_the_limit(tmp_path: Path) -> None:
    """A member that has not entered the call is no part of a creation."""
    first_call(tmp_path, 12, missing=1)
    found = only(findings(tmp_path))
    assert (found.kind, found.severity) == ("missing_participant", "error")
    assert ranks(tmp_path, found.culprits) == [1]


def test_the_time_begins_when_the_last_one_has_come(tmp_path: Path) -> None:
    """It came 100 s late; the communicator is made since."""
    for journal in workers(tmp_path, 2):
        call = journal.collective(group_of(journal, 2), **ON_DEVICE)
        journal.begin(call, S if journal.rank == 0 else 100 * S, q=1)
        beat(journal, 200)
    found = only(findings(tmp_path))
    assert (found.severity, "100 s so far" in found.summary) == ("note", True)


def test_some_have_come_out_of_the_call_before_the_others(tmp_path: Path) -> None:
    """Their devices wait for those that are still in it."""
    for journal in workers(tmp_path, 3):
        number = journal.begin(journal.collective(group_of(journal), **ON_DEVICE), S, q=1)
        if journal.rank == 0:
            journal.record(i=number, d=2 * S)
        beat(journal, 40)
    assert only(findings(tmp_path)).severity == "note"


def test_all_have_come_out_of_the_call(tmp_path: Path) -> None:
    """Then the communicator is there, and what hangs is the device."""
    for journal in workers(tmp_path, 2):
        number = journal.begin(journal.collective(group_of(journal, 2), **ON_DEVICE), S, q=1)
        journal.record(i=number, d=2 * S)
        beat(journal, 40)
    assert only(findings(tmp_path)).severity == "error"


def test_a_first_exchange_of_a_pair(tmp_path: Path) -> None:
    """NCCL makes a communicator for each pair."""
    for journal in workers(tmp_path, 2):
        group = group_of(journal, 2)
        journal.run(journal.collective(group, **ON_DEVICE), S, MS, q=1)
        op, peer = ("send", 1) if journal.rank == 0 else ("recv", 0)
        journal.begin(journal.message(group, op, peer, **ON_DEVICE), 2 * S, q=1)
        beat(journal, 40)
    found = only(findings(tmp_path))
    assert found.severity == "note"
    assert "the communicator of the pair of ranks 0, 1: 38 s so far, both are in it" in (
        found.summary
    )


@pytest.mark.parametrize(("op", "before", "severity"), [
    ("all_gather", False, "note"),
    ("all_gather", True, "error"),
    ("barrier", False, "error"),
])  # fmt: skip
def test_a_first_operation_of_its_sort(
    tmp_path: Path, op: str, before: bool, severity: str
) -> None:
    """Kernels are loaded when they are first launched; a barrier's call waits for the device."""
    for journal in workers(tmp_path, 2):
        group = group_of(journal, 2)
        journal.run(journal.collective(group, **ON_DEVICE), S, MS, q=1)
        call = journal.collective(group, op, **ON_DEVICE)
        if before:
            journal.run(call, 2 * S, MS, q=2)
        journal.begin(call, 3 * S, q=2 + before)
        beat(journal, 40)
    assert only(findings(tmp_path)).severity == severity


@pytest.mark.parametrize("op", ["init_process_group", "new_group", "split_group"])
@pytest.mark.parametrize("everybody", [True, False])
def test_calls_that_connect_the_members_themselves(
    tmp_path: Path, op: str, everybody: bool
) -> None:
    """A group that is bound to a device is connected when it is made."""
    for journal in workers(tmp_path, 2):
        args: dict[str, Any] = {"device_id": f"cuda:{journal.rank}"}
        if op == "init_process_group":
            args["backend"] = "nccl"
        else:
            group_of(journal, 2, ranks=[0, 1], default=True)
        if op == "new_group":
            args["ranks"] = [0, 1]
        if everybody or journal.rank == 0:
            journal.begin(journal.call(op, kind="composed", args=args, origin="python"), S)
        beat(journal, 40)
    found = findings(tmp_path)
    if everybody:
        assert (only(found).severity, is_start(found[0])) == ("note", True)
        assert "NCCL makes the communicator of the" in found[0].summary
    else:
        assert [f.severity for f in found if f.severity == "error"] != []


def test_on_gloo_nothing_is_made_in_a_first_call(tmp_path: Path) -> None:
    """Its members are connected when the group is made."""
    for journal, group in steps(tmp_path, 2, 0):
        journal.begin(journal.collective(group), S, q=1)
        beat(journal, 40)
    assert only(findings(tmp_path)).severity == "error"


def test_whoever_waits_for_them_is_no_fault_either(tmp_path: Path) -> None:
    """Ranks 0 and 1 make the communicator of their own group, and rank 2 waits for them."""
    for journal in workers(tmp_path, 3):
        world = group_of(journal)
        if journal.rank == 2:
            number = journal.begin(journal.collective(world, **ON_DEVICE), S, q=1)
            journal.record(i=number, d=MS)
        else:
            own = journal.group(
                journal.prefix_store(1, "own"), name="own", ranks=[0, 1], size=2, **NCCL
            )
            journal.begin(journal.collective(own, **ON_DEVICE), S, q=1)
        beat(journal, 60)
    found = only(findings(tmp_path))
    assert (found.severity, is_start(found)) == ("note", True)
    assert any("Rank 2" in text for text in found.consequences)


def test_somebody_missing_elsewhere_is_told(tmp_path: Path) -> None:
    """A creation hides nothing that has nothing to do with it."""
    for journal in workers(tmp_path, 4):
        pair = [0, 1] if (journal.rank or 0) < 2 else [2, 3]
        group = journal.group(
            journal.prefix_store(journal.tcp_store(server=journal.rank == 0), f"{pair}"),
            name=f"{pair}", ranks=pair, size=2, rank=(journal.rank or 0) % 2, default=False, **NCCL,
        )  # fmt: skip
        if journal.rank != 3:
            journal.begin(journal.collective(group, **ON_DEVICE), S, q=1)
        beat(journal, 40)
    found = findings(tmp_path)
    assert [(f.kind, f.severity) for f in found] == [
        ("missing_participant", "error"),
        ("no_progress", "note"),
    ]
    assert ranks(tmp_path, found[0].culprits) == [3]


def test_a_member_that_stopped_running_is_named(tmp_path: Path) -> None:
    """All have come, and one of them has frozen since."""
    for journal in workers(tmp_path, 2):
        journal.begin(journal.collective(group_of(journal, 2), **ON_DEVICE), S, q=1)
        beat(journal, 60 if journal.rank == 0 else 4)
    found = only(findings(tmp_path))
    assert found.severity == "error"
    assert ranks(tmp_path, found.culprits) == [1]
