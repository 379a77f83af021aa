"""Who answers by way of whom: few at each, everybody once, whoever comes, goes or fails."""

from __future__ import annotations

import random

import pytest

from disttrace_viewer.companion.channel.branch import Branch, address_of, covered, ranges
from disttrace_viewer.companion.channel.message import Garbled, Message
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.channel.tree import FAN, Tree


def check(tree: Tree, members: set[int]) -> None:
    """All answer the hub, some by way of others, and nobody reads many."""
    direct = [one for one in members if tree.above(one) is None]
    assert len(direct) <= FAN
    reached = [*direct, *(one for first in direct for one in tree.below(first))]
    assert sorted(reached) == sorted(members)
    for one in members:
        assert len(tree.children(one)) <= (FAN - 1) * (tree.level(one) + 1)
        assert tree.level(one) <= 3


@pytest.mark.parametrize("count", [1, 32, 33, 40, 1_023, 1_100, 12_500])
def test_the_hub_reads_few(count: int) -> None:
    """At any size."""
    tree = Tree()
    for number in range(count):
        tree.add(number)
    moved = tree.arranged()
    check(tree, {*range(count)})
    assert bool(moved) == (count > FAN)
    assert tree.arranged() == []


def test_whoever_comes_goes_or_fails() -> None:
    """The others are put elsewhere, and nobody gathers twice who failed to."""
    fixed = random.Random(3)
    tree, members, failed = Tree(), set[int](), set[int]()
    for step in range(400):
        what = fixed.choice(["add"] * 3 + ["remove", "fail"])
        if what == "add" or not members:
            for number in range(step * 10, step * 10 + 10):
                tree.add(number)
                members.add(number)
        elif what == "remove":
            one = fixed.choice(sorted(members))
            tree.remove(one)
            members.discard(one)
        elif freed := tree.fail(one := fixed.choice(sorted(members))):
            failed.add(one)
            assert all(tree.above(other) is None for other in freed)
        tree.arranged()
        check(tree, members)
        assert not any(tree.children(one) for one in failed & members)


def branch(told: list[tuple[int, bytes, list[list[int]], bool]]) -> Branch:
    def tell(number: int, data: bytes, numbers: frozenset[int], doubt: bool) -> None:
        told.append((number, data, ranges(numbers), doubt))

    def together(answers: object) -> bytes:
        assert isinstance(answers, tuple)
        if any(one.data == b"poison" for one in answers):
            raise ZeroDivisionError
        return b"+".join(sorted(one.data for one in answers if isinstance(one, Answer)))

    return Branch("me", together, tell)


def test_answers_are_told_as_one() -> None:
    """When all are there, or their time is over; whoever proves nothing casts doubt on all."""
    told: list[tuple[int, bytes, list[list[int]], bool]] = []
    one = branch(told)
    child = Message("child", {"id": "a", "number": 4})
    assert one.heard(7, child, 0.0, known=True) == Message("busy")  # the hub has not asked for it
    one.fold(Message("gather", {"levels": 1}))
    for stream, name in enumerate("abc"):
        answered = one.heard(
            stream, Message("child", {"id": name, "number": 4 + stream}), 0.0, known=name != "c"
        )
        assert answered is not None
        assert answered.kind == "welcome"
    one.asked(1, 0.0)
    one.answer(1, b"mine", 0.1)
    one.heard(0, Message("answer", {"round": 1}, b"a"), 0.1, known=True)
    one.turn(0.2)
    assert told == []
    one.heard(1, Message("answer", {"round": 1, "for": [[20, 22]]}, b"b"), 0.2, known=True)
    one.turn(1.0)
    assert told == [(1, b"a+b+mine", [[4, 5], [20, 22]], False)]
    one.heard(2, Message("answer", {"round": 2}, b"c"), 2.0, known=False)  # before we were asked
    one.answer(2, b"mine", 2.0)
    one.turn(3.0)
    assert told[1] == (2, b"a+b+c+mine", [[4, 6], [20, 22]], True)


def test_what_nobody_foresaw_costs_this_way_only() -> None:
    """Nothing is told then, and the hub asks each by itself."""
    told: list[tuple[int, bytes, list[list[int]], bool]] = []
    one = branch(told)
    one.fold(Message("gather", {"levels": 1}))
    one.heard(1, Message("child", {"id": "a", "number": 4}), 0.0, known=True)
    one.asked(1, 0.0)
    one.answer(1, b"mine", 0.1)
    one.heard(1, Message("answer", {"round": 1}, b"poison"), 0.1, known=True)
    one.turn(2.0)
    assert told == []
    one.asked(2, 3.0)
    one.answer(2, b"mine", 3.0)
    one.heard(1, Message("answer", {"round": 2}, b"a"), 3.1, known=True)
    assert [row[:2] for row in told] == [(2, b"a+mine")]


@pytest.mark.parametrize(
    "message",
    [
        Message("answer", {"round": 1, "for": [[3]]}),
        Message("answer", {"round": 1, "for": [["a", "b"]]}),
        Message("answer", {"round": 1, "for": [[0, 1 << 30]]}),
        Message("answer", {"round": 1, "for": [[5, 4]]}),
        Message("beat"),
    ],
)
def test_what_is_no_answer_is_one_exception(message: Message) -> None:
    """By which that conversation ends."""
    one = branch([])
    one.fold(Message("gather", {"levels": 1}))
    one.heard(1, Message("child", {"id": "a", "number": 4}), 0.0, known=True)
    with pytest.raises(Garbled):
        one.heard(1, message, 0.0, known=True)
    with pytest.raises(KeyError):
        one.heard(2, Message("answer", {"round": 1}), 0.0, known=True)


@pytest.mark.parametrize("at", [["h"], ["h", 0], ["h", "1"], [1, 1], ["h" * 65, 1]])
def test_what_is_no_address(at: list[object]) -> None:
    """Nobody is called there."""
    with pytest.raises(Garbled):
        address_of(Message("under", {"at": at}))
    assert address_of(Message("under", {"at": []})) is None
    assert covered(Message("answer")) == frozenset()
