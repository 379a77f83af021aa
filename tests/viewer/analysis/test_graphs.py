"""Cycles and rings of directed graphs, by hand and drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from disttrace_viewer.evidence.wait import cycles, ring


def test_a_cycle_comes_before_those_that_it_waits_for() -> None:
    """5 waits for 2 as well, through 7, and 3 for 4."""
    edges = {1: (2,), 2: (1,), 3: (0, 4), 0: (3,), 4: (5,), 5: (4, 7), 7: (2,)}
    assert cycles(edges) == [(0, 3), (4, 5), (1, 2)]


def test_the_ring_is_a_shortest_one() -> None:
    """Of a knot of many cycles; the longest one comes first."""
    edges = {0: (1,), 1: (2,), 2: (3, 1), 3: (0, 4), 4: (5,), 5: (3,)}
    assert ring(edges, range(6)) == [1, 2]
    assert ring({0: (1,), 1: (2,), 2: (3,), 3: (0, 4), 4: (5,), 5: (3,)}, range(6)) == [3, 4, 5]


def test_a_long_cycle_needs_no_recursion() -> None:
    """Five thousand ranks in one ring."""
    size = 5000
    assert cycles({n: ((n + 1) % size,) for n in range(size)}) == [tuple(range(size))]


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


def test_no_ring_where_there_is_no_cycle() -> None:
    """A chain, and edges that leave the members."""
    assert ring({0: (1,), 1: (2,), 2: ()}, range(3)) == []
    assert ring({0: (1,), 1: (2,), 2: (0,)}, (0, 1)) == []
    assert cycles({}) == []


def distances(edges: Mapping[int, Sequence[int]], start: int) -> dict[int, int]:
    """How many edges away each node is that can be reached, the start too where a cycle leads."""
    found: dict[int, int] = {}
    reached, away = {*edges[start]}, 1
    while reached:
        found |= dict.fromkeys(reached, away)
        reached = {b for a in reached for b in edges[a]} - found.keys()
        away += 1
    return found
