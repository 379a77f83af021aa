"""Exchanges: who was expected, who came, when, and with which arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.exchanges import Exchanges, align
from disttrace_viewer.merge.clock import Bounds, _tree, fit
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.process import Clock
from support.journals import MS, T0, UNIX_NS, Journal, workers
from support.scenes import steps


def exchanges(folder: Path) -> Exchanges:
    return Exchanges(load([str(folder)]))


def test_two_backends_of_a_group_count_for_themselves(tmp_path: Path) -> None:
    """Sequence number 1 on gloo and 1 on nccl are two exchanges."""
    for journal, group in steps(tmp_path, 2, count=0):
        journal.run(journal.collective(group), MS, MS, q=1)
        journal.run(journal.collective(group, backend="nccl"), 3 * MS, MS, q=1)
    found = exchanges(tmp_path).collectives
    assert found.select("backend", "seq", "arrived").rows() == [("gloo", 1, 2), ("nccl", 1, 2)]


def test_a_call_that_raised_on_issue_is_in_no_exchange(tmp_path: Path) -> None:
    """It takes no number, although its begin had one; the next call gets it."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    journal.raises(call, MS, 10, "ValueError: no", q=1, refused=True)
    journal.run(call, 2 * MS, MS, q=1)
    found = exchanges(tmp_path)
    assert found.collectives["arrived"].to_list() == [1]
    assert found.trace.operations["seq"].to_list() == [None, 1]
    assert found.trace.errors == ("ValueError: no",)


def test_sends_meet_receives_by_stream_and_number(tmp_path: Path) -> None:
    """Tags are streams of their own; the second send with tag 0 has no receive."""
    (one, g1), (two, g2) = steps(tmp_path, 2, count=0)
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
        (0, 1, 0, 1, 1, 2), (0, 1, 5, 1, 2, 1), (0, 1, 0, 2, 3, None),
    ]  # fmt: skip


def test_backends_that_ignore_tags_have_one_stream(tmp_path: Path) -> None:
    """On NCCL a send with tag 1 meets a receive with tag 2."""
    (one, g1), (two, g2) = steps(tmp_path, 2, count=0)
    one.run(one.message(g1, "send", 1, tag=1, backend="nccl"), MS, 10, q=1)
    two.run(two.message(g2, "recv", 0, tag=2, backend="nccl"), MS, 10, q=1)
    found = exchanges(tmp_path).messages
    assert found.select("tag", "send_number", "recv_number").rows() == [(None, 1, 1)]


def test_a_receive_from_any_source_counts_when_its_source_is_known(tmp_path: Path) -> None:
    (one, g1), (two, g2) = steps(tmp_path, 2, count=0)
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
    parts = [("set", "p/0//a"), ("wait", "p/0//a"), ("wait", "p/0//a"), ("wait", "p/0//b")]
    assert found.key_events.select("part", "key").rows() == parts
    assert rank[found.keys["setter"][0]] == 0
    assert found.keys["first_set_ns"].to_list() == [UNIX_NS + MS + 100, None]
    assert found.keys["place"].n_unique() == 1


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


S = 1000 * MS
OFFSET, PPM = 3700 * MS, 40


def two_hosts(folder: Path, *, offset: int = OFFSET, ppm: float = PPM) -> None:
    """Ping-pong and all_reduces for a minute; the clock of rank 1's host is off and drifts."""
    journals = [
        Journal(folder, pid=1 + rank, rank=rank, world_size=2, host=host, boot_id=host,
                offset_ns=UNIX_NS - T0 + rank * offset, store_host="10.0.0.1")
        for rank, host in enumerate("ab")
    ]  # fmt: skip
    groups = [journal.world() for journal in journals]
    calls = [journal.collective(group) for journal, group in zip(journals, groups, strict=True)]
    ends = [
        journal.message(group, "recv" if rank else "send", 1 - rank)
        for rank, (journal, group) in enumerate(zip(journals, groups, strict=True))
    ]

    def at(rank: int, t: int) -> int:
        return round(t * (1 + ppm * 1e-6)) if rank else t

    for number in range(1, 121):
        for rank, journal in enumerate(journals):
            # The receiver is there first; the message takes 0.2 ms.
            begin, end = number * S // 2 + (0 if rank else MS), number * S // 2 + MS + MS // 5
            journal.run(ends[rank], at(rank, begin), at(rank, end) - at(rank, begin), q=number)
            begin = number * S // 2 + 10 * MS + rank * MS // 10
            end = number * S // 2 + 10 * MS + 3 * MS // 10
            journal.run(calls[rank], at(rank, begin), at(rank, end) - at(rank, begin), q=number)
    for rank, journal in enumerate(journals):
        journal.define("exit", t=at(rank, 61 * S), how="normal", code=0)


