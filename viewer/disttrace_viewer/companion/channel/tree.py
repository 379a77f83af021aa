"""Who answers by way of whom: a hub reads few answers, however many members it has.

Of more than ``FAN`` members that answer the hub itself, some take the answers of the others and
tell them as one. Whoever does not answer in time for others is passed by from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

FAN = 32
"""So many answers one reads."""
MOST_LEVELS = 3


@dataclass(slots=True)
class Node:
    """A member by its number; ``above`` whom it answers, where that is not the hub."""

    number: int
    above: int | None = None
    below: set[int] = field(default_factory=set)
    level: int = 0
    """How many levels are below it."""
    fails: bool = False
    """It did not answer for others when it should have."""


class Tree:
    """All members, by number."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}

    def add(self, number: int) -> None:
        """One more member, which answers the hub itself."""
        self._nodes[number] = Node(number)

    def remove(self, number: int) -> list[int]:
        """It is gone; who answered by way of it and answers the hub itself now."""
        node = self._nodes.pop(number, None)
        if node is None:
            return []
        if node.above is not None:
            self._nodes[node.above].below.discard(number)
        return self._freed(node)

    def fail(self, number: int) -> list[int]:
        """It did not answer. Those who answered by way of it answer the hub itself from now on."""
        node = self._nodes.get(number)
        if node is None or not node.below:
            return []
        node.fails = True
        return self._freed(node)

    def free(self, number: int) -> None:
        """It cannot reach the one above it, who is the one to blame or not."""
        node = self._nodes.get(number)
        if node is not None and node.above is not None:
            above = self._nodes[node.above]
            above.below.discard(number)
            above.fails = True
            node.above = None

    def arranged(self) -> list[int]:
        """Put members below others while too many answer the hub; who has another one above."""
        moved: list[int] = []
        direct = {node.number: node for node in self._nodes.values() if node.above is None}
        level = 0
        while len(direct) > FAN and level < MOST_LEVELS:
            nodes = [node for node in direct.values() if node.level == level]
            able = [node for node in nodes if not node.fails]
            higher = [n for n in direct.values() if n.level == level + 1 and not n.fails]
            for above in (*higher, *able):
                if len(direct) <= FAN:
                    break
                if above.number not in direct:
                    continue  # another one has it by now
                free = (node for node in nodes if node.number in direct and node is not above)
                for node in [*itertools.islice(free, self._room(above, level))]:
                    node.above = above.number
                    above.below.add(node.number)
                    above.level = level + 1
                    moved.append(node.number)
                    del direct[node.number]
                nodes = [node for node in nodes if node.number in direct and node is not above]
            level += 1
        return moved

    def above(self, number: int) -> int | None:
        """Whom a member answers; None: the hub."""
        node = self._nodes.get(number)
        return None if node is None else node.above

    def children(self, number: int) -> list[int]:
        """Who answers it, with nobody in between."""
        return sorted(self._nodes[number].below) if number in self._nodes else []

    def level(self, number: int) -> int:
        """Of how many levels it gathers the answers."""
        return self._nodes[number].level

    def below(self, number: int) -> Iterator[int]:
        """All that answer by way of one, whatever is in between."""
        for one in self.children(number):
            yield one
            yield from self.below(one)

    def _freed(self, node: Node) -> list[int]:
        freed, node.below, node.level = sorted(node.below), set(), 0
        for number in freed:
            self._nodes[number].above = None
        return freed

    def _room(self, above: Node, level: int) -> int:
        """For how many of a level it has a place."""
        return FAN - 1 - sum(self._nodes[number].level == level for number in above.below)
