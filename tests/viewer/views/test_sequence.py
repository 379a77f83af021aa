"""The merged order of hand-written journals, as exact values and as painted lines; repetitions in
it; and initialization, a line each: launches, groups with store and members, other stores.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.values import replace
from disttrace_viewer.views.terminal import BAD, HOLD
from disttrace_viewer.views.terminal.console import TextConsole
from disttrace_viewer.views.terminal.plan import Filters
from disttrace_viewer.views.terminal.report import Overview, overview_of, paint
from disttrace_viewer.views.terminal.rows import Mark, Row
from support.journals import MS, Journal, bulk, training, workers
from support.scenes import steps

US = 1_000


def report(folder: Path, filters: Filters | None = None) -> Overview:
    return overview_of(load([str(folder)]), filters)


def painted(report: Overview, width: int = 80, encoding: str = "utf-8") -> list[str]:
    """The lines of a report without colour."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    paint(report, TextConsole(file, width=width))
    file.flush()
    file.seek(0)
    return file.read().splitlines()


def words(row: Row) -> list[str]:
    return [text.plain.replace(HOLD, " ") for text in (row.text, *row.below)]


def called(found: Overview) -> list[str]:
    """The first word of each row; of a fold ``x``, of a gap ``…``."""
    return [row.text.plain.split()[0] for row in found.sequence.rows]


def hanging(folder: Path) -> None:
    """Ranks 0 and 1 are in all_reduce 2; rank 2 is not, and beats on for five seconds."""
    for journal in workers(folder, 3):
        call = journal.collective(journal.world())
        journal.run(call, t=20 * MS + (journal.rank or 0) * MS, d=4 * MS, q=1)
        if journal.rank != 2:
            journal.begin(call, t=30 * MS + 2 * US * (journal.rank or 0), q=2)
        else:
            journal.record(hb=5_030 * MS)


def test_a_collective_tells_who_came_when(tmp_path: Path) -> None:
    """Arrivals in their order with offsets, the last one marked, first begin to last end."""
    for journal in workers(tmp_path, 3):
        late = {0: 0, 1: 7 * MS, 2: 2 * MS}[journal.rank or 0]
        journal.run(journal.collective(journal.world()), t=20 * MS + late, d=9 * MS, q=1)
        journal.define("exit", t=50 * MS, how="normal", code=0)
    found = report(tmp_path)
    (row,) = found.sequence.rows
    assert words(row) == ["#1 all_reduce SUM float32[4]  16.0 ms; 0, 2 +2.00 ms, 1 +7.00 ms last"]
    assert row.marks == {0: Mark.DONE, 1: Mark.LAST, 2: Mark.DONE}
    assert (row.at_ns, row.place) == (20 * MS, "train.py:10 main")


def test_a_message_tells_who_waited(tmp_path: Path) -> None:
    """The receiver came first, so it waited for the sender and not the other way round."""
    first, second = workers(tmp_path, 2)
    first.run(first.message(first.world(), "send", 1), t=25 * MS, d=3 * MS, q=1)
    second.run(second.message(second.world(), "recv", 0), t=20 * MS, d=8 * MS, q=1)
    (row, *_) = report(tmp_path).sequence.rows
    assert row.arrow == (0, 1)
    # It begins to wait a tenth of its duration after its begin, as the builder has it.
    assert words(row) == ["#1 send 0 → 1 16 B tag 0  8.00 ms; 1 waited 4.20 ms"]


