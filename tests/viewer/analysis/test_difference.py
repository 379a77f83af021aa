"""Two sequences of calls: which are the same, where they part; cycles and rings of graphs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from disttrace_viewer.analysis import align, streams
from disttrace_viewer.analysis.align import (
    AlignedSide,
    compare,
    medians_if_slower,
)
from disttrace_viewer.analysis.streams import Callers, RunCall, tokens
from disttrace_viewer.evidence.wait import cycles, ring
from disttrace_viewer.trace.process import Frame

MS = 1_000_000


def side(text: str, **arguments: int) -> AlignedSide:
    """Letters are calls; ``b=2`` gives those of a letter other arguments."""
    return AlignedSide([ord(c) for c in text], [arguments.get(c, 1) for c in text])


def told(a: AlignedSide, b: AlignedSide) -> list[tuple[str, str]]:
    """Kind and call of each difference; a side that has ended is ``-``."""
    found = []
    for one in compare(a, b):
        shown = zip((a, b), one.places, strict=True)
        letters = "".join("-" if at is None else chr(side.tokens[at]) for side, at in shown)
        found.append((one.kind, letters))
    return found


def call(
    op: str, *lines: int, size: int = 4, count: int = 40, file: str = "/a/train.py"
) -> RunCall:
    """A call from nested functions ``f0``, ``f1``, ... of one file, innermost first."""
    stack = tuple(Frame(file, line, f"f{i}") for i, line in enumerate(lines))
    return RunCall(op, "default", stack, size, count)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("iabcabcabcz", "iabcabcabcz", []),
        ("abc" * 9, "ac" * 9, [("first_divergence", "bc"), ("vanished", "b-")]),
        ("ac" * 9, "abc" * 9, [("first_divergence", "cb"), ("appeared", "-b")]),
        ("bac" * 9, "ac" * 9, [("first_divergence", "ba"), ("vanished", "b-")]),
        ("abc" * 40, ("abc" * 9 + "abcd") * 4, [("first_divergence", "ad"), ("appeared", "-d")]),
        ("abbb" * 9, "abb" * 9, [("first_divergence", "ba"), ("rarer", "bb")]),
        ("abc" * 9, "acb" * 9, [("first_divergence", "bc"), ("order", "cc")]),
        ("abc" * 9, "bac" * 9, [("first_divergence", "ab"), ("order", "bb")]),
        ("abc" * 9, "abc" * 12, [("first_divergence", "-a"), ("steps", "aa")]),
        ("", "", []),
        ("", "a", [("first_divergence", "-a"), ("appeared", "-a")]),
    ],
)
def test_what_differs(a: str, b: str, expected: list[tuple[str, str]]) -> None:
    """The call that was changed, and none beside it."""
    assert told(side(a), side(b)) == expected


def test_sizes_of_data_are_no_change() -> None:
    """A call whose size varies all the time has other ones in another run."""
    a = AlignedSide([1] * 40, list(range(40)))
    b = AlignedSide([1] * 40, list(range(100, 140)))
    assert [one.kind for one in compare(a, b)] == [align.FIRST]


def test_callers_tell_apart_what_a_helper_does() -> None:
    """The helper's line is the same one, and a second caller of it is new."""
    a = [call("all_reduce", 5, 10)]
    b = [call("all_reduce", 5, 10), call("all_reduce", 5, 12, size=9)]
    of_a, of_b = tokens(a, b)
    assert of_b[0] == of_a[0] != of_b[1]
    assert Callers(a).telling(a[0]) == Frame("/a/train.py", 10, "f1")
    other = replace(call("barrier", 6, 10), process=1)
    assert Callers([*a, other]).telling(a[0]) == Frame("/a/train.py", 10, "f1")
    assert Callers([*a, call("barrier", 6, 10)]).telling(a[0]) is None
    assert Callers(b).telling(b[1]) == Frame("/a/train.py", 12, "f1")


def test_swapped_lines_are_the_same_calls() -> None:
    """What changed is their order; the line alone makes no call the same."""
    a = [call("all_reduce", 10), call("barrier", 11)]
    b = [call("barrier", 10), call("all_reduce", 11)]
    of_a, of_b = tokens(a, b)
    assert of_b == of_a[::-1]
    of_a, of_b = tokens([call("all_reduce", 10)], [call("reduce", 10)])
    assert of_a != of_b


