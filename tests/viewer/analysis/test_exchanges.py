"""Exchanges: who was expected, who came, when, and with which arguments."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from support.journals import MS, T0, UNIX_NS, Journal, training, workers


def exchanges(folder: Path) -> Exchanges:
    """The exchanges of the journals in a folder."""
    return Exchanges(load([str(folder)]))


def test_a_collective_has_expected_and_arrived_members(tmp_path: Path) -> None:
    """Rank 1 comes last, by a microsecond, and all end."""
    training(tmp_path, 2, 3)
    found = exchanges(tmp_path)
    rank = {p.index: p.rank for p in found.trace.processes}
    assert found.collectives.height == 3
    row = found.collectives.row(1, named=True)
    assert (row["seq"], row["expected"], row["arrived"], row["ended"]) == (2, 2, 2, 2)
    assert (rank[row["first_process"]], rank[row["last_process"]]) == (0, 1)
    assert row["first_ns"] == UNIX_NS + 2 * MS
    assert row["last_ns"] == UNIX_NS + 2 * MS + 1000
    assert row["end_ns"] == UNIX_NS + 2 * MS + 1000 + MS // 10
    assert (row["pending"], row["alike"], row["errors"]) == (False, True, 0)


def test_who_did_not_come_is_missing(tmp_path: Path) -> None:
    """Two of four ranks are in it; one went elsewhere, one left no journal."""
    journals = workers(tmp_path, 4)
    for journal in journals[:3]:
        call = journal.collective(journal.world())
        if journal.rank != 1:
            journal.begin(call, 5 * MS, q=1)
    found = exchanges(tmp_path)
    row = found.collectives.row(0, named=True)
    assert (row["expected"], row["arrived"], row["ended"], row["pending"]) == (4, 2, 0, True)
    assert found.participants([0])["group_rank"].to_list() in ([0, 2], [2, 0])


def test_unlike_arguments_are_flagged(tmp_path: Path) -> None:
    """One rank reduces with MAX."""
    for journal in workers(tmp_path, 2):
        group = journal.world()
        journal.run(journal.collective(group), MS, MS, q=1)
        journal.run(
            journal.collective(group, reduce_op="MAX" if journal.rank else "SUM"), 3 * MS, MS, q=2
        )
    assert exchanges(tmp_path).collectives["alike"].to_list() == [True, False]


def test_two_backends_of_a_group_count_for_themselves(tmp_path: Path) -> None:
    """Sequence number 1 on gloo and 1 on nccl are two exchanges."""
    for journal in workers(tmp_path, 2):
        group = journal.world()
        journal.run(journal.collective(group), MS, MS, q=1)
        journal.run(journal.collective(group, backend="nccl"), 3 * MS, MS, q=1)
    found = exchanges(tmp_path).collectives
    assert found.select("backend", "seq", "arrived").rows() == [("gloo", 1, 2), ("nccl", 1, 2)]


def test_a_call_that_raised_on_issue_is_in_no_exchange(tmp_path: Path) -> None:
    """It takes no number, although its begin had one; the next call gets it."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    refused = journal.begin(call, MS, q=1)
    journal.end(refused, 10, x=journal.string("ValueError: no"), f=1)
    journal.run(call, 2 * MS, MS, q=1)
    found = exchanges(tmp_path)
    assert found.collectives["arrived"].to_list() == [1]
    assert found.trace.operations["seq"].to_list() == [None, 1]
    assert found.trace.errors == ("ValueError: no",)


def message_pair(folder: Path) -> tuple[Journal, int, Journal, int]:
    """Two workers with a group each."""
    one, two = workers(folder, 2)
    return one, one.world(), two, two.world()


