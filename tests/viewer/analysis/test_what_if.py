"""What a run would have taken without something: on runs whose answer is known by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import disttrace
from disttrace_viewer.analysis import schedule as scheduling
from disttrace_viewer.analysis.schedule import Schedule
from disttrace_viewer.analysis.what_if import WhatIf
from disttrace_viewer.api import Stats, ViewerError
from support.journals import MS, work_steps, workers

START = 100 * MS
STEPS = 20


def schedule(stats: Stats) -> Schedule:
    return Schedule(stats.statistics.waits, stats.statistics.lines)


def saved(stats: Stats, question: str) -> int:
    answer = stats.without(question)
    found: int = answer["saved_ns"]
    assert answer["wall_ns"] + found == WhatIf(schedule(stats)).wall_ns
    return found


def test_nothing_left_out_is_the_run_as_it_was(tmp_path: Path) -> None:
    """Each process is through when it was, to the nanosecond."""
    work_steps(tmp_path, [10, 17, 50, 12])
    table = schedule(disttrace.stats(tmp_path))
    last = table.events.group_by("process").agg(pl.col("at_ns").last()).sort("process")
    assert last["at_ns"].to_list() == WhatIf(table).run().to_list()


def test_without_a_late_rank_the_next_late_one_is_what_all_wait_for(tmp_path: Path) -> None:
    """50 ms beside 17 and 10: leaving out the excess of the first gains what the second leaves."""
    work_steps(tmp_path, [10, 10, 50, 17])
    stats = disttrace.stats(tmp_path)
    assert saved(stats, "rank=2") == STEPS * 33 * MS
    assert saved(stats, "rank=3") == 0
    assert saved(stats, "line=train.py:10") == STEPS * 40 * MS
    assert saved(stats, "rank=2,line=train.py:10") == STEPS * 33 * MS
    best = stats.what_if.to_dicts()
    assert [one["without"]["line"] for one in best] == ["train.py:10", None, None]
    assert [one["without"]["rank"] for one in best] == [None, 2, None]
    assert best[2]["without"]["group"] == disttrace.load(tmp_path).groups["group"][0]
    # A sentence that a tired person understands, and where the run's length comes from.
    lines = stats.text(width=100).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("what if"))
    assert "Without rank 2's excess (most of it before train.py:10)" in "\n".join(lines[at:])
    assert any(line.startswith("critical path") for line in lines[at:])


def test_a_group_is_left_out_with_its_transfers(tmp_path: Path) -> None:
    """As if the network were free; who comes late is still waited for."""
    work_steps(tmp_path, [10, 10, 50], transfer=7 * MS)
    stats = disttrace.stats(tmp_path)
    assert saved(stats, "group=default") == STEPS * 7 * MS


def test_equal_ranks_leave_nothing_to_gain(tmp_path: Path) -> None:
    """Nothing is late: the text says nothing of it either."""
    work_steps(tmp_path, [10, 10, 10], transfer=0)
    stats = disttrace.stats(tmp_path)
    assert stats.what_if.height == 0
    assert "what if" not in stats.text()


def test_a_stage_of_a_pipeline_that_is_slow_now_and_then(tmp_path: Path) -> None:
    """Rank 1 takes 5 ms between its messages, and 35 in every fourth: 30 ms each are gained."""
    first, second = workers(tmp_path, 2)
    out = first.message(first.world(), "send", 1)
    back = first.message(first.world(), "recv", 1)
    take = second.message(second.world(), "recv", 0)
    give = second.message(second.world(), "send", 0)
    at = START
    for number in range(1, STEPS + 1):
        work = 35 if number % 4 == 0 else 5
        first.run(out, at, MS, q=number)
        second.run(take, at, MS, q=number)
        done = at + MS + work * MS
        first.run(back, at + 2 * MS, done + MS - (at + 2 * MS), q=number)
        second.run(give, done, MS, q=number)
        at = done + 6 * MS
    first.leave(at)
    second.leave(at)
    stats = disttrace.stats(tmp_path)
    assert saved(stats, "rank=1") == STEPS // 4 * 30 * MS
    assert saved(stats, "rank=0") == 0


def test_of_a_long_run_the_newest_part_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were a window that was asked for: gains and critical path are of that."""
    end = work_steps(tmp_path, [10, 10, 50], transfer=2 * MS, steps=400)
    monkeypatch.setattr(scheduling, "MOST_OPERATIONS", 300)
    part = disttrace.stats(tmp_path)
    assert part.without("rank=2")["saved_ns"] == pytest.approx(100 * 40 * MS, rel=0.02)
    assert part.without("line=train.py:10")["saved_ns"] == part.without("rank=2")["saved_ns"]
    assert part.critical_path.row(0, named=True)["rank"] == 2
    assert part.critical_path["time_ns"].sum() == pytest.approx(end / 4, rel=0.02)
    assert "of the newest" in part.text()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("rank=7", "nothing of that name communicates; there are 0, 1, 2"), ("rank=x", "nothing"),
        ("colour=red", "not understood"), ("rank", "not understood"),
        ("line=other.py:3", "nothing of that name"), ("host=nobody", "nothing of that name"),
        ("group=none", "nothing of that name"), ("group=default,rank=1", "left out by itself"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_answered(tmp_path: Path, question: str, answer: str) -> None:
    """One sentence says what is wrong with it, and what there is."""
    work_steps(tmp_path, [10, 10, 50])
    with pytest.raises(ViewerError, match=answer):
        disttrace.stats(tmp_path).without(question)


def test_the_critical_path_is_as_long_as_the_run(tmp_path: Path) -> None:
    """It leads through the late rank, its work and the transfers; start-up is no part of it."""
    end = work_steps(tmp_path, [10, 10, 50, 17], transfer=2 * MS)
    path = disttrace.stats(tmp_path).critical_path
    end -= START + 50 * MS
    assert int(path["time_ns"].sum()) == end
    rows = [(row["rank"], row["kind"], row["line"]) for row in path.to_dicts()]
    assert rows[0] == (2, "outside", "train.py:10")
    outside = path.filter(kind="outside")["time_ns"].sum()
    assert (outside, end - outside) == ((STEPS - 1) * 50 * MS, STEPS * 2 * MS)
