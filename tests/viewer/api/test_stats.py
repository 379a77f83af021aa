"""Where the time goes: sums that close, wait states by name, and who is at their origin."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest

import disttrace
from disttrace import cli
from disttrace_viewer.api import Stats, ViewerError, load
from support.journals import MS, UNIX_NS, Journal, training, work_steps, workers
from support.scenes import steps

START = 100 * MS
LATE = 40 * MS
STEPS = 20


def straggler(folder: Path, late: int = 2, world_size: int = 4) -> None:
    """Steps of 10 ms of work and an all_reduce of 1 ms; one rank works 40 ms longer each time."""
    work_steps(folder, [10 + 40 * (rank == late) for rank in range(world_size)])


def states(stats: Stats) -> dict[str, int]:
    return {state: time // MS for state, _, time in stats.wait_states.iter_rows()}


def waited(stats: Stats) -> list[int]:
    return [time // MS for time in stats.ranks["waiting_ns"].to_list()]


def test_a_straggler_is_named_with_its_line_and_what_it_costs(tmp_path: Path) -> None:
    """40 ms in each step of rank 2, for which three others wait."""
    straggler(tmp_path)
    stats = disttrace.stats(tmp_path)
    assert stats.origins.to_dicts() == [
        {
            "rank": 2, "line": "train.py:10", "count": STEPS, "of": STEPS, "mean_ns": LATE,
            "caused_ns": 3 * STEPS * LATE,
        }
    ]  # fmt: skip
    assert waited(stats) == [800, 800, 0, 800]
    assert stats.ranks["made_others_wait_ns"].to_list() == [0, 0, 3 * STEPS * LATE, 0]
    (row,) = stats.operations.to_dicts()
    assert row == {
        **row, "op": "all_reduce", "line": "train.py:10", "calls": 4 * STEPS,
        "bytes": 4 * STEPS * 4000, "total_ns": STEPS * (3 * (LATE + MS) + MS),
        "median_ns": LATE + MS, "p99_ns": LATE + MS, "max_ns": LATE + MS,
        "waiting_ns": 3 * STEPS * LATE,
        "last_to_arrive": [{"rank": 2, "count": STEPS}],
        "algbw": pytest.approx(4e6),
        "busbw": pytest.approx(6e6),
    }  # fmt: skip
    assert stats.text(width=80).splitlines()[:3] == [
        "4 ranks, 620 ms each communicating, 97% of it waiting for the last to arrive.",
        "Rank 2 made others wait 2.40 s, 40.0 ms before train.py:10 in 20 of 20 calls.",
        "",
    ]
    # Wait states, exchange and the rest are the lives of ranks; who waits waits for somebody.
    assert int(stats.wait_states["time_ns"].sum()) == stats.wall_ns
    ranks = stats.ranks
    assert ranks["wall_ns"].equals(ranks["communicating_ns"] + ranks["outside_ns"])
    assert int(ranks["made_others_wait_ns"].sum()) == stats.waiting_ns
    life = START + STEPS * (10 * MS + LATE + MS)
    assert ranks["wall_ns"].to_list() == [life] * 4
    assert int(stats.operations["waiting_ns"].sum()) == stats.waiting_ns


def rooted(folder: Path, op: str, spans: list[tuple[int, int]]) -> Stats:
    """One collective with rank 0 as its root, from one millisecond to the other by rank."""
    for journal, (begin, end) in zip(workers(folder, len(spans)), spans, strict=True):
        call = journal.collective(journal.world(), op, root=0)
        journal.run(call, START + begin * MS, (end - begin) * MS, q=1)
        journal.leave(START + 100 * MS)
    return disttrace.stats(folder)


def test_members_wait_for_their_root_and_the_root_for_them(tmp_path: Path) -> None:
    """The root is late to a broadcast and early to a reduce; who was through waited for nobody."""
    stats = rooted(tmp_path / "broadcast", "broadcast", [(30, 32), (0, 31), (40, 41)])
    assert waited(stats) == [0, 30, 0]
    assert states(stats)["late broadcast"] == 30
    assert stats.ranks["made_others_wait_ns"].to_list() == [30 * MS, 0, 0]
    stats = rooted(tmp_path / "reduce", "reduce", [(0, 32), (10, 32), (30, 32)])
    assert states(stats)["early reduce"] == 30
    assert states(stats)["wait at collective"] == 20
    assert rooted(tmp_path / "gather", "gather", [(30, 32), (0, 5)]).waiting_ns == 0


@pytest.mark.parametrize(
    ("send", "recv", "state"),
    [
        ((20, 21), (0, 21), "late sender"),
        ((0, 31), (30, 31), "late receiver"),
        ((0, 2), (30, 31), None),  # what is small goes without its receiver
    ],
)
def test_messages_wait_for_their_other_end(
    send: tuple[int, int], recv: tuple[int, int], state: str | None, tmp_path: Path
) -> None:
    """The receiver for a late sender, the sender for a late receiver if it blocks at all."""
    both = (("send", send), ("recv", recv))
    for journal, (op, (begin, end)) in zip(workers(tmp_path, 2), both, strict=True):
        call = journal.message(journal.world(), op, 1 - (journal.rank or 0))
        journal.run(call, START + begin * MS, (end - begin) * MS, q=1)
        journal.leave(START + 100 * MS)
    stats = disttrace.stats(tmp_path)
    told = {name for name in states(stats) if name.startswith("late")}
    assert told == ({state} if state else set())
    assert stats.waiting_ns == (abs(send[0] - recv[0]) * MS if state else 0)


def test_what_is_hidden_behind_work_is_no_waiting(tmp_path: Path) -> None:
    """An asynchronous collective blocks only where it is issued and waited for."""
    for journal in workers(tmp_path, 2):
        call = journal.collective(journal.world(), asynchronous=True)
        begin = START + 30 * MS * (journal.rank or 0)
        n = journal.issue(call, begin, q=1, d=MS)
        journal.record(w=n, d=20 * MS)
        journal.end(n, 33 * MS if journal.rank == 0 else 22 * MS)
        journal.leave(START + 100 * MS)
    stats = disttrace.stats(tmp_path)
    assert waited(stats) == [1 + 10, 0]
    assert stats.ranks["communicating_ns"].to_list() == [(1 + 13) * MS, (1 + 2) * MS]


def test_time_in_several_operations_counts_once(tmp_path: Path) -> None:
    """Four buckets of a reducer, begun together, wait for rank 1 at the same time."""
    for journal in workers(tmp_path, 2):
        call = journal.collective(journal.world(), asynchronous=True, origin="c++")
        late = 40 * MS * (journal.rank or 0)
        for number in range(1, 5):
            n = journal.issue(call, START + late + number * 1000, q=number, d=500)
        for n in range(1, 5):
            journal.end(n, 50 * MS - late)
        journal.leave(START + 100 * MS)
    stats = disttrace.stats(tmp_path)
    assert waited(stats) == [40, 0]
    assert stats.ranks["communicating_ns"].to_list() == [50 * MS + 3000, 10 * MS + 3000]
    assert stats.ranks["made_others_wait_ns"].to_list() == [0, stats.ranks["waiting_ns"].sum()]


def test_inherited_lateness_is_nobodys_origin(tmp_path: Path) -> None:
    """Rank 1 is late for rank 2 because it waited for rank 0: only rank 0 is an origin."""
    jobs = workers(tmp_path, 3)
    t = START
    for number in range(1, STEPS + 1):
        for rank, peers, begin in ((0, 0, 50), (1, 0, 10), (1, 2, 52), (2, 2, 11)):
            journal, ranks = jobs[rank], [0, 1] if peers == 0 else [1, 2]
            group = groups(journal, ranks)
            end = 51 if peers == 0 else 53
            call = journal.collective(group, stack=(f"pair{peers}.py", 3, "step"))
            journal.run(call, t + begin * MS, (end - begin) * MS, q=number)
        t += 60 * MS
    for journal in jobs:
        journal.leave(t)
    first, *others = disttrace.stats(tmp_path).origins.to_dicts()
    assert (first["rank"], first["line"], first["mean_ns"]) == (0, "pair0.py:3", 40 * MS)
    assert sum(row["caused_ns"] for row in others) < first["caused_ns"] / 10


def groups(journal: Journal, ranks: list[int]) -> int:
    """A pair's group, made once per journal."""
    made: dict[str, int] = journal.keys.setdefault("_made", {})
    name = str(ranks)
    if name not in made:
        base = made.setdefault("", journal.tcp_store(server=journal.rank == 0))
        made[name] = journal.group(
            journal.prefix_store(base, "default_pg", f"{name}/"),
            name=name, ranks=ranks, rank=ranks.index(journal.rank or 0), size=2, default=None,
        )  # fmt: skip
    return made[name]