def test_sends_meet_receives_by_stream_and_number(tmp_path: Path) -> None:
    """Tags are streams of their own; the second send with tag 0 has no receive."""
    one, g1, two, g2 = message_pair(tmp_path)
    send0, send5 = one.message(g1, "send", 1), one.message(g1, "send", 1, tag=5)
    recv0, recv5 = two.message(g2, "recv", 0), two.message(g2, "recv", 0, tag=5)
    one.run(send0, MS, 10, q=1)
    one.run(send5, 2 * MS, 10, q=1)
    one.run(send0, 3 * MS, 10, q=2)
    two.run(recv5, 4 * MS, 10, q=1)
    two.run(recv0, 5 * MS, 10, q=1)
    found = exchanges(tmp_path)
    names = ["source", "destination", "tag", "seq", "send_number", "recv_number"]
    assert found.messages.select(names).rows() == [
        (0, 1, 0, 1, 1, 2),
        (0, 1, 5, 1, 2, 1),
        (0, 1, 0, 2, 3, None),
    ]


def test_backends_that_ignore_tags_have_one_stream(tmp_path: Path) -> None:
    """On NCCL a send with tag 1 meets a receive with tag 2."""
    one, g1, two, g2 = message_pair(tmp_path)
    one.run(one.message(g1, "send", 1, tag=1, backend="nccl"), MS, 10, q=1)
    two.run(two.message(g2, "recv", 0, tag=2, backend="nccl"), MS, 10, q=1)
    assert exchanges(tmp_path).messages.select("tag", "send_number", "recv_number").rows() == [
        (None, 1, 1)
    ]


def test_a_receive_from_any_source_counts_when_its_source_is_known(tmp_path: Path) -> None:
    """Until then it is no message."""
    one, g1, two, g2 = message_pair(tmp_path)
    one.run(one.message(g1, "send", 1), MS, 10, q=1)
    call = two.message(g2, "recv", None)
    known = two.begin(call, MS)
    two.end(known, 500, q=1, y=0)
    two.begin(call, 2 * MS)
    found = exchanges(tmp_path)
    assert found.messages.select("source", "send_number", "recv_number").rows() == [(0, 1, 1)]


def test_store_keys_tell_who_set_and_who_waits(tmp_path: Path) -> None:
    """Keys bear every prefix, and are keys of the server at which processes met."""
    one, two = workers(tmp_path, 2)
    store1 = one.prefix_store(one.tcp_store(29500, server=True), "p", "0/")
    store2 = two.prefix_store(two.tcp_store(29500), "p", "0/")
    one.run(one.call("store.set", kind="store", store=store1), MS, 100, k="a", n=3)
    two.run(two.call("store.get", kind="store", store=store2), 2 * MS, 100, k="a")
    waiting = two.call("store.wait", kind="store", store=store2)
    two.begin(waiting, 3 * MS, k=["a", "b"])
    found = exchanges(tmp_path)
    rank = {p.index: p.rank for p in found.trace.processes}
    names = ["key", "sets", "waits", "waiting", "failed"]
    assert found.keys.select(names).rows() == [("p/0//a", 1, 2, 1, 0), ("p/0//b", 0, 1, 1, 0)]
    assert rank[found.keys["setter"][0]] == 0
    assert found.keys["first_set_ns"].to_list() == [UNIX_NS + MS + 100, None]
    assert found.keys["place"].n_unique() == 1


def test_nothing_gives_empty_tables(tmp_path: Path) -> None:
    """Every table exists without any operation."""
    workers(tmp_path, 1)
    found = exchanges(tmp_path)
    for name in ("collectives", "messages", "key_events", "keys"):
        assert getattr(found, name).height == 0
    assert found.participants().height == 0


def test_operations_come_in_order_of_begin_over_processes(tmp_path: Path) -> None:
    """Processes of one boot compare by the monotonic clock, wherever their zero is."""
    early, late = (
        Journal(tmp_path, pid=pid, rank=pid, world_size=2, t0=T0 + shift, boot_id="boot")
        for pid, shift in ((0, 0), (1, 5 * MS))
    )
    for journal, t in ((early, 6 * MS), (late, 0)):
        journal.run(journal.collective(journal.world()), t, MS, q=1)
    operations = load([str(tmp_path)]).operations
    assert operations["begin_ns"].to_list() == [UNIX_NS + 5 * MS, UNIX_NS + 6 * MS]