def test_slower_is_beyond_what_each_run_varies() -> None:
    """A fifth, a millisecond, and apart; a first time that takes long is none."""
    fast = [50 * MS, *(MS + i * 10_000 for i in range(30))]
    assert medians_if_slower(fast, [time * 3 for time in fast]) == (1_150_000, 3_450_000)
    assert medians_if_slower(fast, fast) is None
    assert medians_if_slower(fast, [time + MS // 2 for time in fast]) is None
    spread = [MS * (1 + i % 10) for i in range(31)]
    assert medians_if_slower(spread, [time + 3 * MS for time in spread]) is None
    assert medians_if_slower(fast[:8], [time * 3 for time in fast[:8]]) is None


def test_lines_of_a_generated_function_are_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound no pair of them is looked at."""
    a = [call("all_reduce", line) for line in range(2_000)]
    b = [*a, call("barrier", 2_001)]
    monkeypatch.setattr(streams, "_likeness", None)
    of_a, of_b = tokens(a, b)
    assert of_b[:-1] == of_a


def test_a_cycle_comes_before_those_that_it_waits_for() -> None:
    """5 waits for 2 as well, through 7, and 3 for 4."""
    edges = {1: (2,), 2: (1,), 3: (0, 4), 0: (3,), 4: (5,), 5: (4, 7), 7: (2,)}
    assert cycles(edges) == [(0, 3), (4, 5), (1, 2)]
    # Five thousand ranks in one ring.
    size = 5000
    assert cycles({n: ((n + 1) % size,) for n in range(size)}) == [tuple(range(size))]


def test_the_ring_is_a_shortest_one() -> None:
    """Of a knot of many cycles; the longest one comes first."""
    edges = {0: (1,), 1: (2,), 2: (3, 1), 3: (0, 4), 4: (5,), 5: (3,)}
    assert ring(edges, range(6)) == [1, 2]
    assert ring({0: (1,), 1: (2,), 2: (3,), 3: (0, 4), 4: (5,), 5: (3,)}, range(6)) == [3, 4, 5]
    # A chain, and edges that leave the members.
    assert ring({0: (1,), 1: (2,), 2: ()}, range(3)) == []
    assert ring({0: (1,), 1: (2,), 2: (0,)}, (0, 1)) == []
    assert cycles({}) == []


@pytest.mark.parametrize("seed", range(40))
def test_drawn_graphs_against_what_reaches_what(seed: int) -> None:
    """Cycles are the classes of nodes that reach one another; a ring is as short as any."""
    drawn = random.Random(seed)
    size = drawn.randrange(2, 9)
    nodes, most = range(size), min(3, size)
    edges = {node: tuple(drawn.sample(nodes, drawn.randrange(most))) for node in nodes}
    away = {node: distances(edges, node) for node in edges}
    mutual = {a: {b for b in edges if b in away[a] and a in away[b]} for a in edges}
    classes = {tuple(sorted({a, *mutual[a]})) for a in edges}
    wanted = {part for part in classes if len(part) > 1}
    found = cycles(edges)
    assert len(found) == len(wanted)
    assert set(found) == wanted
    for place, part in enumerate(found):
        later = {node for other in found[place + 1 :] for node in other}
        assert not any(part[0] in away[node] for node in later)
        # A node may lead to itself as well; nobody waits for himself, so the walk is without.
        walk = {a: tuple(b for b in edges[a] if b != a) for a in edges}
        way = ring(walk, part)
        assert all(b in walk[a] for a, b in zip(way, [*way[1:], way[0]], strict=True))
        assert len(way) == min(distances(walk, node)[node] for node in part)


def distances(edges: Mapping[int, Sequence[int]], start: int) -> dict[int, int]:
    """How many edges away each node is that can be reached, the start too where a cycle leads."""
    found: dict[int, int] = {}
    reached, away = {*edges[start]}, 1
    while reached:
        found |= dict.fromkeys(reached, away)
        reached = {b for a in reached for b in edges[a]} - found.keys()
        away += 1
    return found
