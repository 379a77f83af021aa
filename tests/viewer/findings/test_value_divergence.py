"""Checksums of what all ranks have to have equal: who is odd, and since which call."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.diagnosis import job
from disttrace_viewer.findings.finding import Finding
from support.journals import MS
from support.scenes import leave, only, steps


def by_table(folder: Path) -> list[Finding]:
    return list(diagnose(folder).found)


def by_states(folder: Path) -> list[Finding]:
    """Without a table, as where Polars is not installed."""
    return list(job.judged([str(folder)], choose=lambda jobs: [one.id for one in jobs]).findings)


READERS = pytest.mark.parametrize("read", [by_table, by_states])


def run(folder: Path, values: dict[int, list[int]]) -> None:
    """Ranks that had these checksums of 'weights' in their calls 10, 20, ..."""
    for journal, group in steps(folder, len(values)):
        where = journal.stack(("train.py", 7, "step"))
        for number, value in enumerate(values[journal.rank or 0], 1):
            journal.define(
                "digest", t=(50 + number) * MS, group=group, op="expect_equal", name="weights",
                q=10 * number, v=value, stack=where,
            )  # fmt: skip
        leave(journal, 500 * MS)


@READERS
def test_the_odd_rank_is_named_with_its_first_call_that_differs(
    tmp_path: Path, read: object
) -> None:
    run(tmp_path, {0: [7, 8, 9], 1: [7, 5, 4], 2: [7, 8, 9]})
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.severity, found.certainty) == ("value_divergence", "error", "likely")
    assert len(found.culprits) == 1
    assert found.summary == (
        "Rank 1 has other values than ranks 0, 2, where they have to be equal: 'weights' in its"
        " call 20 of the default group at train.py:7."
    )


@READERS
def test_of_two_nobody_is_named(tmp_path: Path, read: object) -> None:
    run(tmp_path, {0: [7, 8], 1: [7, 5]})
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.certainty, found.culprits) == ("certain", ())
    assert "is not the same in ranks 0, 1 in its call 20" in found.summary


@READERS
def test_equal_values_and_one_that_is_yet_to_come_are_healthy(tmp_path: Path, read: object) -> None:
    run(tmp_path, {0: [7, 8], 1: [7], 2: [7, 8]})
    assert read(tmp_path) == []  # type: ignore[operator]