def clocks(trace: JobTrace) -> dict[str, Clock]:
    return {p.host: trace.clocks[p.clock] for p in trace.processes}


@pytest.mark.parametrize(("offset", "ppm"), [(OFFSET, PPM), (-5000 * MS, -80.0), (0, 0.0)])
def test_offset_and_drift_are_found(tmp_path: Path, offset: int, ppm: float) -> None:
    """To within the error that is stated, which is less than an exchange takes."""
    two_hosts(tmp_path, offset=offset, ppm=ppm)
    loaded = load([str(tmp_path)])
    trace = align(loaded)
    found, before = clocks(trace), clocks(loaded)["b"]
    reference, clock = found["a"], found["b"]
    assert reference.offset_ns == UNIX_NS - T0
    assert clock.drift == pytest.approx(ppm * 1e-6, abs=5e-6)
    assert 0 < clock.error_ns < MS // 2
    begins = {
        (trace.processes[p].rank, seq): begin
        for p, seq, begin in Exchanges(trace)
        .participants()
        .select("process", "seq", "begin_ns")
        .iter_rows()
    }
    for number in (1, 60, 120):
        late = begins[1, number] - begins[0, number]
        assert late == pytest.approx(MS // 10, abs=clock.error_ns + 20_000)
    assert before.offset_ns == UNIX_NS - T0 + offset


def test_one_clock_needs_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, pid=1, rank=0, world_size=1)
    journal.run(journal.collective(journal.world()), MS, MS, q=1)
    trace = load([str(tmp_path)])
    assert align(trace) is trace


def test_hosts_that_exchanged_nothing_are_uncertain(tmp_path: Path) -> None:
    """Their wall clocks may be apart by tens of milliseconds."""
    for rank, host in enumerate("ab"):
        Journal(tmp_path, pid=rank + 1, rank=rank, world_size=2, host=host, boot_id=host)
    errors = [clock.error_ns for clock in align(load([str(tmp_path)])).clocks]
    assert sorted(errors) == [100, 50 * MS]


def test_without_need_there_is_no_drift() -> None:
    """Bounds that a constant offset meets too give no drift, although it would widen the band."""
    bounds = Bounds(0, ((0.0, 10.0), (1e9, 14.0)), ((0.0, 0.0), (1e9, 4.0)))
    line = fit(bounds)
    assert (line.drift, line.offset_ns, line.error_ns) == (0.0, 7.0, 3.0)


def chain(folder: Path, hosts: int) -> None:
    """Each host's clock is off by its number in seconds; only neighbours have a group."""
    for rank in range(hosts):
        journal = Journal(folder, pid=1 + rank, rank=rank, world_size=hosts, host=f"h{rank}",
                          boot_id=f"h{rank}", offset_ns=UNIX_NS - T0 + rank * S)  # fmt: skip
        base = journal.tcp_store(host="10.0.0.1", server=rank == 0)
        for low in (rank - 1, rank):
            if not 0 <= low < hosts - 1:
                continue
            store = journal.prefix_store(base, f"pair{low}/")
            group = journal.group(store, name=f"pair{low}", ranks=[low, low + 1], size=2,
                                  rank=rank - low, default=False)  # fmt: skip
            call = journal.collective(group)
            for number in range(1, 6):
                at = number * S + low * 100 * MS
                journal.run(call, at + (rank - low) * MS, (3 - (rank - low)) * MS, q=number)


def test_hosts_are_placed_by_others_that_are_placed(tmp_path: Path) -> None:
    """Clocks form a tree: the last of a chain met the first in nothing."""
    chain(tmp_path, 4)
    found = clocks(align(load([str(tmp_path)])))
    for rank in range(4):
        assert found[f"h{rank}"].offset_ns == pytest.approx(UNIX_NS - T0, abs=rank * 3 * MS), rank


def test_the_largest_group_within_reach_places_its_members() -> None:
    """Outwards from the root; a pair that bounds nothing is gone round by another."""
    joined = [{1, 2}, {0, 1, 2}, {2, 3}, {5, 6}]
    assert _tree(0, joined, set()) == [(0, 1), (0, 2), (2, 3)]
    assert _tree(0, joined, {(0, 2)}) == [(0, 1), (1, 2), (2, 3)]


def test_a_few_exchanges_give_no_drift(tmp_path: Path) -> None:
    """However far clocks are apart; by all exchanges, and by the newest, which states keep."""
    steps(tmp_path, 2, 3, apart_ns=20 * S)
    for found in (align(load([str(tmp_path)])).clocks, of_journals([str(tmp_path)]).survey.clocks):
        assert [clock.drift for clock in found] == [0.0, 0.0]
        assert found[0].offset_ns == pytest.approx(found[1].offset_ns, abs=MS)
