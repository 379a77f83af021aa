"""One id for all members of a group, and different ids for different groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.merge.surveying import survey
from disttrace_viewer.trace.model import Group
from support.journals import MS, T0, Journal, workers


def groups(folder: Path) -> list[Group]:
    return list(survey([str(folder)]).groups)


def ranks(group: Group) -> list[int | None]:
    return [member.rank for member in group.members]


def test_members_that_met_at_one_server_are_one_group(tmp_path: Path) -> None:
    """However they spell the server's host: it is the process that listens on that port."""
    names = ("127.0.0.1", "localhost", "host")
    for journal, name in zip(workers(tmp_path, 3), names, strict=True):
        base = journal.tcp_store(29500, host=name, server=journal.rank == 0)
        journal.group(journal.prefix_store(base, "default_pg", "0/"))
    (group,) = groups(tmp_path)
    assert ranks(group) == [0, 1, 2]
    assert group.missing == ()
    (place,) = survey([str(tmp_path)]).places
    assert place.name == "tcp://127.0.0.1:29500"
    assert survey([str(tmp_path)]).processes[place.server or 0].rank == 0


def test_loopback_addresses_of_two_hosts_are_two_places(tmp_path: Path) -> None:
    """Both hosts use 127.0.0.1:29500, with and without a traced server."""
    for host in ("a", "b"):
        for journal in workers(tmp_path, 2, host=host, boot_id=host, job=host):
            journal.world()
        for rank in (0, 1):
            journal = Journal(tmp_path, pid=rank, host=host, boot_id=host, job=host + "x")
            store = journal.prefix_store(journal.tcp_store(1234), "p")
            journal.group(store, rank=rank, size=2, ranks=None)
    assert sorted(len(g.members) for g in groups(tmp_path)) == [2, 2, 2, 2]


def test_a_server_on_another_host_is_found_by_name(tmp_path: Path) -> None:
    """A client's own host listens on that port too, but the client names the other host."""
    far = Journal(tmp_path, pid=1, rank=0, world_size=2, host="n0.cluster", boot_id="b0")
    far.world()
    near = Journal(tmp_path, pid=2, host="n1.cluster", boot_id="b1")
    near.tcp_store(29500, server=True)
    client = Journal(tmp_path, pid=3, rank=1, world_size=2, host="n1.cluster", boot_id="b1")
    base = client.tcp_store(29500, host="n0")
    client.group(client.prefix_store(base, "default_pg", "0/"))
    (group,) = groups(tmp_path)
    assert ranks(group) == [0, 1]


def test_other_members_at_the_same_place_are_another_group(tmp_path: Path) -> None:
    """new_group([0, 1]) and new_group([2, 3]) bear one name and one prefix."""
    for journal in workers(tmp_path, 4):
        base = journal.tcp_store(29500, server=journal.rank == 0)
        half = [0, 1] if (journal.rank or 0) < 2 else [2, 3]
        journal.group(
            journal.prefix_store(base, "1/"), name="1", ranks=half,
            rank=half.index(journal.rank or 0), size=2, default=False,
        )  # fmt: skip
    found = groups(tmp_path)
    assert sorted(g.ranks or () for g in found) == [(0, 1), (2, 3)]
    assert len({g.id for g in found}) == 2
    assert {g.place for g in found} == {found[0].place}


def test_the_nth_group_under_a_prefix_is_a_group_of_its_own(tmp_path: Path) -> None:
    """destroy and init again: same port, same prefix, same name."""
    for journal in workers(tmp_path, 2):
        base = journal.tcp_store(29500, server=journal.rank == 0)
        for nth in (1, 2):
            store = journal.prefix_store(base, "default_pg", "0/")
            journal.group(store, nth=nth)
    found = groups(tmp_path)
    assert [ranks(g) for g in found] == [[0, 1], [0, 1]]


