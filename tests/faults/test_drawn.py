"""Drawn programs depend on their seed alone, compile, and are judged by their fault's truth."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("frameworks", [False, True])
@pytest.mark.parametrize("harmless", [False, True])
def test_drawing_ends_whatever_the_programs(frameworks: bool, harmless: bool) -> None:
    """Those of frameworks have two ranks, and some faults need three."""
    for number in range(60):
        one = drawn(SEED, number, frameworks=frameworks, harmless=harmless)
        assert not (harmless and one.truth.kinds)


def test_a_run_is_drawn_from_seed_and_number_alone() -> None:
    """So that a wrong one can be run again."""
    assert drawn(3, 7) == drawn(3, 7)
    assert source(drawn(3, 7).program) != source(drawn(4, 7).program)


FINDING = {
    "kind": "missing_participant", "culprit_ranks": [1], "certainty": "certain",
    "summary": "Rank 0 has been waiting at program.py:5 for 4.0 s.",
    "hint": "Look for uneven inputs.",
    "locations": [{"rank": 0, "file": "/run/program.py", "line": 5}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("truth", "findings", "code", "wrong", "blamed"),
    [
        (Truth(name="healthy"), (), 0, False, False),
        (Truth(name="healthy"), (FINDING,), 1, True, True),
        (Truth(name="t", kinds=frozenset({"deadlock"})), (), 0, True, False),
        (
            Truth(name="t", kinds=frozenset({"missing_participant"}), guilty=frozenset({1})),
            (FINDING,), 1, False, False,
        ),
        (
            Truth(name="t", kinds=frozenset({"missing_participant"}), guilty=frozenset({2})),
            (FINDING,), 1, True, True,
        ),
        (Truth(name="t", kinds=frozenset({"x"}), incomplete=True), (), 2, False, False),
        (Truth(name="t", kinds=frozenset({"x"}), incomplete=True), (), 0, True, False),
    ],
)  # fmt: skip
def test_judging(
    truth: Truth, findings: tuple[dict[str, object], ...], code: int, wrong: bool, blamed: bool
) -> None:
    """Right kinds, nobody innocent, no all-clear over what is missing."""
    faulty = Faulty(Program(world=3, steps=1), truth)
    result = Run(faulty, (Said("ended", findings, code),), "")
    assert (bool(result.wrong), result.blamed) == (wrong, blamed)


@pytest.mark.parametrize(
    ("truth", "age_s", "problem"),
    [
        ({"line": 'dist.init_process_group("gloo")'}, 9.0, None),
        ({"line": "dist.barrier()"}, 9.0, "shown are lines [5], and not [3]"),
        ({}, 3.0, "a wait of 4.0 s in a run of 3.0 s"),
        ({"unsaid": ("uneven",)}, 9.0, "the advice speaks of 'uneven'"),
    ],
)
def test_places_times_and_advice_are_judged(
    truth: dict[str, Any], age_s: float, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line of the change, no wait longer than the run, and nothing that leads elsewhere."""
    text = '\n\ndist.barrier()\n\ndist.init_process_group("gloo")\n'
    monkeypatch.setattr("faults.drawn.executor.source", lambda _: text)
    kinds = frozenset({"missing_participant"})
    of = Truth(name="t", kinds=kinds, guilty=frozenset({1}), **truth)
    faulty = Faulty(Program(world=2, steps=1), of)
    found = Run(faulty, (Said("live", (FINDING,), 1, age_s),), "").wrong
    assert [problem in one for one in found] == [True] if problem else not found


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
