"""States of large jobs, of which only a batch at a time is unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.diagnosis.verdict import verdict
from disttrace_viewer.load.discover import discover
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.states import merged
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.merged import Merged, Packed, merge
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import Recent, State, pack, unpack
from disttrace_viewer.views.terminal.diagnosis import lines
from support.scenes import nobody_knows
from support.splits import differing
from support.states import hang


@pytest.fixture
def at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where states are too many to stay unpacked."""
    monkeypatch.setattr(merged, "KEPT", 0)


def reduced(path: Path, window: int | None = None) -> list[State]:
    """The states of all journals in a folder."""
    found = []
    for files in discover([str(path)], Problems()):
        state = reduce(files, window=window)
        assert state is not None
        found.append(state)
    return found


def packed(*batches: list[State]) -> Packed:
    """States in batches."""
    found = Packed()
    for batch in batches:
        found.add(pack(batch))
    return found


@pytest.mark.usefixtures("at_a_time")
def test_a_batch_at_a_time_gives_the_findings_of_all(tmp_path: Path) -> None:
    """Also the report, in which all processes stand."""
    hang(tmp_path, size=7)
    states = reduced(tmp_path)
    whole = verdict(merge(states), look=nobody_knows)
    halves = Merged(packed(states[4:], states[2:4], states[:2]))
    found = verdict(halves, look=nobody_knows)
    assert found.findings == whole.findings
    assert [*lines(found.case, found.findings)] == [*lines(whole.case, whole.findings)]
    assert found.to_dict() == whole.to_dict()
    assert differing(tmp_path) == []


@pytest.mark.usefixtures("at_a_time")
def test_of_two_states_that_which_read_more_counts(tmp_path: Path) -> None:
    """In whatever order they come, in batches or by themselves."""
    hang(tmp_path, count=200)
    tails, whole = unpack(pack(reduced(tmp_path, window=200))), unpack(pack(reduced(tmp_path)))
    assert dict(packed(tails, whole)) == dict(packed(whole, tails)) == dict(packed(whole))
    some = merge([Merged(packed(tails)), *whole[:2]])
    assert dict(some.states) == {s.id: s for s in (*whole[:2], *tails[2:])}
    assert dict(merge([some, *tails]).states) == dict(some.states)
    assert some.partial == {s.id for s in tails[2:]}
    again = verdict(merge([some, *whole[2:]]), look=nobody_knows)
    assert again.findings == verdict(merge(whole), look=nobody_knows).findings


def test_definitions_of_neighbouring_batches_are_one_object() -> None:
    """Those that neither of two has are forgotten; of a hundred thousand ranks each has its own."""
    found: Recent[str, list[int]] = Recent()
    first = found.put("a", [1])
    found.turn()
    assert found.get("a") is first
    found.turn()
    assert found.get("a") is first, "it was asked for in the batch before"
    found.turn()
    found.turn()
    assert found.get("a") is None


@pytest.mark.usefixtures("at_a_time")
def test_what_processes_are_alike_in_is_one_object(tmp_path: Path) -> None:
    """Also of several batches: words of the process, its variables, its calls and their order."""
    hang(tmp_path, size=6)
    states = reduced(tmp_path)
    trace, sample = trace_of(Merged(packed(states[:3], states[3:])))
    for name in ("job", "role", "env", "argv", "versions", "threads"):
        assert len({id(getattr(p, name)) for p in trace.processes}) == 1, name
    for name in ("op", "backend", "shapes", "dtypes"):
        assert len({id(getattr(op.call, name)) for op in sample.ops if op.seq}) == 1, name
    assert len({id(course) for course in sample.courses.values()}) == len(
        set(sample.courses.values())
    )
