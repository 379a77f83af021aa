"""Drawn programs depend on their seed alone, compile, and are judged by their fault's truth."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from faults.drawn.__main__ import drawn
from faults.drawn.catalogue import MUTATIONS
from faults.drawn.executor import Run, Said, Zygote, run
from faults.drawn.program import BARE, IMPORTS, Program, source
from faults.drawn.truth import Faulty, Truth

SEED = 20
NUMBERS = range(300)


def test_every_program_compiles_and_every_fault_is_drawn() -> None:
    """Three hundred draws reach the whole catalogue."""
    names = set()
    for number in NUMBERS:
        one = drawn(SEED, number)
        text = source(one.program)
        ast.parse(text)
        assert all(line in text for name, line in IMPORTS.items() if name in text)
        names.add(one.truth.name.split(" of ")[0])
    assert len(names) >= len(MUTATIONS) - 2  # fields of one name are one fault here


def test_each_cause_of_a_wrong_verdict_has_a_fault_that_would_show_it_again() -> None:
    """D: who, where and when; U, L, S: starts, load and silence, as they were found."""
    causes = {cause for _, listed, _ in MUTATIONS for cause in listed.split()}
    assert causes == {f"D{n}" for n in range(1, 14)} | {"U2", "U5", "L1", "S1", "S2"}


def test_a_run_is_drawn_from_seed_and_number_alone() -> None:
    """So that a wrong one can be run again."""
    assert drawn(3, 7) == drawn(3, 7)
    assert source(drawn(3, 7).program) != source(drawn(4, 7).program)


FINDING = {"kind": "missing_participant", "culprit_ranks": [1], "certainty": "certain"}


@pytest.mark.parametrize(
    ("truth", "findings", "code", "wrong", "blamed"),
    [
        (Truth(name="healthy"), (), 0, False, False),
        (Truth(name="healthy"), (FINDING,), 1, True, True),
        (Truth(name="t", kinds=frozenset({"deadlock"})), (), 0, True, False),
        (
            Truth(name="t", kinds=frozenset({"missing_participant"}), guilty=frozenset({1})),
            (FINDING,),
            1,
            False,
            False,
        ),
        (
            Truth(name="t", kinds=frozenset({"missing_participant"}), guilty=frozenset({2})),
            (FINDING,),
            1,
            True,
            True,
        ),
        (Truth(name="t", kinds=frozenset({"x"}), incomplete=True), (), 2, False, False),
        (Truth(name="t", kinds=frozenset({"x"}), incomplete=True), (), 0, True, False),
    ],
)
def test_judging(
    truth: Truth, findings: tuple[dict[str, object], ...], code: int, wrong: bool, blamed: bool
) -> None:
    """Right kinds, nobody innocent, no all-clear over what is missing."""
    faulty = Faulty(Program(world=3, steps=1), truth)
    result = Run(faulty, (Said("ended", findings, code),), "")
    assert (bool(result.wrong), result.blamed) == (wrong, blamed)


def test_one_that_fails_is_run_and_told(tmp_path: Path) -> None:
    """A real run by forked processes: the exception of one rank is found."""
    numbers = (n for n in NUMBERS if drawn(SEED, n).truth.name == "raises")
    one = next(f for f in (drawn(SEED, n) for n in numbers) if f.program.launch == BARE)
    zygote = Zygote()
    try:
        result = run(one, tmp_path, zygote)
    finally:
        zygote.close()
    assert result.wrong == [], result.output
