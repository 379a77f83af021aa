"""Who makes the others wait: own delays, told apart from those that were inherited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS, Journal
from support.scenes import all_gone, findings, finds, ranks, steps

LATE = 40 * MS
COUNT = 20


def late_steps(
    folder: Path, delays: dict[int, int] | Callable[[int], dict[int, int]], *, world_size: int = 3,
    count: int = COUNT, works: int = MS,
) -> None:  # fmt: skip
    """All_reduces, each rank after its delay (of that step) since the last one, and all's work."""
    let_go = 200 * MS
    jobs = steps(folder, world_size)
    calls = [journal.collective(group) for journal, group in jobs]
    for number in range(3, 3 + count):
        late = delays(number) if callable(delays) else delays
        begins = [let_go + works + late.get(journal.rank or 0, 0) for journal, _ in jobs]
        end = max(begins) + MS // 5
        for (journal, _), call, begin in zip(jobs, calls, begins, strict=True):
            journal.run(call, t=begin, d=end - begin, q=number)
        let_go = end
    for journal, _ in jobs:
        journal.leave(let_go + MS)


def test_a_straggler_is_found_with_its_delay_and_its_line(tmp_path: Path) -> None:
    """Rank 1 comes 40 ms late every time; the two others wait 1.6 s in all."""
    late_steps(tmp_path, {1: LATE})
    found = finds(tmp_path, "straggler", [1], severity="warning", waiting=[0, 2], look=all_gone)
    assert found.summary == (
        "Rank 1 comes late to all_reduce by 40 ms in 20 of 22 cases before train.py:10 in main;"
        " ranks 0, 2 waited 1.6 s for it in total."
    )


@pytest.mark.parametrize(
    ("late", "told"),
    [({3}, 0), ({3, 4, 5}, 0), ({9, 10, 11}, 0), ({4, 9, 14, 19}, 1)],
    ids=["once", "at the start", "for a while", "through the run"],
)
def test_a_slow_start_is_no_habit(tmp_path: Path, late: set[int], told: int) -> None:
    """An import, a compilation, downloads that were tried again: most of the time went there."""
    late_steps(tmp_path, lambda number: {1: 900 * MS} if number in late else {})
    assert [f.kind for f in findings(tmp_path, look=all_gone)] == ["straggler"] * told


def test_two_equally_slow_ranks_are_both_found(tmp_path: Path) -> None:
    """Each of them is late, although neither makes the other wait; told in one order each time."""
    late_steps(tmp_path, {1: LATE, 3: LATE}, world_size=5)
    for _ in range(8):
        found = findings(tmp_path, look=all_gone)
        assert {f.kind for f in found} == {"straggler"}
        assert [ranks(tmp_path, f.culprits) for f in found] == [[1], [3]]


def test_who_is_late_now_and_then_is_found(tmp_path: Path) -> None:
    """Rank 0 evaluates for 300 ms before every tenth step, and nobody else is ever late."""
    late_steps(tmp_path, lambda n: {} if n % 10 else {0: 300 * MS}, count=120, works=20 * MS)
    finds(tmp_path, "straggler", [0], look=all_gone)


@pytest.mark.parametrize("delays", [{0: LATE, 1: LATE, 2: LATE}, {1: 9 * MS}])
def test_equal_and_small_delays_are_not_told(tmp_path: Path, delays: dict[int, int]) -> None:
    """All compute for 40 ms; nine milliseconds are below what is worth a warning."""
    late_steps(tmp_path, delays)
    assert findings(tmp_path, look=all_gone) == []


def overlapping(folder: Path, *, waits: int, buckets: int = 1) -> list[RuleFinding]:
    """Three ranks issue ``buckets`` a step, rank 1 40 ms after, and await them later."""
    let_go = 200 * MS
    jobs = steps(folder, 3)
    calls = [journal.collective(group, asynchronous=True) for journal, group in jobs]
    for step in range(COUNT):
        begins = [let_go + MS + LATE * (journal.rank == 1) for journal, _ in jobs]
        over = max(begins) + buckets * MS
        ends = []
        for (journal, _), call, begin in zip(jobs, calls, begins, strict=True):
            first = begin
            issued = []
            for bucket in range(buckets):
                at = begin + bucket * MS
                n = journal.issue(call, at, q=3 + step * buckets + bucket)
                issued.append((n, at))
            for n, at in issued:
                waited = max(first + waits, at + MS)
                journal.record(w=n, d=waited - at)
                journal.end(n, max(over, waited) - at)
                ends.append(max(over, waited))
        let_go = max(ends)
    for journal, _ in jobs:
        journal.leave(let_go + MS)
    return findings(folder, look=all_gone)


