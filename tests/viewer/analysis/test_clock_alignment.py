"""Clocks of two hosts: offset and drift from the exchanges themselves, with the error stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.exchanges import Exchanges, align
from disttrace_viewer.merge.clock import Bounds, _tree, fit
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Clock
from support.journals import MS, T0, UNIX_NS, Journal
from support.scenes import steps

S = 1000 * MS
OFFSET, PPM = 3700 * MS, 40


def _world(journal: Journal) -> int:
    """The default group over an address that hosts can share."""
    base = journal.tcp_store(host="10.0.0.1", server=journal.rank == 0)
    return journal.group(journal.prefix_store(base, "default_pg", "0/"))


def two_hosts(folder: Path, *, offset: int = OFFSET, ppm: float = PPM) -> None:
    """Ping-pong and all_reduces for a minute; the clock of rank 1's host is off and drifts."""
    journals = [
        Journal(folder, pid=1 + rank, rank=rank, world_size=2, host=host, boot_id=host,
                offset_ns=UNIX_NS - T0 + rank * offset)
        for rank, host in enumerate("ab")
    ]  # fmt: skip
    groups = [_world(journal) for journal in journals]
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


def clocks(trace: Trace) -> dict[str, Clock]:
    """By host."""
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


def test_nothing_is_received_before_it_was_sent(tmp_path: Path) -> None:
    """Which it is before the clocks are set right."""
    two_hosts(tmp_path, offset=-OFFSET)
    loaded = load([str(tmp_path)])
    assert not _causal(Exchanges(loaded))
    assert _causal(Exchanges(align(loaded)))


def _causal(exchanges: Exchanges) -> bool:
    messages = exchanges.messages
    return bool((messages["recv_end_ns"] >= messages["send_begin_ns"]).all())


def test_one_clock_needs_nothing(tmp_path: Path) -> None:
    """The trace comes back as it was."""
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
    """Bounds that a constant offset meets as well give no drift."""
    bounds = Bounds(0, ((0.0, 10.0), (1e9, 11.0)), ((0.0, 0.0), (1e9, 0.0)))
    line = fit(bounds)
    assert (line.drift, line.offset_ns, line.error_ns) == (0.0, 5.0, 5.0)


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


def test_only_the_hull_decides() -> None:
    """A bound that others imply changes no line."""
    sharp = Bounds(0, ((0.0, 10.0), (1e9, 8.0), (2e9, 9.0)), ((0.0, 0.0), (2e9, 1.0)))
    more = Bounds(0, (*sharp.upper, (5e8, 12.0)), (*sharp.lower, (1e9, -3.0)))
    assert fit(more) == fit(sharp)


def test_a_few_exchanges_give_no_drift(tmp_path: Path) -> None:
    """However far clocks are apart: each bound counts at a time of the clock that it bounds. By
    all exchanges, and by the newest ones, which states keep.
    """
    steps(tmp_path, 2, 3, apart_ns=20 * S)
    for found in (
        align(load([str(tmp_path)])).clocks,
        of_journals([str(tmp_path)]).survey.clocks,
    ):
        assert [clock.drift for clock in found] == [0.0, 0.0]
        assert found[0].offset_ns == pytest.approx(found[1].offset_ns, abs=MS)