def test_what_is_in_flight_stands_out_with_age_and_line(tmp_path: Path) -> None:
    """Who is in it since when at which line, who has not come, and once more at the end."""
    hanging(tmp_path)
    found = report(tmp_path)
    row = found.sequence.rows[1]
    assert row.marks == {0: Mark.FLYING, 1: Mark.FLYING, 2: Mark.MISSING}
    assert row.place is None, "it stands below"
    flying = "ranks 0, 1 were in flight when last heard of, for 5.00 s at train.py:10 main"
    assert words(row)[1:] == [flying, "missing: rank 2"]
    lines = painted(found)
    assert " +0.030000  ◐──◐──○  #2 all_reduce SUM float32[4]; 0, 1 +2.00 µs" in lines
    assert "            │  │  │  missing: rank 2" in lines
    where = " ".join(" ".join(lines[lines.index("Where the ranks are:") :]).split())
    assert "ranks 0, 1" in where
    assert "in all_reduce #2 of the default group for 5.0 s at train.py:10" in where
    # A finding's severity and sentence stand above everything that happened.
    told = (("error", "rank 2 never began all_reduce #2"),)
    assert "  error    rank 2 never began all_reduce #2" in painted(replace(found, findings=told))
    # Every sign has a letter of the same width, so lanes stay straight.
    plain = painted(found, encoding="ascii")
    assert [len(line) for line in plain] == [len(line) for line in lines]
    assert any(line.startswith(" +0.030000  %--%--.  #2 all_reduce SUM") for line in plain)


def test_an_error_shows_its_text_and_its_line(tmp_path: Path) -> None:
    """A rank whose operation raised is marked, and its text is shown."""
    journals = workers(tmp_path, 2)
    for journal in journals:
        call = journal.collective(journal.world())
        n = journal.begin(call, t=20 * MS, q=1)
        text = {"x": journal.string("RuntimeError: Connection closed by peer")}
        journal.end(n, 2 * MS, **(text if journal.rank else {"u": 1}))
    found = report(tmp_path)
    row = found.sequence.rows[0]
    assert row.marks[1] is Mark.FAILED
    assert words(row)[1:] == ["rank 1: RuntimeError: Connection closed by peer at train.py:10 main"]


def test_different_arguments_are_said(tmp_path: Path) -> None:
    """An exchange to which members came with different shapes says so."""
    for journal in workers(tmp_path, 2):
        shapes = [[4 + (journal.rank or 0)]]
        call = journal.collective(journal.world(), shapes=shapes)
        journal.run(call, t=20 * MS, d=MS, q=1)
    (line,) = words(report(tmp_path).sequence.rows[0])
    assert line.endswith("] arguments differ  1.00 ms; all at once")


def test_iterations_are_folded_but_not_what_is_unusual(tmp_path: Path) -> None:
    """Of 50 equal steps one is shown, with a line that counts the others."""
    training(tmp_path, steps=50)
    assert called(report(tmp_path)) == ["#1", "x"]
    (line,) = words(report(tmp_path).sequence.rows[1])
    assert line.startswith("x 49 more like this until ")
    journal = workers(tmp_path / "late", 2)
    for one in journal:
        call = one.collective(one.world())
        for step in range(1, 51):
            slow = 900 * MS if step == 30 else 0
            one.run(call, t=step * 1000 * MS, d=MS + slow, q=step)
    assert called(report(tmp_path / "late"))[:5] == ["#1", "x", "#30", "#31", "x"]


def run_steps(jobs: list[tuple[Journal, int]], other: dict[int, dict[str, Any]]) -> None:
    """40 all_reduces, of which #20 is called otherwise by some ranks (None: not at all)."""
    for journal, group in jobs:
        usual = journal.collective(group)
        rank = journal.rank or 0
        for step in range(1, 41):
            call = usual
            if step == 20 and rank in other:
                call = journal.collective(group, **other[rank])
            late = 6 * MS if (step + rank) % 3 == 0 else 0
            journal.run(call, t=(100 + 20 * step) * MS + late, d=8 * MS - late, q=step)
        journal.define("exit", t=2000 * MS, how="normal", code=0)


def test_a_fold_says_how_long_and_who_arrived_last(tmp_path: Path) -> None:
    """Count, median, maximum, and how often each was the last."""
    run_steps(steps(tmp_path, 3, count=0), {})
    found = report(tmp_path)
    assert called(found) == ["#1", "x"]
    (line,) = [text for text in painted(found, width=120) if " more like " in text]
    assert "x 39 more like this until +0.908000: median 8.00 ms, max 8.00 ms in #2; last: " in line
    assert sorted(line.rpartition("last: ")[2].split(", ")) == ["0 x13", "1 x13", "2 x13"]


