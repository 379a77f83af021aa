"""Faults of messages, keys and cycles over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.journals import MS, Journal, S, workers
from support.scenes import alive, findings, finds, only, ranks, steps, stuck, verdict


def test_a_ring_of_receives_is_one_deadlock_without_culprit(tmp_path: Path) -> None:
    """Each rank receives from the one before it; the cycle is told edge by edge."""
    stuck(tmp_path, "recv 2 7", "recv 0 7", "recv 1 7")
    case, found = verdict(tmp_path)
    finding = only(found)
    rank_of = {p.index: p.rank for p in case.evidence.trace.processes}
    assert (finding.kind, finding.culprits, finding.certainty) == ("deadlock", (), "certain")
    edges = {(rank_of[a], word, rank_of[b]) for a, word, b in finding.cycle or ()}
    assert edges == {(0, "waits for", 2), (2, "waits for", 1), (1, "waits for", 0)}
    assert "recv from rank 2 with tag 7, 4 elements of float32 (train.py:20)" in finding.summary


WAITING: dict[str, tuple[list[str], str, list[int], dict[str, Any]]] = {
    "a cycle is certain, so two seconds do": (
        ["recv 1", "recv 0"], "deadlock", [], {"until_s": 4},
    ),
    "the sender is outside, at a line of its own": (
        ["recv 1", "at train.py:99 save"], "unmatched_recv", [1],
        {"certainty": "certain", "says": "rank 1 never sends; it is at train.py:99 in save"},
    ),
    "nobody saw whether the sender still lived": (
        ["recv 1", "silent"], "unmatched_recv", [1], {"certainty": "likely"},
    ),
    "the receiver has ended": (["send 1", "left"], "unmatched_send", [1], {}),
    "other tags are named, and blame nobody: a deadlock would hide what is wrong": (
        ["send 1", "recv 0 1"], "unmatched_send", [], {"says": ("with tag 0", "with tag 1")},
    ),
    "a receive from any source waits for any sender": (
        ["recv any", "recv 2", "at train.py:99 save"], "unmatched_recv", [2],
        {"waiting": [1], "consequences": ("Rank 0 waits in recv from any rank (train.py:20).",)},
    ),
    "another one has ended well": (
        ["recv any", "left", "recv 3", "at train.py:99 save"], "unmatched_recv", [3],
        {"waiting": [2], "consequences": ("Rank 0 waits in recv from any rank (train.py:20).",)},
    ),
    "a server forgot one reply to 2; rank 1 is through": (
        ["recv any", "left", "recv 0"], "deadlock", [],
        {"says": "Ranks 0, 2 wait for one another: rank 0 is in recv from any rank, 4 elements of"
         " float32 (train.py:20) and waits for rank 2 (rank 1 has ended)"},
    ),
    "on no backend a send of the tag that any source is asked for waits for long": (
        ["recv any 5", "left", "send 0 5"], "deadlock", [],
        {"says": "rank 0 is in recv from any rank with tag 5"},
    ),
    "a sender with another tag than any source is asked for": (
        ["recv any 5", "left", "send 0 6"], "unmatched_recv", [],
        {"says": ("Rank 2 sends to rank 0 with tag 6", "which receives with tag 5")},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("acts", "kind", "culprits", "facts"), WAITING.values(), ids=WAITING)
def test_who_waits_in_a_message(
    tmp_path: Path, acts: list[str], kind: str, culprits: list[int], facts: dict[str, Any]
) -> None:
    facts = dict(facts)
    stuck(tmp_path, *acts, until_s=facts.pop("until_s", 20))
    found = finds(tmp_path, kind, culprits, **facts)
    assert ["still lived" in told for told in found.settles] == [True] * ("silent" in acts)


def test_a_helper_of_a_cycle_is_told_by_its_callers(tmp_path: Path) -> None:
    """Its line is that of the step before too, which others called it for."""
    for journal, group in alive(steps(tmp_path, 2)):
        peer = 1 - (journal.rank or 0)
        lines = [journal.stack(("ring.py", 5, "take"), ("train.py", n, "main")) for n in (30, 40)]
        before, here = (journal.message(group, "recv", peer, stack=line) for line in lines)
        journal.run(before, t=150 * MS, d=MS, q=1)
        journal.begin(here, 200 * MS, q=2)
    assert "(ring.py:5 <- train.py:40) and waits for" in finds(tmp_path, "deadlock", []).summary


@pytest.mark.parametrize("hanging_on", [0, 2])
def test_a_cycle_of_which_one_waits_for_another_cycle_too(tmp_path: Path, hanging_on: int) -> None:
    """Two pairs; a member of one is in a collective of all, which needs the other pair as well."""
    acts = ["recv 1", "recv 0", "recv 3", "recv 2"]
    acts[hanging_on] = "all_reduce"
    stuck(tmp_path, *acts)
    found = findings(tmp_path)
    assert [one.kind for one in found] == ["deadlock", "deadlock"]
    told = [ranks(tmp_path, one.waiting) for one in found]
    assert told == [[hanging_on, hanging_on + 1], [2 - hanging_on, 3 - hanging_on]]


def test_a_ring_of_many_is_told_in_a_few_words(tmp_path: Path) -> None:
    """All of its edges are in the report, the first ones in the sentence."""
    stuck(tmp_path, *(f"recv {(rank - 1) % 12}" for rank in range(12)))
    found = finds(tmp_path, "deadlock", says="Ranks 0-11 wait for one another: ")
    assert len(found.cycle or ()) == 12
    assert found.summary.count(" and waits for ") == 8
    assert found.summary.endswith(" and 4 more.")


def test_groups_in_opposite_order_are_a_deadlock(tmp_path: Path) -> None:
    """Rank 0 is in group a and rank 1 in group b, of the same two ranks; rank 2 only follows."""
    for journal, group in alive(steps(tmp_path, 3)):
        a, b = (journal.group(name=name, ranks=[0, 1], size=2, default=False) for name in "ab")
        mine = {0: a, 1: b, 2: group}[journal.rank or 0]
        journal.begin(journal.collective(mine), 200 * MS, q=3 if mine == group else 1)
    found = finds(tmp_path, "deadlock", [], says="group [0, 1] named 'a'")
    assert found.consequences == (
        "Rank 2 waits in all_reduce #3 of the default group (train.py:10).",
    )


def test_a_batch_that_lacks_one_message_is_a_deadlock(tmp_path: Path) -> None:
    """Halos: rank 2 exchanges with 1 only, which waits for 0, and that for 2."""
    for journal, group in alive(steps(tmp_path, 3)):
        mine = journal.rank or 0
        if mine:
            peer = 3 - mine
            for op in ("send", "recv"):
                journal.run(journal.message(group, op, peer), t=230 * MS, d=MS, q=1)
        to, at = {0: (2, 200), 1: (0, 240), 2: (1, 250)}[mine]
        journal.begin(journal.message(group, "send", to), at * MS, q=2 if mine == 2 else 1)
    found = finds(tmp_path, "deadlock", [])
    told = "(batch_isend_irecv); or find the message that one of them left out"
    assert told in (found.hint or "")


def test_a_server_that_receives_once_more_than_is_sent(tmp_path: Path) -> None:
    """Rank 2 had fewer batches; the server waits for any, and has not come to the barrier."""
    for journal, group in alive(steps(tmp_path, 3)):
        mine = journal.rank or 0
        sent = {1: 2, 2: 1}
        if mine == 0:
            for peer, count in sent.items():
                for number in range(1, count + 1):
                    call = journal.message(group, "recv", peer)
                    journal.run(call, t=(110 + 10 * peer + number) * MS, d=MS // 2, q=number)
            journal.begin(journal.message(group, "recv", None), 200 * MS)
        else:
            for number in range(1, sent[mine] + 1):
                call = journal.message(group, "send", 0)
                journal.run(call, t=(110 + 10 * mine + number) * MS, d=MS // 2, q=number)
            journal.begin(journal.collective(group, "barrier"), 200 * MS, q=3)
    found = finds(tmp_path, "deadlock", [])
    assert found.summary.startswith("Ranks 0-2 wait for one another: ")
    assert "and waits for any of ranks 1, 2, which all wait; rank 1 is in barrier" in found.summary
    assert "rank 0 is one call short in the default group" in (found.hint or "").lower()


@pytest.mark.parametrize(
    ("how", "others"), [("failed", {"process_failed"}), ("at train.py:99 save", set())]
)
def test_who_failed_or_may_send_yet_closes_no_cycle(
    tmp_path: Path, how: str, others: set[str]
) -> None:
    """A server forgot one reply to 2; rank 1 is not through."""
    stuck(tmp_path, "recv any", how, "recv 0")
    assert {found.kind for found in findings(tmp_path)} - {"unmatched_recv"} == others


def test_two_ends_of_another_size_are_told_although_both_returned(tmp_path: Path) -> None:
    """Four elements are sent where eight are received."""
    for journal, group in steps(tmp_path, 2):
        rank = journal.rank or 0
        keys = {"shapes": [[8]], "bytes": 32} if rank else {}
        call = journal.message(group, "recv" if rank else "send", 1 - rank, **keys)
        journal.run(call, t=200 * MS, d=MS, q=1)
        journal.leave(300 * MS)
    found = finds(tmp_path, "size_mismatch", [])
    assert "sends 4 elements of float32 (train.py:20) where rank 1 receives 8" in found.summary


def test_on_nccl_a_ring_that_receives_first(tmp_path: Path) -> None:
    """Each has issued its send too, but the device has not come to it: a deadlock."""
    for journal, group in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        for place, (op, peer) in enumerate((("recv", (rank - 1) % 3), ("send", (rank + 1) % 3))):
            call = journal.message(group, op, peer, backend="nccl", device="cuda")
            journal.issue(call, 200 * MS + place * MS, q=1)
    found = finds(tmp_path, "deadlock", [])
    assert found.cycle is not None
    assert len(found.cycle) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_receive_only_asked_about_never_ends_on_gloo(tmp_path: Path, *, waits: bool) -> None:
    """Its message was sent; nothing is wrong with the network as long as nobody waits for it."""
    for journal, group in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            call = journal.message(group, "recv", 1, **{"async": True})
            number = journal.begin(call, 200 * MS, q=1)
            journal.record(i=number, d=MS)
            journal.record(o=number, d=2 * MS, k="is_completed")
            if waits:
                journal.record(w=number, d=2 * MS)
            journal.stand(3 * S, "/src/train.py", 99, "poll")
        else:
            journal.run(journal.message(group, "send", 0), t=210 * MS, d=MS, q=1)
    found = finds(tmp_path, "no_progress")
    assert ("is_completed()" in (found.hint or "")) is not waits


ON_DEVICE: dict[str, Any] = {"backend": "nccl", "device": "cuda"}


def batch(journal: Journal, group: int, *messages: tuple[str, int], number: int = 1) -> None:
    """Messages of one ``batch_isend_irecv``, the first one issued at one second."""
    t = S + 10 * number * MS
    around = journal.begin(journal.call("coalescing_manager", kind="composed", origin="python"), t)
    for op, peer in messages:
        call = journal.message(group, op, peer, **ON_DEVICE, **{"async": True})
        journal.issue(call, t + MS, q=number, p=around, d=MS)
    journal.end(around, 5 * MS)


def ring(
    folder: Path, size: int, *, away: int | None = None, behind: int | None = None,
    batches: int = 1, until_s: int | None = None,
) -> None:  # fmt: skip
    """Each sends to the next one and receives from the one before, in one batch, or in several;
    they end at a time, or live on.

    ``away`` does not come; the device of ``behind`` is at a collective that nobody else is in.
    """
    for journal in workers(folder, size):
        group = journal.group(
            journal.prefix_store(journal.tcp_store(server=journal.rank == 0), "default_pg", "0/"),
            size=size, backends={"cuda": "nccl"},
        )  # fmt: skip
        rank = journal.rank or 0
        if rank == behind:
            journal.issue(journal.collective(group, **ON_DEVICE), MS, q=1, d=MS)
        for number in range(1, batches + 1) if rank != away else ():
            both = (("send", (rank + 1) % size), ("recv", (rank - 1) % size))
            batch(journal, group, *both, number=number)
        journal.beat(until_s or 40)
        if until_s:
            journal.leave(until_s * S)


def test_who_ended_well_was_held_by_no_device(tmp_path: Path) -> None:
    """Nobody looked again before they ended, so no completion is on record."""
    ring(tmp_path, 3, until_s=4)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("batches", [1, 3])
def test_a_ring_that_hangs_is_no_cycle(tmp_path: Path, batches: int) -> None:
    """Each send has its receive at another device's front; what returned may be one of several."""
    ring(tmp_path, 3, batches=batches)
    found = findings(tmp_path)
    assert {f.kind for f in found} == {"no_progress"}
    assert [f.culprits for f in found] == [()] * len(found)


def test_whoever_is_not_there_is_told_and_nobody_else(tmp_path: Path) -> None:
    """Rank 0's send has its other end; it waits in the same batch for rank 3."""
    ring(tmp_path, 4, away=3)
    found = findings(tmp_path)
    blamed = {rank for f in found for rank in ranks(tmp_path, f.culprits)}
    assert blamed == {3}
    assert found[0].kind in ("unmatched_send", "unmatched_recv")
    # Rank 1's batch stands behind a collective that only it has issued.
    ring(tmp_path / "older", 3, behind=1)
    found = findings(tmp_path / "older")
    assert found[0].kind in ("deadlock", "missing_participant")
    assert "no_progress" not in {f.kind for f in found if f.severity == "error"}
    assert only(found) is found[0]
