"""Addresses in echoes are told as ranks, and only where it is certain whose they are."""

from __future__ import annotations

from pathlib import Path

from support.journals import MS, Journal
from support.scenes import PEER_GONE, all_gone, fail, findings, only, steps

DIED = "the loss is not a number"


def echo(journal: Journal, call: int, text: str = PEER_GONE) -> None:
    """An operation that ends in an echo which then ends the process."""
    number = journal.begin(call, 200 * MS, q=3)
    journal.end(number, 30 * MS, x=journal.string(text))
    fail(journal, 240 * MS, "RuntimeError", text.partition(": ")[2])


def test_in_a_group_of_two_the_address_is_that_of_the_other(tmp_path: Path) -> None:
    """Rank 1 fails; rank 0 reports the connection of a mesh that has only this one."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 1:
            fail(journal, 210 * MS, "ValueError", DIED)
        else:
            echo(journal, journal.collective(group))
    found = only(findings(tmp_path, look=all_gone))
    assert (
        "Rank 0 failed with RuntimeError: Connection closed by peer [127.0.0.1]:4711 (rank 1)."
        in found.consequences
    )


def test_in_a_larger_group_the_text_stays_as_it_is(tmp_path: Path) -> None:
    """The address may be that of any other rank."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            fail(journal, 210 * MS, "ValueError", DIED)
        else:
            echo(journal, journal.collective(group))
    found = only(findings(tmp_path, look=all_gone))
    assert (
        "Ranks 0, 2 failed with RuntimeError: Connection closed by peer [127.0.0.1]:4711."
        in found.consequences
    )


def test_the_address_in_a_message_is_that_of_its_peer(tmp_path: Path) -> None:
    """Rank 0 receives from rank 1 of three; from any source nothing would be certain."""
    for journal, group in steps(tmp_path, 3):
        if journal.rank == 1:
            fail(journal, 210 * MS, "ValueError", DIED)
        else:
            echo(journal, journal.message(group, "recv", None if journal.rank else 1))
    found = only(findings(tmp_path, look=all_gone))
    text = "failed with RuntimeError: Connection closed by peer [127.0.0.1]:4711"
    assert f"Rank 0 {text} (rank 1)." in found.consequences
    assert f"Rank 2 {text}." in found.consequences


def test_those_that_lost_different_ranks_are_told_apart(tmp_path: Path) -> None:
    """Rank 3 fails; 1 and 2 lose it in groups of two, and 0 loses rank 2 after that. The ports
    are of each connection.
    """
    groups = {0: [0, 2], 1: [1, 3], 2: [2, 3], 3: [1, 3]}
    for journal, _ in steps(tmp_path, 4):
        rank = journal.rank or 0
        if rank == 3:
            fail(journal, 210 * MS, "ValueError", DIED)
            continue
        store = journal.prefix_store(journal.tcp_store(), "app")
        pair = journal.group(
            store, size=2, ranks=groups[rank], rank=groups[rank].index(rank), id=f"{groups[rank]}",
            name=f"{groups[rank]}",
        )  # fmt: skip
        text = f"RuntimeError: Connection closed by peer [127.0.0.1]:{4711 + rank}"
        number = journal.begin(journal.collective(pair), 200 * MS, q=1)
        journal.end(number, 30 * MS + (rank == 0) * 10 * MS, x=journal.string(text))
        fail(journal, 240 * MS + (rank == 0) * 10 * MS, "RuntimeError", text.partition(": ")[2])
    told = [
        one for f in findings(tmp_path, look=all_gone) for one in f.consequences if "peer" in one
    ]
    text = "failed with RuntimeError: Connection closed by peer [127.0.0.1]"
    assert sorted(told) == [
        f"Rank 0 {text}:4711 (rank 2).",
        f"Ranks 1, 2 {text}:4712 (rank 3).",
    ]


def test_the_address_of_a_store_is_that_of_its_server(tmp_path: Path) -> None:
    """c10d writes names for numbers: both are this host."""
    gone = (
        "DistNetworkError: remote=[localhost]:{port}: failed to recv, got 0 bytes (10.0.0.1:29500)"
    )
    for journal, _ in steps(tmp_path, 3):
        if journal.rank == 0:
            fail(journal, 210 * MS, "ValueError", DIED)
            continue
        store = journal.tcp_store(29500, address="127.0.0.1:29500")
        port = 29500 if journal.rank == 1 else 29501
        keys = {"kind": "store", "store": store, "origin": "python"}
        number = journal.begin(journal.call("store.get", **keys), 200 * MS, k="k")
        journal.end(number, 30 * MS, x=journal.string(gone.format(port=port)))
        fail(journal, 240 * MS, "DistNetworkError", gone.format(port=port).partition(": ")[2])
    found = only(findings(tmp_path, look=all_gone))
    told = [text for text in found.consequences if "remote" in text]
    assert len(told) == 2
    assert "remote=[localhost]:29500 (the store of rank 0): failed" in told[0]
    assert told[0].count("the store of") == 1
    assert "remote=[localhost]:29501: failed" in told[1]