@pytest.mark.parametrize(
    "other",
    [
        {1: {"shapes": [[8]], "bytes": 32}},
        {0: {"stack": 99}, 2: {"stack": 99}},
        {0: {"reduce_op": "MAX"}, 1: {"reduce_op": "MAX"}, 2: {"reduce_op": "MAX"}},
    ],
    ids=["shape", "line", "arguments"],
)
def test_what_differs_is_in_no_fold(tmp_path: Path, other: dict[int, dict[str, Any]]) -> None:
    """One call with another shape, from another line or with another operator stands by itself."""
    jobs = steps(tmp_path, 3, count=0)
    for journal, _ in jobs:
        if "stack" in other.get(journal.rank or 0, {}):
            other[journal.rank or 0]["stack"] = journal.stack(("other.py", 5, "branch"))
    run_steps(jobs, other)
    found = report(tmp_path)
    assert called(found) == ["#1", "x", "#20", "#21", "x"]
    places = {"ranks 0, 2 at other.py:5 branch", "rank 1 at train.py:10 main"}
    by_place = {*words(found.sequence.rows[2])[1:]}
    assert by_place == (places if "stack" in other.get(0, {}) else set())


def test_a_missing_rank_is_in_no_fold(tmp_path: Path) -> None:
    """Rank 2 never joined #40; nobody noticed, since gloo's members went on."""
    for journal, group in steps(tmp_path, 3, count=0):
        call = journal.collective(group)
        for step in range(1, 41):
            if (step, journal.rank) != (40, 2):
                journal.run(call, t=(100 + 20 * step) * MS, d=8 * MS, q=step)
        journal.define("exit", t=2000 * MS, how="normal", code=0)
    found = report(tmp_path)
    first, missing = words(found.sequence.rows[-1])
    assert (first.split()[0], missing) == ("#40", "missing: rank 2")


def test_each_kind_of_an_iteration_has_its_line(tmp_path: Path) -> None:
    """Steps of an all_reduce and a barrier fold together, and are told apart."""
    for journal, group in steps(tmp_path, 2, count=0):
        calls = [journal.collective(group), journal.collective(group, "barrier", shapes=None)]
        for step in range(60):
            long = 9 * MS if step % 2 == 0 else MS
            journal.run(calls[step % 2], t=(100 + 10 * step) * MS, d=long, q=step + 1)
        journal.define("exit", t=2000 * MS, how="normal", code=0)
    found = report(tmp_path)
    assert words(found.sequence.rows[2])[0].startswith("x 29 more like these 2 until ")
    lines = painted(found)
    start = next(i for i, line in enumerate(lines) if "more like these 2" in line)
    assert "all_reduce: median 9.00 ms, max 9.00 ms in #" in lines[start + 1]
    assert "barrier: median 1.00 ms, max 1.00 ms in #" in lines[start + 2]


