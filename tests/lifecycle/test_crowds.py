"""Of very many ranks that stand alike a few are looked at, and the verdict is that on all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.companion.told import unknown_ranks, unpacked
from disttrace_viewer.diagnosis.live import open_waits, waits_of
from disttrace_viewer.diagnosis.positions import positions
from disttrace_viewer.diagnosis.report import report
from disttrace_viewer.diagnosis.verdict import Verdict
from disttrace_viewer.states.form import crowds
from disttrace_viewer.states.form.alike import Like, is_pending
from disttrace_viewer.states.form.crowds import Question, parted
from disttrace_viewer.states.form.state import State, checked, encoded
from disttrace_viewer.states.merged import Merged
from support.alike import Hosts, answers, as_one, hosts_of, judged, timeless

TOLD = ("kind", "severity", "certainty", "summary", "hint", "culprit_ranks", "waiting_ranks")


def said(found: Verdict) -> dict[str, Any]:
    """What people and programs are told, without for how long it has lasted."""
    case = found.case
    told = [{k: one[k] for k in TOLD} for one in report(case, found.findings)["findings"]]
    told.sort(key=lambda one: str(one["summary"]))
    lines = [*positions(case, found.findings)]
    text = orjson.dumps([told, lines]).decode()
    return {
        "text": timeless(text),
        "incomplete": found.incomplete,
        "unknown": unknown_ranks(case.evidence.trace),
    }


def both_ways(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, Verdict]:
    """The verdict on all by themselves, and with crowds."""
    local = next(iter(hosts.values()))
    told = unpacked(as_one(answers(hosts), 4), local)
    monkeypatch.setattr(crowds, "MOST_BY_THEMSELVES", 1 << 30)
    every = judged(hosts, told)
    monkeypatch.setattr(crowds, "MOST_BY_THEMSELVES", 0)
    return every, judged(hosts, told)


def size(found: Verdict) -> int:
    return len(found.case.evidence.trace.processes)


FAULTS = ("tp", "msg", "mp", "world", "dp_scatter", "dp_gather")


@pytest.mark.parametrize(
    ("fault", "shape"),
    [
        ("tp", {"pp": 2, "dp": 16, "tp": 8}),
        ("dp_scatter", {"pp": 1, "dp": 16, "tp": 8}),
        ("mp", {"pp": 2, "dp": 4, "tp": 8}),
        *(
            pytest.param(fault, {"pp": 4, "dp": 8, "tp": 4}, marks=pytest.mark.long)
            for fault in FAULTS
        ),
    ],
)
def test_it_is_the_verdict_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, shape: dict[str, int]
) -> None:
    """The same words, ranks and places, whatever group the others wait in."""
    hosts = hosts_of(tmp_path, fault=fault, **shape)
    every, few = both_ways(hosts, monkeypatch)
    assert said(few) == said(every)
    assert said(every)["incomplete"] == ()  # of whom only that is known whom he is like
    assert size(few) < 0.8 * size(every)
    assert open_waits(few.case) == open_waits(every.case)
    assert waits_of(few.case, few.findings) <= waits_of(every.case, every.findings)


def test_it_grows_with_the_kinds_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with the ranks: what is wrong with one group costs as much in a job four times as
    large.
    """
    sizes = []
    for dp in (8, 32):
        hosts = hosts_of(tmp_path / str(dp), fault="mp", pp=2, dp=dp, tp=4)
        sizes.append(size(both_ways(hosts, monkeypatch)[1]))
    assert max(sizes) - min(sizes) < 8


def _waited_in(state: State) -> list[dict[str, Any]]:
    numbers = {row[1] for row in state.ops if is_pending(row)}
    return [call for n, call in state.numbered["call"].items() if int(n) in numbers]


def _other_shape(state: State) -> None:
    for call in _waited_in(state):
        call["shapes"] = [[7]]


def _other_operation(state: State) -> None:
    for call in _waited_in(state):
        call.update(op="broadcast", root=0)


def _one_more(state: State) -> None:
    state.courses = [[group, backend, n + 3, 7, 7] for group, backend, n, _, _ in state.courses]


def _later(state: State) -> None:
    for row in filter(is_pending, state.ops):
        row[6] = None if row[6] is None else row[6] + 1


FEW, HALF, MOST = (11, 19, 27, 35, 51), (*range(40, 104),), (*range(1, 127),)
CHANGES = (_other_shape, _other_operation, _one_more, _later)


@pytest.mark.parametrize(
    ("fault", "odd", "change"),
    [
        ("dp_scatter", FEW, _other_shape),
        ("dp_scatter", MOST, _one_more),
        ("world", FEW, _other_operation),
        ("world", HALF, _later),
        *(
            pytest.param(fault, odd, change, marks=pytest.mark.long)
            for fault in ("dp_scatter", "world", "mp")
            for odd in (FEW, HALF, MOST)
            for change in CHANGES
        ),
    ],
)
def test_those_who_disagree_are_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    odd: tuple[int, ...],
    change: Callable[[State], None],
) -> None:
    """How many members of a group say what decides who of them is odd."""
    hosts = hosts_of(tmp_path, fault=fault, pp=1, dp=16, tp=8)
    changed = {
        host: Merged({s.id: _changed(s, change, odd) for s in of.states.values()})
        for host, of in hosts.items()
    }
    every, few = both_ways(changed, monkeypatch)
    assert said(few) == said(every)
    if fault == "world":
        assert size(few) < 0.3 * size(every)


