"""Checksums of what all ranks have to have equal, and inputs that are not finite: whose is odd, and
since which call.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from disttrace.cli import main
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.diagnosis import job
from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS
from support.scenes import alive, fail, finds, leave, only, steps


def by_table(folder: Path) -> list[RuleFinding]:
    return list(diagnose(folder).found)


def by_states(folder: Path) -> list[RuleFinding]:
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
def test_the_odd_rank_is_named_with_the_call_that_differs(tmp_path: Path, read: object) -> None:
    run(tmp_path, {0: [7, 8, 9], 1: [7, 5, 4], 2: [7, 8, 9]})
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.severity, found.certainty) == ("value_divergence", "error", "likely")
    assert len(found.culprits) == 1
    assert found.summary == (
        "Rank 1 has other values than ranks 0, 2, where they have to be equal: 'weights' in its"
        " call 20 of the default group at train.py:7."
    )


@READERS
def test_of_two_nobody_is_named_and_one_that_is_yet_to_come_is_healthy(
    tmp_path: Path, read: object
) -> None:
    run(tmp_path / "two", {0: [7, 8], 1: [7, 5]})
    found = only(read(tmp_path / "two"))  # type: ignore[operator]
    assert (found.certainty, found.culprits) == ("certain", ())
    assert "is not the same in ranks 0, 1 in its call 20" in found.summary
    run(tmp_path / "healthy", {0: [7, 8], 1: [7], 2: [7, 8]})
    assert read(tmp_path / "healthy") == []  # type: ignore[operator]


def spoil(folder: Path, numbers: dict[int, int], **where_from: int) -> None:
    """Three ranks; of some an input was not finite in that collective."""
    for journal, group in steps(folder, 3, **where_from):
        where = journal.stack(("train.py", 7, "step"))
        if journal.rank in numbers:
            q = numbers[journal.rank]
            keys = {"group": group, "op": "all_reduce", "stack": where}
            journal.define("nonfinite", t=(50 + q) * MS, q=q, **keys)
        leave(journal, 500 * MS)


@READERS
def test_the_rank_and_the_line_of_the_first_input_that_is_not_finite(
    tmp_path: Path, read: object, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What the others got of it is theirs later."""
    spoil(tmp_path, {0: 18, 1: 17, 2: 18})
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.severity, found.certainty) == ("value_divergence", "error", "certain")
    assert len(found.culprits) == 1
    assert found.summary == (
        "The input of rank 1 is not finite (NaN or infinite) in all_reduce #17 of the default group"
        " at train.py:7: the first, before it was reduced."
    )
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    told = json.loads(capsysbinary.readouterr().out)
    schema = json.loads((files("disttrace_viewer.diagnosis") / "diagnose.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(told)) == []
    nan = told["findings"][0]["nan"]
    assert nan.pop("at_ns") > 0
    assert nan == {"rank": 1, "op": "all_reduce", "seq": 17, "line": "train.py:7"}


@READERS
def test_of_all_at_once_none_is_named(tmp_path: Path, read: object) -> None:
    spoil(tmp_path, {0: 17, 1: 17, 2: 17})
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.culprits, found.nonfinite is not None) == ((), True)
    assert found.summary.startswith("The inputs of ranks 0-2 are not finite")


def test_the_exception_of_torchs_own_check_is_read_as_that(tmp_path: Path) -> None:
    """The rank that raised it, in which call; the others lost it."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group, stack=journal.stack(("train.py", 7, "step")))
        n = journal.begin(call, t=200 * MS, q=3)
        text = "NaN found in input tensor."
        if journal.rank != 1:
            text = "[pair.cc:553] Connection closed by peer [127.0.0.1]:7829"
        journal.end(n, d=5 * MS, x=journal.string(f"RuntimeError: {text}"))
        fail(journal, (206 + (journal.rank != 1)) * MS, "RuntimeError", text)
    for read in (by_table, by_states):
        found = only(read(tmp_path))
        assert found.kind == "value_divergence"
        assert found.summary == (
            "The input of rank 1 is not finite (NaN or infinite) in all_reduce #3 of the default"
            " group at train.py:7: the first, before it was reduced."
        )


def test_over_hosts_the_number_decides_and_not_the_clocks(tmp_path: Path) -> None:
    """Rank 1's host is four seconds behind, which no exchange shows."""
    spoil(tmp_path, {0: 17, 1: 18}, apart_ns=-4000 * MS)
    found = only(by_table(tmp_path))
    assert "The input of rank 0 is not finite" in found.summary
    assert found.certainty == "likely"


def trained(folder: Path, *, size: int, kind: str = "collective", gone: bool = False) -> None:
    """Two ranks that exchange three times ``size`` bytes while a model of 48 bytes changes."""
    for journal, group in steps(folder, 2):
        call = journal.collective(group, kind=kind, bytes=size)
        for n in range(3):
            journal.run(call, t=(200 + n) * MS, d=MS, q=3 + n)
        made = {"group": group, "stack": journal.stack(("train.py", 7, "main")), "bytes": 48}
        for changes, over in ((8, 60), (16, 120)):
            at = (150 + over) * MS
            journal.define("unreduced", t=at, over=over * MS, changes=changes, **made)
        if gone:
            journal.define("dropped", t=400 * MS, segment=1)
        leave(journal, 500 * MS)


def test_gradients_that_nothing_reduces_are_a_note(tmp_path: Path) -> None:
    """Of a model of which less was exchanged than its gradients once, by whatever calls."""
    trained(tmp_path / "scalars", size=15)
    found = only(by_table(tmp_path / "scalars"))
    assert (found.kind, found.severity, found.culprits) == ("unreduced_gradients", "note", ())
    assert found.summary == (
        "Nothing was reduced of the gradients of DistributedDataParallel at train.py:7 on ranks"
        " 0, 1, though its parameters changed 16 times: each rank trains by itself."
    )
    for name, facts in {
        "by hand": {"size": 16}, "messages": {"size": 16, "kind": "message"},
        "what it exchanged is lost": {"size": 1, "gone": True},
    }.items():  # fmt: skip
        trained(tmp_path / name, **facts)  # type: ignore[arg-type]
        assert by_table(tmp_path / name) == [], name
    assert by_states(tmp_path / "scalars") == []  # these hold the newest operations only


@pytest.mark.parametrize(("at", "next_op"), [(250, None), (250, "barrier"), (190, "barrier")])
def test_of_a_bucket_that_a_rank_did_not_reduce_the_parameters_are_named(
    tmp_path: Path, at: int, next_op: str | None
) -> None:
    """It waits for their gradients: one rank against one is decided. Not by what was before."""
    for journal, group in alive(steps(tmp_path, 2)):
        reduced = journal.collective(group, origin="c++")
        journal.run(reduced, t=200 * MS, d=MS, q=3)
        if journal.rank == 0:
            journal.begin(reduced, 210 * MS, q=4)
            continue
        names = {"bucket": 1, "parameters": ["b.bias", "b.weight"], "bytes": 48, "changes": 3}
        journal.define("unreduced", t=at * MS, group=group, over=at * MS, **names)
        if next_op:
            journal.begin(journal.collective(group, next_op), 260 * MS, q=4)
    kind = "op_mismatch" if next_op else "missing_participant"
    found = finds(tmp_path, kind, [1] if at > 200 else [])
    named = "Rank 1 has not reduced bucket 1 of the model: no gradient of b.bias, b.weight in"
    assert (named in found.summary) == (at > 200)
