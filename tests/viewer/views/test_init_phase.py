"""The way in: phases, meeting places, chains of prefixes, steps, keys, until groups are ready."""

from __future__ import annotations

from pathlib import Path

from disttrace_viewer.merge.reader import load
from disttrace_viewer.views.terminal.report import Report, report_of
from disttrace_viewer.views.terminal.rows import LocalRow
from support.journals import MS, Journal, workers


def report(folder: Path) -> Report:
    """The report that draws the way in in full."""
    return report_of(load([str(folder)]), init=True)


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
    launch, group = report(tmp_path).initialization.phases
    assert (launch.name, launch.at_ns) == ("launch", 0)
    assert launch.what == "agent 3999 serves tcp://localhost:4711, starts 2 workers"
    assert (group.name, group.at_ns, group.took_ns) == ("default group", 10 * MS, 12 * MS)
    assert group.what == (
        "ranks 0, 1 by init_process_group, env:// in tcp://localhost:4711 of agent 3999"
    )


def test_who_serves_and_who_comes(tmp_path: Path) -> None:
    """Clients of one address are one line, with what they really dialled."""
    joining(tmp_path)
    found = report(tmp_path)
    (server,) = found.initialization.servers
    assert server.server is not None
    assert found.names.process(server.server) == "agent 3999"
    (client,) = server.clients
    assert found.names.processes(client.processes) == "ranks 0, 1"
    assert client.address == "localhost:4711 (127.0.0.1:4711)"
    assert client.took_ns == 3 * MS


def test_the_chain_of_prefixes_and_when_each_is_ready(tmp_path: Path) -> None:
    """From the server inwards; a member is ready when its call returned."""
    joining(tmp_path)
    (made,) = report(tmp_path).initialization.groups
    assert made.prefixes == ("default_pg", "0/")
    assert made.by == "init_process_group, env://"
    assert [(j.rank, j.at_ns, j.ready_ns) for j in made.joined] == [
        (0, 10 * MS, 20 * MS),
        (1, 12 * MS, 22 * MS),
    ]


def test_steps_are_nested_and_polling_is_one_row(tmp_path: Path) -> None:
    """Ranks that do the same at one line share a row; what differs between them is a star."""
    joining(tmp_path)
    way = report(tmp_path).initialization
    steps = [row for row in way.steps if isinstance(row, LocalRow)]
    assert [(row.op, row.depth, len(row.processes), row.times) for row in steps] == [
        ("TCPStore", 0, 1, 1),
        ("store.get", 0, 1, 5),
        ("init_process_group", 0, 2, 1),
        ("TCPStore", 1, 2, 1),
        ("store.set", 1, 2, 1),
    ]
    assert steps[0].what == "listens on localhost:4711"
    assert steps[3].what == "connects to localhost:4711"
    assert steps[4].what == "default_pg/0//cpu//*"


def test_keys_say_who_set_and_who_reads_them(tmp_path: Path) -> None:
    """Keys carry their whole prefix, in the order of their first use."""
    joining(tmp_path)
    found = report(tmp_path)
    keys = {use.key: use for use in found.initialization.keys}
    assert list(keys) == ["torch.rendezvous", "default_pg/0//cpu//0", "default_pg/0//cpu//1"]
    assert found.names.processes(keys["torch.rendezvous"].read_by) == "agent 3999"
    assert found.names.processes(keys["default_pg/0//cpu//1"].set_by) == "rank 1"


def test_a_rank_that_never_became_ready_is_said(tmp_path: Path) -> None:
    """A member still in its call makes the phase not ready, and the step is in flight."""
    for journal in workers(tmp_path, 2):
        init = journal.call("init_process_group", kind="composed", args={})
        journal.begin(init, t=10 * MS)
        journal.record(hb=3_010 * MS)
    found = report(tmp_path)
    assert {(p.what, p.took_ns) for p in found.initialization.phases} == {
        ("rank 0 is still in init_process_group", None),
        ("rank 1 is still in init_process_group", None),
    }
    (flight,) = found.flights
    assert (flight.what, flight.age_ns) == ("init_process_group env://", 3_000 * MS)