def _changed(state: State, change: Callable[[State], None], ranks: Iterable[int]) -> State:
    found = checked(orjson.loads(encoded(state)))
    if found.identity["rank"] in ranks:
        change(found)
    return found


def test_who_is_not_heard_of_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two hosts silent, whose ranks are in groups with all others."""
    hosts = hosts_of(tmp_path, fault="tp", pp=1, dp=16, tp=8)
    silent = [*hosts][3:5]
    heard = {host: of for host, of in hosts.items() if host not in silent}
    every, few = both_ways(heard, monkeypatch)
    assert said(few) == said(every)
    assert said(few)["unknown"] == (*range(24, 40),)


def a_like(rank: int, *groups: str) -> Like:
    return Like(f"{rank:032x}", "h", 1, rank, 0, None, groups, (), partial=False)


def a_question(*waits: str, disputed: str = "", wanted: int = -1, known: str = "") -> Question:
    return Question(dict.fromkeys(waits, ("x",)), {disputed}, {wanted}, {known})


def ranks_of(likes: Iterable[Like]) -> list[int]:
    return [one.rank for one in likes]


def test_two_of_one_group_tell_of_the_others() -> None:
    likes = [a_like(rank, "all", f"own{rank}") for rank in range(9)]
    found = parted([likes], a_question("all"))
    assert [(n, ranks_of(of)) for n, of in found.kept] == [(0, [0, 1])]
    (crowd,) = found.crowds[0, ("all",)]
    assert ranks_of(crowd.likes) == [*range(2, 9)]
    assert crowd.whole
    assert crowd.shared == {"all"}


def test_who_is_asked_for_by_name_is_told_of_by_nobody() -> None:
    likes = [a_like(rank, "all") for rank in range(9)]
    found = parted([likes], a_question("all", wanted=5))
    assert [5] in [ranks_of(of) for _, of in found.kept]
    assert all(5 not in ranks_of(c.likes) for rows in found.crowds.values() for c in rows)


def test_groups_of_one_make_are_told_of_by_two() -> None:
    """A hundred groups of four that wait alike, and one of which somebody is elsewhere."""
    likes = [a_like(rank, f"g{rank // 4}") for rank in range(400)]
    others = [a_like(400 + n, "g7") for n in range(1)]
    waits = [f"g{n}" for n in range(100)]
    found = parted([likes, others], a_question(*waits))
    kept = {rank for _, of in found.kept for rank in ranks_of(of)}
    groups = {rank // 4 for rank in kept if rank < 400}
    assert groups == {0, 1, 7}
    told = [c for rows in found.crowds.values() for c in rows]
    assert sum(len(c.likes) for c in told) + len(kept) == 401
    away = [c for c in told if not c.whole]
    assert {one.groups[0] for c in away for one in c.likes} == {*waits} - {"g0", "g1", "g7"}
    assert all(c.shared == frozenset() for c in away)
    disputed = parted([likes, others], a_question(*waits, disputed="g50")).kept
    assert {rank // 4 for _, of in disputed for rank in ranks_of(of) if rank < 400} == {0, 1, 7, 50}


def test_who_tells_is_in_the_groups_that_are_shared() -> None:
    """Each of a row and of a column: the columns are here, and of the rows those of one make."""
    likes = [
        a_like(10 * row + column, f"row{row}", f"column{column}")
        for row in range(40)
        for column in range(4)
    ]
    waits = [*(f"row{n}" for n in range(40)), *(f"column{n}" for n in range(4))]
    found = parted([likes], Question(dict.fromkeys(waits, ("x",)), frozenset(), (), {"column3"}))
    for rows in found.crowds.values():
        for crowd in rows:
            teller = crowd.tellers[-1]
            assert all(name in teller.groups for name in crowd.shared)
            for one in crowd.likes:
                assert {*one.groups} & {*teller.groups} == {*crowd.shared} or crowd.whole
    kept = sum(len(of) for _, of in found.kept)
    told = sum(len(c.likes) for rows in found.crowds.values() for c in rows)
    assert kept + told == 160
    assert kept < 40


@pytest.mark.parametrize("length", [8, 30, 400])
def test_nobody_tells_of_whom_something_else_holds_up(length: int) -> None:
    """In a row of pairs that wait for one another each is as far from the end as no other one, so
    no two are of one make; and where the row is longer than what is looked at, all are.
    """
    from_the_middle = [*range(length // 2, length), *range(length // 2)]
    likes = [a_like(rank, f"pair{rank}", f"pair{rank + 1}") for rank in from_the_middle]
    waits = [f"pair{n}" for n in range(length + 1)]
    found = parted([likes], a_question(*waits, known="pair0"))
    assert sorted(r for _, of in found.kept for r in ranks_of(of)) == [*range(length)]
    assert not found.crowds
    settled = crowds._coloured({(0, one.groups): [one] for one in likes}, {"pair0"})
    assert (settled is None) == (length == 400)
