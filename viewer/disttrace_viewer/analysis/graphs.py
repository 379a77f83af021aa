"""Directed graphs: the sets of nodes that all reach one another, and a shortest cycle among nodes.

A graph is a mapping from each node to those that its edges lead to. By hand, since a hang is
diagnosed where nothing but orjson is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def cycles(edges: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """Sets of more than one process that all reach one another (Tarjan), each sorted; one that
    reaches another comes before it.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[tuple[int, tuple[int, ...]]] = []
    depth: dict[int, int] = {}
    """Of what is done: how many cycles lie one behind the other from there."""
    for start in sorted(edges):
        if start in index:
            continue
        work: list[tuple[int, int]] = [(start, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
            targets = [t for t in edges.get(node, ()) if t in edges]
            for position in range(at, len(targets)):
                target = targets[position]
                if target not in index:
                    work += [(node, position + 1), (target, 0)]
                    break
                if target not in depth:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    part = []
                    while stack and index[stack[-1]] >= index[node]:
                        part.append(stack.pop())
                    behind = (depth.get(t, 0) for p in part for t in edges.get(p, ()))
                    deep = max(behind, default=0) + (len(part) > 1)
                    depth |= dict.fromkeys(part, deep)
                    if len(part) > 1:
                        found.append((deep, tuple(sorted(part))))
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return [part for _, part in sorted(found, key=lambda one: (-one[0], one[1]))]


def ring(edges: Mapping[int, Iterable[int]], members: Sequence[int], least: int = 2) -> list[int]:
    """A shortest cycle within members, from that of its nodes that comes first among them on.

    ``least``: there can be none of fewer nodes.
    """
    left = set(members)
    inner = {p: left.intersection(edges.get(p, ())) for p in members}
    above: dict[int, list[int]] = {}
    for process, targets in inner.items():
        for target in targets:
            above.setdefault(target, []).append(process)
    best: list[int] = []
    for start in members:
        found = _around(inner, start) if start in left else []
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == least:
            break
        # No cycle that is left passes here, nor those that wait for nobody then.
        over = [start] if start in left else []
        while over:
            gone = over.pop()
            left.discard(gone)
            inner[gone] = set()
            for process in above.get(gone, ()):
                inner[process].discard(gone)
                if process in left and not inner[process]:
                    over.append(process)
    return best


def _around(edges: Mapping[int, Iterable[int]], start: int) -> list[int]:
    """A shortest way from a node back to it; empty where there is none."""
    before = {start: start}
    reached = [start]
    for process in reached:
        for target in sorted(edges[process]):
            if target == start:
                way = [process]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target not in before:
                before[target] = process
                reached.append(target)
    return []