def test_a_long_job_shows_its_beginning_and_its_end(tmp_path: Path) -> None:
    """Between them stands how much is left out, and --last chooses."""
    for journal, group in steps(tmp_path, 2, count=0):
        calls = [journal.collective(group, shapes=[[n]]) for n in range(1, 201)]
        for step, call in enumerate(calls, 1):
            journal.run(call, t=step * MS, d=MS // 10, q=step)
        journal.define("exit", t=300 * MS, how="normal", code=0)
    rows = report(tmp_path).sequence.rows
    assert words(rows[12])[0].startswith("… 140 rows not shown, until ")
    assert len(rows) == 61
    assert called(report(tmp_path, Filters(last=3))) == ["…", "#198", "#199", "#200"]


def test_filters_choose_rows(tmp_path: Path) -> None:
    """By operation, by rank; a filter that fits nothing says what there is."""
    first, second = workers(tmp_path, 2)
    for one in (first, second):
        group = one.world()
        one.run(one.collective(group), t=20 * MS, d=MS, q=1)
        if one is first:
            alone = one.group(one.tcp_store(), name="1", ranks=[0], size=1, default=False)
            one.run(one.collective(alone, "broadcast"), t=30 * MS, d=MS, q=1)
    (row,) = report(tmp_path, Filters(ops=("all_*",))).sequence.rows
    assert words(row)[0].startswith("#1 all_reduce ")
    assert len(report(tmp_path, Filters(ranks=frozenset({1}))).sequence.rows) == 1
    with pytest.raises(ViewerError, match="no such operation here; there are all_reduce, broad"):
        report(tmp_path, Filters(ops=("barrier",)))
    with pytest.raises(ViewerError, match="no such rank here; there are 0, 1"):
        report(tmp_path, Filters(ranks=frozenset({9})))


def test_many_ranks_share_lanes(tmp_path: Path) -> None:
    """Of 240 ranks every lane holds 30, and lines stay within 80 columns."""
    bulk(tmp_path, 2_400, world_size=240)
    found = report(tmp_path)
    assert [lane.label for lane in found.sequence.lanes] == [str(30 * n) for n in range(8)]
    assert [len(lane.processes) for lane in found.sequence.lanes] == [30] * 8
    assert max(len(line) for line in painted(found)) <= 80


def test_a_bad_end_is_a_row_and_in_the_head(tmp_path: Path) -> None:
    """An exception that nobody caught is told once for all ranks that it ended."""
    for journal in workers(tmp_path, 2):
        journal.world()
        journal.fail(40 * MS, "ValueError", "no data\nhere", line=7)
    found = report(tmp_path)
    (row,) = found.sequence.rows
    assert words(row) == [r"ranks 0, 1 failed with ValueError: no data\nhere  train.py:7 step"]
    (processes,) = (line for beside, line in found.header if beside == "processes")
    assert [(processes.plain[span.start :], span.style) for span in processes.spans] == [
        ("2 failed", BAD)
    ]


def test_a_launcher_knows_how_its_workers_ended(tmp_path: Path) -> None:
    """One was killed, one told to end for it, one left with a code: none without a word."""
    agent = Journal(tmp_path, pid=3999, role="agent")
    for journal in workers(tmp_path, 3, parent=agent.process):
        journal.run(journal.collective(journal.world()), t=20 * MS, d=4 * MS, q=1)
        ways: dict[int, dict[str, Any]] = {
            0: {"event": "killed", "signal": "SIGTERM"},
            1: {"event": "failed", "signal": "SIGKILL"},
            2: {"event": "failed", "code": 3},
        }
        agent.define("worker", t=90 * MS, pid=journal.pid, **ways[journal.rank or 0])
        if journal.rank == 2:
            journal.define("exit", t=50 * MS, how="normal", code=None)
    agent.define("exit", t=99 * MS, how="normal", code=None)
    found = report(tmp_path)
    ends = [words(row)[0].strip() for row in found.sequence.rows if not row.joined]
    assert sorted(ends) == [
        "rank 0 was ended by its launcher (SIGTERM)",
        "rank 1 was ended by SIGKILL",
        "rank 2 ended with exit code 3",
    ]
    assert any("2 killed" in line for line in painted(found, width=120))


def test_what_each_does_again_and_again_is_one_row_a_round(tmp_path: Path) -> None:
    """The n-th time of each process at one line is one row, in whatever order it was read."""
    for journal in workers(tmp_path, 3):
        ask = journal.call("store.check", kind="store", store=journal.tcp_store())
        for turn in range(400):
            journal.run(ask, t=(100 + 10 * turn) * MS, d=MS, k="stop")
        journal.define("exit", t=5000 * MS, how="normal", code=0)
    assert called(report(tmp_path)) == ["store.check", "x"]


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
    (row,) = report(tmp_path, Filters(ops=("store.set",))).sequence.rows
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


def test_what_was_made_by_hand_names_store_prefix_server_and_clients(tmp_path: Path) -> None:
    by_hand(tmp_path / "group", group=True)
    (group,) = report(tmp_path / "group").initialization
    assert (group.at_ns, group.took_ns) == (4 * MS, 4 * MS)
    told = "ranks 0, 2 by ProcessGroupGloo in tcp://localhost:33629 of rank 1 under replicas_1/"
    assert group.what == told
    by_hand(tmp_path / "store", group=False)
    (store,) = report(tmp_path / "store").initialization
    assert (store.name, store.at_ns, store.took_ns) == ("store", MS, 2 * MS)
    assert store.what == "tcp://localhost:33629 of rank 1, joined by ranks 0, 2"
