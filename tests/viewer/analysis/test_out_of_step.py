"""Where members of a group are out of step, on courses of one letter a line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from disttrace_viewer.analysis.out_of_step import SKIPPED, SWAPPED, Shift, first_shift

STEP = "abc"


def shift(courses: dict[int, str], kind: Callable[[str], bool] = bool) -> Shift[int, str]:
    found = first_shift(courses, kind=kind)
    assert found is not None
    return found


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
    assert first_shift(dict(enumerate(courses))) is None, why


def test_before_calls_that_cannot_be_one_a_single_equal_call_tells() -> None:
    """Rank 1 left out b in the second step; two calls later it is in R while others are in c."""
    courses = {0: "abcRabc", 1: "abcRacR", 2: "abcRabc"}
    assert first_shift(courses) is None
    found = shift(courses, kind=str.isupper)
    assert (found.how, found.number, found.members, found.calls) == (SKIPPED, 6, (1,), ("b",))
    assert first_shift({0: "abcRaxc", 1: "abcRayR", 2: "abcRaxc"}, kind=str.isupper) is None


def test_a_habit_of_one_rank_hides_no_shift_of_another() -> None:
    """Rank 0 calls from a line of its own in each step."""
    usual = "abc" * 4
    found = shift({0: usual.replace("b", "h"), 1: usual[:7] + usual[8:], 2: usual})
    assert (found.how, found.members, found.decided) == (SKIPPED, (1,), True)


def test_of_two_ranks_the_one_that_left_the_habit_is_named() -> None:
    """Both made b after a before; what nobody called before decides nothing."""
    usual = STEP * 5
    found = shift({0: usual[:7] + usual[8:], 1: usual})
    assert (found.members, found.decided) == ((0,), True)
    found = shift({0: "aaEaaaaEaaaaEaa", 1: "aaEaaaaaaaaEaaaa"})
    assert not found.decided


def test_what_branches_would_show_as_well_is_not_sure() -> None:
    """Two letters after the second step might be a branch; after twelve steps they are none."""
    for steps, sure in ((2, False), (12, True)):
        usual = STEP * (steps + 1)
        found = shift({0: usual, 1: usual[: 3 * steps] + usual[3 * steps + 1 :]})
        assert (found.number, found.sure) == (3 * steps + 1, sure)
    soon = shift({0: STEP * 12, 1: STEP * 2 + STEP[1:] + STEP * 9})
    assert (soon.number, soon.sure) == (7, True)


def leading(draw: random.Random, rank: int, world: int) -> Iterator[str]:
    """Each rank in turn calls from a line, the others from another one."""
    first = draw.randrange(world)
    body = draw.choice(("", "a", "ab", "aba"))
    for step in range(40):
        yield body + "fL"[(step + first) % world == rank]


def owning(draw: random.Random, rank: int, world: int) -> Iterator[str]:
    """Each parameter has an owner, which sends it from another line."""
    most = draw.randint(2, 7)
    for _ in range(20):
        yield "x" + "".join("fL"[number % world == rank] for number in range(most))


def modal(draw: random.Random, rank: int, world: int) -> Iterator[str]:
    """Batches of text here and of images there, by several calls each."""
    calls, share = draw.randint(1, 4), draw.choice((0.5, 0.2, 0.1))
    own = random.Random(draw.random() + rank)
    for _ in range(40):
        yield ("ABCD" if own.random() < share else "pqrs")[:calls] + "t"


def joining(draw: random.Random, rank: int, world: int) -> Iterator[str]:
    """Who has fewer batches joins the others' calls from elsewhere, as with ``Join``."""
    for _ in range(5):
        batches = [draw.randint(3, 16) for _ in range(world)]
        yield "AAB" * batches[rank] + "aab" * (max(batches) - batches[rank]) + "aipt"


def logging(draw: random.Random, rank: int, world: int) -> Iterator[str]:
    """Each rank logs every so many steps, at steps of its own."""
    every = [(draw.randint(2, 9), draw.randrange(9)) for _ in range(world)][rank]
    for step in range(40):
        yield "a" + "gG"[(step + every[1]) % every[0] == 0]


@pytest.mark.parametrize("program", [leading, owning, modal, joining, logging])
@pytest.mark.parametrize("seed", range(3))
def test_branches_that_members_take_by_themselves_are_no_shift(
    program: Callable[[random.Random, int, int], Iterator[str]], seed: int
) -> None:
    """At no moment of programs in which both sides have both lines and numbers stay equal."""
    world = 2 + seed % 3
    whole = ["".join(program(random.Random(seed), rank, world)) for rank in range(world)]
    assert len({*map(len, whole)}) == 1
    for length in (*range(4, 40, 4), *range(40, len(whole[0]), 23)):
        found = first_shift({rank: course[:length] for rank, course in enumerate(whole)})
        assert found is None or not found.sure, (length, [course[:length] for course in whole])


@pytest.mark.parametrize("seed", range(60))
def test_calls_that_a_rank_makes_in_another_order_from_a_step_on(seed: int) -> None:
    """Two neighbours of a step; in a loop of these two alone it reads as a call left out."""
    draw = random.Random(seed)
    body = "".join(draw.sample("abcdefgh", draw.randint(2, 6)))
    at, world, place = draw.randint(3, 20), draw.randint(2, 4), draw.randrange(len(body) - 1)
    two = body[place : place + 2]
    count, odd = at + draw.randint(4, 20), draw.randrange(world)
    courses = dict.fromkeys(range(world), body * count)
    courses[odd] = body * at + body.replace(two, two[::-1]) * (count - at)
    length = draw.randint((at + 3) * len(body), count * len(body))
    courses = {rank: one[: length - draw.randrange(2)] for rank, one in courses.items()}
    found = shift(courses)
    assert (found.how, found.members, found.number) == (SWAPPED, (odd,), at * len(body) + place + 1)
    assert (found.calls, found.met, found.sure) == ((two[1],), two[0], True)
    assert (found.instead is not None) == (len(body) == 2)


@pytest.mark.parametrize(("body", "then"), [("abc", "cba"), ("abcd", "adcb"), ("abcd", "cbad")])
def test_more_than_two_calls_in_another_order(body: str, then: str) -> None:
    """Reversed, as by another order of a dictionary."""
    found = shift({0: body * 20, 1: body * 20, 2: body * 8 + then * 12})
    assert (found.how, found.members, found.crossed) == (SWAPPED, (2,), 24)


def test_of_several_equal_calls_any_may_be_the_one() -> None:
    """Three a in a row, of which one rank makes two."""
    found = shift({0: "aaae" * 4, 1: ("aaae" * 4)[:5] + ("aaae" * 4)[6:], 2: "aaae" * 4})
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
    found = shift({0: usual, 1: usual[:200_003] + usual[200_004:], 2: usual})
    assert found.number == 200_004
    draw = random.Random(1)
    noise = ["".join(draw.choices("abcd", k=3_000)) for _ in range(3)]
    assert first_shift(dict(enumerate(noise))) is None