@pytest.mark.parametrize(("waits", "buckets", "told"), [
    (50 * MS, 1, ()), (15 * MS, 1, ("by 25 ms in 20 of", "waited 1.0 s for it in total")),
    (3 * MS, 3, ("waited 1.5 s for it in total",)),
])  # fmt: skip
def test_lateness_counts_from_where_the_others_wait(
    tmp_path: Path, waits: int, buckets: int, told: tuple[str, ...]
) -> None:
    """After 50 ms, or 15, of computing; what a late rank issues in a row is late by one delay."""
    found = overlapping(tmp_path, waits=waits, buckets=buckets)
    late = [("straggler", [1])] * bool(told)
    assert [(f.kind, ranks(tmp_path, f.culprits)) for f in found] == late
    assert all(words in found[0].summary for words in told)


def ball(journal: Journal, call: int, begin: int, end: int, number: int) -> None:
    journal.run(call, t=begin, d=end - begin, q=number)


def test_a_late_sender_is_found_and_its_partner_is_not(tmp_path: Path) -> None:
    """Rank 1 holds the ball for 20 ms in each round of a ping-pong."""
    (one, group), (two, _) = steps(tmp_path, 2)
    out, back = one.message(group, "send", 1), one.message(group, "recv", 1)
    away = two.stack(("pong.py", 7, "answer"))
    taken, sent = two.message(group, "recv", 0), two.message(group, "send", 0, stack=away)
    t = 200 * MS
    for number in range(1, COUNT + 1):
        ball(one, out, t, t + MS, number)
        ball(two, taken, t, t + MS, number)
        ball(one, back, t + MS, t + 22 * MS, number)
        ball(two, sent, t + 21 * MS, t + 22 * MS, number)
        t += 22 * MS
    for journal in (one, two):
        journal.leave(t)
    found = finds(tmp_path, "late_sender", [1], look=all_gone)
    assert "sends late by 20 ms in 20 of 20 cases before pong.py:7 in answer" in found.summary


@pytest.mark.parametrize(("waits", "kinds"), [(50 * MS, []), (4 * MS, ["late_sender"])])
def test_a_receive_posted_ahead_counts_later(tmp_path: Path, waits: int, kinds: list[str]) -> None:
    """Rank 1 sends 40 ms after rank 0 posted the receive, which is awaited ``waits`` later."""
    (one, group), (two, _) = steps(tmp_path, 2)
    taken, back = one.message(group, "recv", 1), one.message(group, "send", 1)
    sent, got = two.message(group, "send", 0), two.message(group, "recv", 0)
    t = 200 * MS
    for number in range(1, COUNT + 1):
        n = one.issue(taken, t, q=number)
        one.record(w=n, d=waits)
        one.end(n, max(waits, 41 * MS))
        ball(two, sent, t + 40 * MS, t + 41 * MS, number)
        t += max(waits, 41 * MS) + MS
        ball(one, back, t, t + MS, number)
        ball(two, got, t - MS, t + MS, number)
        t += MS
    for journal in (one, two):
        journal.leave(t)
    assert [f.kind for f in findings(tmp_path, look=all_gone)] == kinds


