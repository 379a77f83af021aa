"""Initialization is a line each: launches, groups with store and members, other stores."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal.plan import Filters
from disttrace_viewer.views.terminal.report import Overview, report_of
from support.journals import MS, Journal, workers


def report(folder: Path, *ops: str) -> Overview:
    return report_of(load([str(folder)]), Filters(ops=ops))


def joining(folder: Path) -> list[Journal]:
    """An agent serves the store; two workers join through it, rank 1 a little later."""
    agent = Journal(folder, pid=3999, role="agent")
    base = agent.tcp_store(4711, "localhost", server=True)
    agent.run(agent.call("TCPStore", kind="constructor", store=base), t=MS, d=MS)
    polling = agent.call("store.get", kind="store", store=base)
    for beat in range(5):
        agent.run(polling, t=(3 + beat) * MS, d=MS // 2, k="torch.rendezvous")
    journals = workers(folder, 2, parent=agent.process)
    for journal in journals:
        late = 2 * MS * (journal.rank or 0)
        base = journal.tcp_store(4711, "localhost", address="127.0.0.1:4711")
        store = journal.prefix_store(base, "default_pg", "0/")
        journal.group(store, t=18 * MS + late)
        init = journal.call("init_process_group", kind="composed", args={"init_method": "env://"})
        outer = journal.begin(init, t=10 * MS + late)
        call = journal.call("TCPStore", kind="constructor", store=base)
        inner = journal.begin(call, t=11 * MS + late, p=outer)
        journal.end(inner, MS)
        key = journal.call("store.set", kind="store", store=store)
        setting = journal.begin(key, t=13 * MS + late, p=outer, k=f"cpu//{journal.rank}", n=8)
        journal.end(setting, MS)
        journal.end(outer, 10 * MS)
    return [agent, *journals]


def test_a_line_per_phase(tmp_path: Path) -> None:
    """The launch with what the agent serves, then each group until its last member is ready."""
    joining(tmp_path)
    launch, group = report(tmp_path).initialization
    assert (launch.name, launch.at_ns) == ("launch", 0)
    assert launch.what == "agent 3999 serves tcp://localhost:4711, starts 2 workers"
    assert (group.name, group.at_ns, group.took_ns) == ("default group", 10 * MS, 12 * MS)
    told = "ranks 0, 1 by init_process_group, env:// in tcp://localhost:4711 of agent 3999"
    assert group.what == told


def test_a_rank_that_never_became_ready_is_named(tmp_path: Path) -> None:
    """A member still in its call makes the phase not ready, and the step is in flight."""
    for journal in workers(tmp_path, 2):
        init = journal.call("init_process_group", kind="composed", args={})
        journal.begin(init, t=10 * MS)
        journal.record(hb=3_010 * MS)
    found = report(tmp_path)
    assert {(p.what, p.took_ns) for p in found.initialization} == {
        ("rank 0 is still in init_process_group", None),
        ("rank 1 is still in init_process_group", None),
    }
    assert [line.text for line in found.where if line.lead] == ["in init_process_group for 3.0 s"]


def test_store_operations_within_are_steps_where_they_are_wanted(tmp_path: Path) -> None:
    """Initialization is left out of what happened, but for those that are named by ``--op``."""
    joining(tmp_path)
    assert report(tmp_path).sequence.total == 0
    (row,) = report(tmp_path, "store.set").sequence.rows
    assert row.text.plain.startswith("store.set default_pg/0//cpu//* ")
    assert len(row.marks) == 2


def by_hand(folder: Path, *, group: bool) -> None:
    """Rank 1 serves a store in which the others meet under a prefix, with a group or without."""
    for journal in workers(folder, 3):
        serves = journal.rank == 1
        base = journal.tcp_store(33629, "localhost", server=serves)
        journal.run(journal.call("TCPStore", kind="constructor", store=base), t=MS, d=2 * MS)
        if group and not serves:
            rank = (journal.rank or 0) // 2
            store = journal.prefix_store(base, "replicas_1")
            made = journal.call("ProcessGroupGloo", kind="constructor", store=store)
            outer = journal.begin(made, t=4 * MS)
            journal.group(store, t=5 * MS, type="ProcessGroupGloo", rank=rank, size=2, ranks=None)
            journal.end(outer, 4 * MS)


def test_a_group_made_by_hand_names_its_store_and_prefix(tmp_path: Path) -> None:
    by_hand(tmp_path, group=True)
    (group,) = report(tmp_path).initialization
    assert (group.at_ns, group.took_ns) == (4 * MS, 4 * MS)
    told = "ranks 0, 2 by ProcessGroupGloo in tcp://localhost:33629 of rank 1 under replicas_1/"
    assert group.what == told


def test_a_store_without_a_group_names_its_server_and_clients(tmp_path: Path) -> None:
    by_hand(tmp_path, group=False)
    (store,) = report(tmp_path).initialization
    assert (store.name, store.at_ns, store.took_ns) == ("store", MS, 2 * MS)
    assert store.what == "tcp://localhost:33629 of rank 1, joined by ranks 0, 2"
