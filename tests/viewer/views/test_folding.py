"""Repetitions in the merged order, found in columns."""

from __future__ import annotations

import polars as pl
import pytest

from disttrace_viewer.views.terminal.sequence import Stretch, fold


def rows(kinds: str, unusual: str = "", families: str = "") -> pl.DataFrame:
    """A plan whose rows are letters; those in ``unusual`` (by place) are marked."""
    marked = {int(place) for place in unusual.split()}
    return pl.DataFrame(
        {
            "signature": [ord(k) for k in kinds], "family": [ord(k) for k in families or kinds],
            "seq": [None] * len(kinds), "unusual": [place in marked for place in range(len(kinds))],
        },
        schema={
            "signature": pl.UInt64, "family": pl.UInt64, "seq": pl.UInt32, "unusual": pl.Boolean,
        },
    )  # fmt: skip


FOLDS: dict[str, tuple[str, str, list[Stretch]]] = {
    "an iteration, with what is around it":
        ("xy" + "abb" * 10 + "z", "", [Stretch(0, 2), Stretch(2, 32, 3), Stretch(32, 33)]),
    "the shortest period wins": ("a" * 20, "", [Stretch(0, 20, 1)]),
    "what repeats within a step is its part": (("a" * 12 + "bc") * 100, "", [Stretch(0, 1400, 14)]),
    "folding must spare rows": ("ab" * 3, "", [Stretch(0, 6)]),
    "nothing": ("", "", []),
    "an unusual row is never folded":
        ("a" * 41, "20", [Stretch(0, 20, 1), Stretch(20, 21), Stretch(21, 41, 1)]),
}  # fmt: skip


@pytest.mark.parametrize(("kinds", "unusual", "spans"), FOLDS.values(), ids=FOLDS)
def test_what_is_folded(kinds: str, unusual: str, spans: list[Stretch]) -> None:
    assert fold(rows(kinds, unusual)) == spans
    assert (Stretch(2, 32, 3).repeats, Stretch(0, 7).repeats) == (10, 1)


def test_a_rare_call_leaves_the_steps_between_folded() -> None:
    """Steps of three calls with a fourth at each tenth: one row in 31 is no iteration of 31."""
    spans = fold(rows(("abb" * 10 + "c") * 4))
    assert [(span.repeats, span.period) for span in spans if span.period] == [(10, 3)] * 4
    assert len(spans) == 8


def test_what_runs_side_by_side_may_come_in_any_order() -> None:
    """Messages between two pairs count as the same iteration in either order."""
    kinds = "abcbac" * 5
    spans = fold(rows(kinds, families=kinds.replace("b", "a")))
    assert spans == [Stretch(0, 30, 3)]
