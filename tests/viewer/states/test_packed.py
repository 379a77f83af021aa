"""States as batches of bytes, and merged again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import State, merge, pack, unpack
from support.states import hang


def reduced(path: Path, window: int | None = None) -> list[State]:
    """The states of all journals in a folder."""
    found = []
    for files in evidence([str(path)], Problems()):
        state = reduce(files, window=window)
        assert state is not None
        found.append(state)
    return found


def test_of_two_states_that_which_read_more_counts(tmp_path: Path) -> None:
    """In whatever order they come, by themselves or merged."""
    hang(tmp_path, count=200)
    tails, whole = unpack(pack(reduced(tmp_path, window=200))), unpack(pack(reduced(tmp_path)))
    assert merge([*tails, *whole]) == merge([*whole, *tails]) == merge(whole)
    some = merge([merge(tails), *whole[:2]])
    assert some.states == {s.id: s for s in (*whole[:2], *tails[2:])}
    assert merge([some, *tails]) == some
    assert some.partial == {s.id for s in tails[2:]}


def test_what_calls_are_alike_in_is_one_object(tmp_path: Path) -> None:
    """Also of several batches."""
    hang(tmp_path, size=6)
    states, known = reduced(tmp_path), dict[str, Any]()
    parts = [unpack(pack(part), known) for part in (states[:3], states[3:])]
    _, sample = trace_of(merge([*parts[0], *parts[1]]))
    calls = {op.call.index: op.call for op in sample.ops}.values()
    assert 3 * len({id(call.signature) for call in calls}) <= len(calls)
