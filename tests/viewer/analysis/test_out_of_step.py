"""Where members of a group are out of step, on courses of one letter a line."""

from __future__ import annotations

import random

import pytest

from disttrace_viewer.analysis.out_of_step import EXTRA, SKIPPED, SWAPPED, first_shift

STEP = "abc"


@pytest.mark.parametrize(
    ("why", "courses"),
    [
        ("rank 0 logs through a function of its own", ["axaxaxax", "ayayayay"]),
        ("a line that only one side has comes once", ["aaaxaaaa", "aaayaaaa"]),
        ("others use that function elsewhere", ["lablablab", "lallallal", "lablablab"]),
        ("ranks of other roles share no line", ["uvuvuvuv", "pqpqpqpq", "uvuvuvuv"]),
        ("who has fewer batches joins from another line", ["ngngngngngN", "ngngngNGNGN"]),
        ("an order that was another one from the first step on", ["acbacbacb", "abcabcabc"]),
        ("one is behind", ["abcabcabc", "abcabc", "abcab"]),
        ("one is just one call ahead", ["abcabca", "abcabcab"]),
    ],
)
def test_a_branch_that_is_meant_is_no_shift(why: str, courses: list[str]) -> None:
    """Numbers stay equal."""
    assert first_shift(dict(enumerate(courses))) is None, why


def test_a_skipped_call_is_found_where_nobody_noticed() -> None:
    """Of four ranks one leaves out the fifth call; from there on each call meets another one."""
    usual = STEP * 5
    found = first_shift({0: usual, 1: usual, 2: usual[:4] + usual[5:], 3: usual})
    assert found is not None
    assert (found.how, found.number, found.members, found.others) == (SKIPPED, 5, (2,), (0, 1, 3))
    assert (found.calls, found.met, found.decided, found.newest) == (("b",), "c", True, 14)


def test_before_calls_that_cannot_be_one_a_single_equal_call_tells() -> None:
    """Rank 1 left out b in the second step; two calls later it is in R while others are in c."""
    courses = {0: "abcRabc", 1: "abcRacR", 2: "abcRabc"}
    assert first_shift(courses) is None
    found = first_shift(courses, kind=str.isupper)
    assert found is not None
    assert (found.how, found.number, found.members, found.calls) == (SKIPPED, 6, (1,), ("b",))
    assert first_shift({0: "abcRaxc", 1: "abcRayR", 2: "abcRaxc"}, kind=str.isupper) is None


def test_a_habit_of_one_rank_hides_no_shift_of_another() -> None:
    """Rank 0 calls from a line of its own in each step."""
    usual = "abc" * 4
    found = first_shift({0: usual.replace("b", "h"), 1: usual[:7] + usual[8:], 2: usual})
    assert found is not None
    assert (found.how, found.members, found.decided) == (SKIPPED, (1,), True)


def test_of_two_ranks_the_one_that_left_the_habit_is_named() -> None:
    """Both made b after a before; what nobody called before decides nothing."""
    usual = STEP * 5
    found = first_shift({0: usual[:7] + usual[8:], 1: usual})
    assert found is not None
    assert (found.members, found.decided) == ((0,), True)
    found = first_shift({0: "aaaaEaaaaEaa", 1: "aaaaaaaaEaaaa"})
    assert found is not None
    assert not found.decided


def test_a_call_too_many_and_one_in_another_order() -> None:
    """A line of its own, once; and two calls in turn."""
    usual = STEP * 5
    found = first_shift({0: usual[:6] + "z" + usual[6:], 1: usual, 2: usual})
    assert found is not None
    assert (found.how, found.number, found.calls) == (EXTRA, 7, ("z",))
    found = first_shift({0: "abcabcacbabc", 1: "abcabcabcabc", 2: "abcabcabcabc"})
    assert found is not None
    assert (found.how, found.number, found.members, found.newest) == (SWAPPED, 8, (0,), 9)


def test_of_several_equal_calls_any_may_be_the_one() -> None:
    """Three a in a row, of which one rank makes two."""
    found = first_shift({0: "aaae" * 4, 1: ("aaae" * 4)[:5] + ("aaae" * 4)[6:], 2: "aaae" * 4})
    assert found is not None
    assert (found.earliest, found.number, found.calls) == (5, 7, ("a",))


@pytest.mark.parametrize("seed", range(150))
def test_a_drawn_mutation_blames_nobody_innocent(seed: int) -> None:
    """Loops with evaluations, habits of rank 0, one call left out, doubled or added."""
    draw = random.Random(seed)
    inner = [draw.choice("abcdef"[: draw.randint(2, 6)]) for _ in range(draw.randint(2, 6))]
    period = draw.randint(3, 9)
    base = [
        call
        for step in range(draw.randint(8, 30))
        for call in (*inner, *("E" * (step % period == period - 1)))
    ]
    world = draw.choice((2, 3, 4))
    courses = {rank: list(base) for rank in range(world)}
    if draw.random() < 0.5:
        habit = draw.choice(base)
        courses[0] = ["Z" if call == habit else call for call in base]
    how, guilty = draw.choice(("none", "skip", "double", "extra")), draw.randrange(world)
    at, mine = draw.randrange(len(base) // 3, len(base) - 4), courses[guilty]
    if how == "skip":
        del mine[at]
    elif how != "none":
        mine.insert(at, "Q" if how == "extra" else mine[at])
    length = min(map(len, courses.values()))
    found = first_shift({rank: course[:length] for rank, course in courses.items()})
    if how == "none":
        assert found is None
    elif found is not None and found.decided:
        assert found.members == (guilty,)
        assert found.how == SWAPPED or found.earliest - 1 <= at + 1


def test_a_million_calls_are_compared_at_once() -> None:
    """By memory, not one by one; and no pattern is no shift."""
    usual = "abcdefgh" * 30_000
    found = first_shift({0: usual, 1: usual[:200_003] + usual[200_004:], 2: usual})
    assert found is not None
    assert found.number == 200_004
    draw = random.Random(1)
    noise = ["".join(draw.choices("abcd", k=3_000)) for _ in range(3)]
    assert first_shift(dict(enumerate(noise))) is None