@pytest.mark.parametrize("op", ["send", "all_reduce"])
@pytest.mark.parametrize("works", [0, 30 * MS])
def test_who_enqueues_later_by_a_constant_is_not_late(tmp_path: Path, op: str, works: int) -> None:
    """Hosts that only enqueue are apart all along; late is who works for 30 ms before each."""
    jobs = steps(tmp_path, 2)
    for (journal, group), other in zip(jobs, ("recv", op), strict=True):
        rank = journal.rank or 0
        if op == "send":
            call = journal.message(group, other, 1 - rank, backend="nccl", device="cuda")
        else:
            call = journal.collective(group, backend="nccl", device="cuda")
        for number in range(COUNT):
            t = 200 * MS + rank * 375 * MS + number * (MS // 2 + rank * works)
            n = journal.issue(call, t, q=number + 1)
            over = 575 * MS + number * works + (number + 1) * MS
            journal.record(c=n, d=over - t)
        journal.leave(1500 * MS)
    found = findings(tmp_path, look=all_gone)
    told = [("late_sender" if op == "send" else "straggler", [1])] * bool(works)
    assert [(f.kind, ranks(tmp_path, f.culprits)) for f in found] == told


@pytest.mark.parametrize("slow", [None, 3])
def test_the_first_of_equal_workers_is_not_late(tmp_path: Path, slow: int | None) -> None:
    """Rank 0 takes from ranks 1 to 3 in turn; each works for 30 ms, or one of them for 90 ms."""
    (server, group), *workers = steps(tmp_path, 4)
    takes = {rank: server.message(group, "recv", rank) for rank in (1, 2, 3)}
    t = 200 * MS
    for number in range(1, COUNT + 1):
        ready = {rank: t + (90 if rank == slow else 30) * MS for rank in takes}
        now = t
        for rank, call in takes.items():
            over = max(now, ready[rank]) + MS
            ball(server, call, now, over, number)
            now = over
        for rank, (journal, mine) in zip(ready, workers, strict=True):
            call = journal.message(mine, "send", 0, stack=("worker.py", 7, "work"))
            ball(journal, call, ready[rank], max(ready[rank], t + 30 * MS) + MS, number)
            back = journal.message(mine, "recv", 0, stack=("worker.py", 9, "answer"))
            ball(journal, back, ready[rank] + 2 * MS, now + MS, number)
            ball(server, server.message(group, "send", rank), now, now + MS, number)
            now += MS
        t = now + MS
    for journal, _ in [(server, group), *workers]:
        journal.leave(t)
    found = findings(tmp_path, look=all_gone)
    told = [] if slow is None else [("late_sender", [slow])]
    assert [(f.kind, ranks(tmp_path, f.culprits)) for f in found] == told


def paused_steps(folder: Path, late_ns: int, *, steps_of: int, calls: int, every: int) -> None:
    """``calls`` equal collectives of one line, one of another; every so-manieth step a pause."""
    jobs = steps(folder, 3, count=0)
    rows = [
        (one.collective(group), one.collective(group, stack=("t.py", 90, "n")))
        for one, group in jobs
    ]
    let_go, number = 200 * MS, 0
    for step in range(steps_of):
        for call in range(calls + 1):
            number += 1
            away = late_ns if not call and step % every == every - 1 else 0
            begins = [let_go + 5 * MS + (away if rank == 0 else 0) for rank in range(3)]
            end = max(begins) + MS // 5
            for (journal, _), row, begin in zip(jobs, rows, begins, strict=True):
                journal.run(row[call == calls], t=begin, d=end - begin, q=number)
            let_go = end
    for journal, _ in jobs:
        journal.leave(let_go + MS)


def test_a_few_pauses_that_cost_much_are_found(tmp_path: Path) -> None:
    """Rank 0 is away for 300 ms eight times, which is most of the run; three times are enough."""
    paused_steps(tmp_path / "eight", 300 * MS, steps_of=56, calls=1, every=7)
    paused_steps(tmp_path / "three", 300 * MS, steps_of=21, calls=1, every=7)
    for name, times in (("eight", "8 of 56"), ("three", "3 of 21")):
        finds(tmp_path / name, "straggler", [0], look=all_gone, says=f"by 300 ms in {times} cases")


@pytest.mark.parametrize(("late_ns", "steps_of"), [(300 * MS, 14), (40 * MS, 21)])
def test_a_few_pauses_that_prove_nothing(tmp_path: Path, late_ns: int, steps_of: int) -> None:
    """Twice, or so short that a busy machine explains it."""
    paused_steps(tmp_path, late_ns, steps_of=steps_of, calls=1, every=7)
    assert findings(tmp_path, look=all_gone) == []


def test_the_first_of_several_equal_calls_of_a_line_is_found(tmp_path: Path) -> None:
    """Each step gathers eight times at one line, and rank 0 is late to the first of them."""
    paused_steps(tmp_path, 30 * MS, steps_of=15, calls=8, every=1)
    finds(tmp_path, "straggler", [0], look=all_gone, says="by 30 ms in 15 of 15 cases")


def test_small_delays_of_others_hide_no_few_long_ones(tmp_path: Path) -> None:
    """On a busy machine those are late now and then too: four pauses cost most."""

    def late(number: int) -> dict[int, int]:
        return {0: 300 * MS} if number % 7 == 2 else {1: 8 * MS} if number % 3 == 0 else {}

    late_steps(tmp_path, late, count=28, works=2 * MS)
    finds(tmp_path, "straggler", [0], look=all_gone, says="by 300 ms in 4 of 30 cases")