def test_who_never_came_is_waited_for_to_the_end(tmp_path: Path) -> None:
    """A hang is waiting too, and the culprit of the finding made others wait."""
    for journal in workers(tmp_path, 2):
        call = journal.collective(journal.world())
        if journal.rank == 0:
            journal.begin(call, START, q=1)
        journal.record(hb=START + 15000 * MS)
    stats = disttrace.stats(tmp_path)
    assert waited(stats) == [15000, 0]
    assert [ns // MS for ns in stats.ranks["made_others_wait_ns"]] == [0, 15000]
    assert stats.origins.row(0, named=True)["rank"] == 1
    assert stats.critical_path.height == 0  # the culprit communicated with none
    assert stats.operations["algbw"].to_list() == [None]
    assert str(stats).splitlines()[1] == (
        "Rank 1 made others wait 15.0 s for what never completed; `disttrace diagnose` tells more."
    )


@pytest.mark.parametrize("how", ["KeyboardInterrupt: ", "RuntimeError: timed out", "mismatch"])
def test_what_never_completed_is_waiting(tmp_path: Path, how: str) -> None:
    """A hang ended by Ctrl-C, a time-out, or a mismatch: after the last arrival is no bandwidth."""
    hung = 5000 * MS
    for journal in workers(tmp_path, 3):
        rank = journal.rank or 0
        group = journal.world()
        call = journal.collective(group)
        for step in range(1, 4):
            journal.run(call, START + step * 10 * MS, MS, q=step)
        at = START + (100 + rank) * MS
        if how == "mismatch":
            other = journal.collective(group, "all_gather" if rank else "all_reduce")
            journal.begin(other, at, q=4)
        elif rank < 2:
            journal.raises(call, at, hung, how, q=4)
        journal.record(hb=at + hung)
    stats = disttrace.stats(tmp_path)
    members = 3 if how == "mismatch" else 2
    never = stats.ranks["never_completed_ns"].to_list()
    lasted = [5000] * members + [0] * (3 - members)
    assert [ns // MS for ns in never] == pytest.approx(lasted, abs=2)
    assert stats.ranks["waiting_ns"].sum() >= sum(never)
    assert stats.waiting_ns > 0.99 * (stats.communicating_ns - 9 * MS)
    made = [ns // (1000 * MS) for ns in stats.ranks["made_others_wait_ns"]]
    assert made == [10 if how == "mismatch" else 0, 0, 0]  # as the findings say
    healthy = 16 / 0.001  # 16 bytes in a millisecond
    known = [speed for speed in stats.operations["algbw"].to_list() if speed is not None]
    assert known == [pytest.approx(healthy)]
    named = dict(stats.wait_states.select("state", "time_ns").iter_rows())
    assert named["never completed"] == sum(never)
    assert named["exchange"] <= 10 * MS
    assert sum(named.values()) == stats.wall_ns


def test_a_window_cuts_times_and_lives(tmp_path: Path) -> None:
    """The last ten steps: half of the waiting; the sums close in it too."""
    straggler(tmp_path)
    step = 10 * MS + LATE + MS
    middle = (START + 10 * step) / 1e9
    stats = load(tmp_path).stats(from_=f"+{middle}s")
    unix = UNIX_NS / 1e9 + middle  # as other tools print them
    assert waited(load(tmp_path).stats(from_=f"{unix:.6f}")) == [400, 400, 0, 400]
    assert waited(stats) == [400, 400, 0, 400]
    assert int(stats.wait_states["time_ns"].sum()) == stats.wall_ns == 4 * 10 * step
    assert stats.operations["calls"].to_list() == [4 * 10]
    until = load(tmp_path).stats(to=f"+{middle}s")
    assert until.waiting_ns + stats.waiting_ns == disttrace.stats(tmp_path).waiting_ns
    with pytest.raises(ViewerError, match="the end is not after it"):
        load(tmp_path).stats(from_="+2s", to="+1s")
    with pytest.raises(ViewerError, match="'noon' is not a time"):
        load(tmp_path).stats(from_="noon")


def told(folder: Path, capfdbinary: pytest.CaptureFixture[bytes], *options: str) -> Any:
    assert cli.main(["stats", str(folder), "--json", *options]) == 0
    return orjson.loads(capfdbinary.readouterr().out)


def test_json_is_the_contract(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Every key, in its order, and no other one."""
    straggler(tmp_path)
    found = told(tmp_path, capfdbinary)
    assert list(found) == [
        "format", "wall_ns", "communicating_ns", "waiting_ns", "operations", "ranks", "origins",
        "wait_states", "what_if", "critical_path", "incomplete", "others",
    ]  # fmt: skip
    assert list(found["operations"][0]) == [
        "op", "group", "line", "calls", "bytes", "total_ns", "median_ns", "p99_ns", "max_ns",
        "waiting_ns", "never_completed_ns", "last_to_arrive", "algbw", "busbw",
    ]  # fmt: skip
    assert list(found["ranks"][0]) == [
        "rank", "process", "wall_ns", "communicating_ns", "waiting_ns", "outside_ns",
        "made_others_wait_ns", "never_completed_ns",
    ]  # fmt: skip
    assert sum(state["time_ns"] for state in found["wait_states"]) == found["wall_ns"]
    assert list(found["what_if"][0]) == ["without", "wall_ns", "saved_ns", "saved_share"]
    assert list(found["critical_path"][0]) == ["rank", "process", "kind", "op", "line", "time_ns"]
    (asked,) = told(tmp_path, capfdbinary, "--what-if", "rank=2")["what_if"]
    assert asked["without"] == {"rank": 2}
    assert asked in found["what_if"]
    assert list(found["origins"][0]) == ["rank", "line", "count", "of", "mean_ns", "caused_ns"]
    assert found["format"] == 1
    ids = set(disttrace.load(tmp_path).operations["group"])
    assert {row["group"] for row in found["operations"]} == ids
    by_op = told(tmp_path, capfdbinary, "--by", "op")["operations"]
    assert [(row["op"], row["group"], row["line"]) for row in by_op] == [("all_reduce", None, None)]


def test_tables_fit_their_width(tmp_path: Path) -> None:
    """At 64 ranks too, where those that are alike are counted."""
    straggler(tmp_path, late=61, world_size=64)
    stats = disttrace.stats(tmp_path)
    for width, by in itertools.product((80, 120), (None, "line", "group", "op", "rank")):
        lines = stats.text(by, width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert any(line.split()[:2] == ["rank", "61"] for line in lines)
        if by != "rank":
            assert len(lines) < 52


def test_by_rank_is_the_table_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``stats --by rank``, in a notebook too; another key is refused."""
    training(tmp_path)
    found = disttrace.stats(str(tmp_path))
    assert found.by(["rank"]).equals(found.ranks)
    # In a kernel rich shows every line as an output of its own, and writes none to the file.
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "operations" in str(found)
    assert found.by("rank").equals(found.ranks)
    with pytest.raises(ValueError, match="allowed are op, group, line"):
        found.by(["rank", "op"])


@pytest.mark.parametrize(("measured", "clock", "seconds"), [(2, "device", 2e-3), (1, "host", 0.01)])
def test_the_devices_time_counts(tmp_path: Path, measured: int, clock: str, seconds: float) -> None:
    """Rank 1 comes 40 ms late: the device of rank 0 waits for it, its own takes 2 ms."""
    for journal, _ in steps(tmp_path, 2, count=0):
        group = journal.group(name="a", ranks=[0, 1], size=2, backends={"cuda": "nccl"},
                              default=False)  # fmt: skip
        call = journal.collective(group, backend="nccl", device="cuda", bytes=4000)
        rank = journal.rank or 0
        late = 40 * MS * rank
        number = journal.issue(call, 200 * MS + late, q=1)
        own = {"z": 2 * MS + 40 * MS * (1 - rank)} if rank < measured else {}
        journal.record(c=number, d=50 * MS - late, g=MS, **own)
    rows = disttrace.stats(str(tmp_path)).operations.to_dicts()
    (row,) = [row for row in rows if row["op"] == "all_reduce"]
    assert row["clock"] == clock
    assert row["algbw"] == pytest.approx(4000 / seconds)
    rows = disttrace.load(str(tmp_path)).collectives.to_dicts()
    (one,) = [row for row in rows if row["op"] == "all_reduce"]
    assert (one["clock"], one["algbw"]) == (clock, pytest.approx(4000 / seconds))