def test_a_member_without_a_process_is_missing(tmp_path: Path) -> None:
    """The group's size is known, and who of it was never seen."""
    workers(tmp_path, 3)[1].world()
    (group,) = groups(tmp_path)
    assert group.missing == (0, 2)
    assert group.global_rank(2) == 2
    assert group.global_rank(3) is None


def test_without_a_store_name_members_and_time_decide(tmp_path: Path) -> None:
    """Groups made before tracing started; the same name in an unrelated job is another group."""
    for journal in workers(tmp_path, 2):
        journal.group(name="0")
        journal.group(name="7", ranks=[0, 1], default=False)
    for journal in workers(tmp_path, 2, job="other", host="else", boot_id="else"):
        journal.group(name="0")
    found = groups(tmp_path)
    told = sorted((g.name, ranks(g)) for g in found)
    assert told == [("0", [0, 1]), ("0", [0, 1]), ("7", [0, 1])]


def test_an_unknown_prefix_is_matched_by_name(tmp_path: Path) -> None:
    """The store is known, but not what was put before its keys."""
    for journal in workers(tmp_path, 2):
        base = journal.tcp_store(29500, server=journal.rank == 0)
        journal.group(journal.prefix_store(base, None, "0/"))
    (group,) = groups(tmp_path)
    assert ranks(group) == [0, 1]


def test_file_stores_meet_by_path_and_hash_stores_never(tmp_path: Path) -> None:
    """A HashStore is one process's own."""
    for journal in workers(tmp_path, 2):
        file = journal.numbered("store", type="FileStore", name="file:///x", path="/x", prefix=[])
        hashed = journal.numbered("store", type="HashStore", name="hash://process", prefix=[])
        journal.group(file)
        journal.group(hashed, name="h", default=False)
    assert sorted(len(g.members) for g in groups(tmp_path)) == [1, 1, 2]


def test_the_same_port_after_the_first_job_ended_is_another_place(tmp_path: Path) -> None:
    """Nobody's server is traced; only time tells the two meetings apart."""
    for start, job in ((0, "first"), (3600_000 * MS, "second")):
        for rank in (0, 1):
            journal = Journal(tmp_path, pid=rank + start // MS, rank=rank, world_size=2, job=job,
                              t0=10**12 + start)  # fmt: skip
            journal.group(journal.prefix_store(journal.tcp_store(29500), "default_pg"))
            journal.define("exit", t=100 * MS, how="normal", code=0)
    found = groups(tmp_path)
    assert [ranks(g) for g in found] == [[0, 1], [0, 1]]
    assert found[0].id != found[1].id


def test_ids_do_not_depend_on_what_else_is_read(tmp_path: Path) -> None:
    """The same group has the same id next to another job's journals, and tells who shares it."""
    for journal in workers(tmp_path / "a", 2):
        journal.world()
    (alone,) = groups(tmp_path / "a")
    for port, folder in ((29501, "b"), (29500, "c")):
        for journal in workers(tmp_path / folder, 2, host=folder, boot_id=folder, job=folder):
            journal.world(port)
        found = [g.id for g in groups(tmp_path)]
        assert len(set(found)) == len(found)
        assert (alone.id in found) is (folder == "b")
    assert len([one for one in found if one.startswith(f"{alone.id}-")]) == 2


@pytest.mark.parametrize("ended", [False, True])
def test_no_group_spans_a_restart(tmp_path: Path, *, ended: bool) -> None:
    """All ranks of the first attempt are in one group, however short it was; no store is known."""
    agent = Journal(tmp_path, pid=1, role="agent")
    for attempt in (0, 1):
        for rank in (0, 1):
            journal = Journal(
                tmp_path, pid=10 * (attempt + 1) + rank, rank=rank, world_size=2,
                parent=agent.process, t0=T0 + attempt * 900 * MS + rank * MS,
                keys={"attempt": attempt},
            )  # fmt: skip
            journal.group(None, rank=rank, size=2)
            if ended and not attempt:
                journal.fail((500 + 20 * rank) * MS, "ValueError", "bad")
    assert [ranks(group) for group in groups(tmp_path)] == [[0, 1], [0, 1]]
