"""Members of a group that are out of step, told where it began; and checksums of what all ranks
have to have equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from disttrace.cli import main
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.diagnosis import job
from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS, Journal
from support.scenes import alive, finds, only, steps

USUAL = ("grad", "norm", "loss") * 8
LINES = {"grad": 10, "norm": 20, "loss": 30, "log": 40, "eval": 50}


def run(folder: Path, courses: list[tuple[str, ...]], *, ends: bool, helper: bool = False) -> None:
    """Ranks reduce at these lines; ``ends``: all is over; ``helper``: the lines are callers'."""
    for journal, group in steps(folder, len(courses), count=0):
        journal.run_all(made(journal, group, courses[journal.rank or 0], helper), ends=ends)
        if ends:
            journal.leave(500 * MS)
        else:
            journal.beat(20)


def made(journal: Journal, group: int, names: Sequence[str], helper: bool = False) -> list[int]:
    """The calls at the lines of these names, or of a helper that they call."""
    inner = [("help.py", 3, "reduce")] * helper
    of = {name: journal.stack(*inner, ("train.py", LINES[name], name)) for name in LINES}
    ops = ("all_gather" if name == "eval" else "all_reduce" for name in names)
    return [journal.collective(group, op, stack=of[name]) for op, name in zip(ops, names)]


def by_states(folder: Path) -> list[RuleFinding]:
    """Without a table, as where Polars is not installed."""
    return list(job.judged([str(folder)], choose=lambda jobs: [one.id for one in jobs]).findings)


def by_table(folder: Path) -> list[RuleFinding]:
    return list(diagnose(folder).found)


Read = Callable[[Path], list[RuleFinding]]


@pytest.fixture(params=[by_table, by_states])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


@pytest.mark.parametrize("helper", [False, True])
def test_a_shift_nobody_notices_is_a_warning(tmp_path: Path, read: Read, helper: bool) -> None:
    """Rank 2 leaves out its fifth call and makes one more; of a helper's the callers differ."""
    skipped = (*USUAL[:7], *USUAL[8:], "grad")
    run(tmp_path, [USUAL, USUAL, skipped], ends=True, helper=helper)
    found = only(read(tmp_path))
    assert (found.kind, found.severity, found.certainty) == ("divergence", "warning", "likely")
    assert found.summary == (
        "Rank 2 is out of step with ranks 0, 1 in the default group since #8: rank 2 skipped"
        " all_reduce at train.py:20; 17 results since were mixed."
    )
    assert (found.seq, len(found.culprits)) == (8, 1)


@pytest.mark.parametrize("own", [False, True])
def test_a_module_that_one_rank_skips_is_named(tmp_path: Path, own: bool, read: Read) -> None:
    """FSDP's equal gathers: modules tell which one; nothing if each rank has ``own`` names."""
    for journal, group in steps(tmp_path, 2, count=0):
        rank = journal.rank or 0
        layers = [0, 1, 2, 3] * 3 + [0, 2, 3] * (rank and not own) + [0, 1, 2, 3] * 3
        for number, layer in enumerate(layers[:20], 1):
            args = {"module": f"layers.{layer + 4 * own * rank}"}
            call = journal.collective(group, "all_gather_into_tensor", args=args)
            journal.run(call, t=(100 + number) * MS, d=MS // 2, q=number)
        journal.leave(500 * MS)
    found = [f for f in read(tmp_path) if f.severity != "note"]
    assert [(f.kind, f.op) for f in found] == [("divergence", "all_gather_into_tensor")] * (not own)
    told = "rank 1 skipped all_gather_into_tensor of layers.1 at train.py:10"
    assert own or told in found[0].summary


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("third", [(), ("loss",)])
def test_an_order_that_is_another_one_from_a_step_on_is_a_warning(
    tmp_path: Path, read: Read, ends: bool, third: tuple[str, ...]
) -> None:
    """Two calls the other way round; while it runs, in a loop of two, one may be left out."""
    usual = ("grad", "norm", *third) * 12
    other = usual[: 4 * (2 + len(third))] + ("norm", "grad", *third) * 8
    run(tmp_path, [usual, usual, other], ends=ends)
    found = only(read(tmp_path))
    number, mixed = 4 * (2 + len(third)) + 1, 16 if ends or third else 15
    either = "" if ends or third else " (or skipped all_reduce at train.py:10 once)"
    assert (found.kind, len(found.culprits)) == (("divergence", 1) if ends else ("no_progress", 0))
    assert f" since #{number}: rank 2 made all_reduce at train.py:20 before" in found.summary
    assert found.summary.endswith(
        f" all_reduce at train.py:10, again and again{either}; {mixed} results"
        f" {'since' if ends else 'before it'} were mixed."
    )


def test_the_last_consequence_is_told_with_where_it_began(tmp_path: Path, read: Read) -> None:
    """The shift meets another operation at last."""
    usual = (*USUAL, "eval")
    skipped = (*USUAL[:7], *USUAL[8:], "eval")
    run(tmp_path, [usual[:-1], usual[:-1], skipped], ends=False)
    found = only(read(tmp_path))
    assert (found.kind, found.seq) == ("op_mismatch", 24)
    assert found.summary.endswith(
        "Out of step since #8: rank 2 skipped all_reduce at train.py:20; 16 results before it were"
        " mixed."
    )


@pytest.mark.parametrize("extra", [("log", "log"), ("grad", "grad"), ("log", "log", "log", "log")])
@pytest.mark.parametrize("then", [("eval",), ()])
def test_several_calls_more_in_a_loop_that_is_in_step_again(
    tmp_path: Path, read: Read, extra: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """As many as the loop has, or twice: all meet their own again until others go on."""
    usual = ("grad", "norm") * 12
    more = (*usual[:13], *extra, *usual[13:])[: 24 + 1]
    if then:
        run(tmp_path, [(*usual, *then)] * 2 + [more], ends=False)
    else:
        for journal, group in alive(steps(tmp_path, 3, count=0)):
            course = more if journal.rank == 2 else usual
            journal.run_all(made(journal, group, course), ends=len(course) < 25)
    found = only(read(tmp_path))
    line, count = LINES[extra[0]], len(extra)
    if then:
        assert found.kind == "op_mismatch"
        assert f"rank 2 made {count} more calls of all_reduce at train.py:{line}; " in found.summary
    else:
        assert (found.kind, found.certainty) == ("missing_participant", "likely")
        assert found.culprits == ()
        numbers = ", ".join(f"#{14 + n}" for n in range(count))
        assert found.summary.startswith(
            f"Rank 2 made {count} more calls (all_reduce {numbers} at train.py:{line}) than ranks"
        )
        assert (found.hint or "").startswith(f"Apart from {count} more calls at train.py:{line} ")


def test_an_exception_by_which_a_call_was_skipped_is_told(tmp_path: Path, read: Read) -> None:
    """Rank 2's eighth call raised, took no number, and nobody heard of it."""
    for journal, group in steps(tmp_path, 3, count=0):
        number = 0
        for step, name in enumerate((*USUAL, "grad") if journal.rank == 2 else USUAL):
            where = journal.stack(("train.py", LINES[name], name))
            call, t = journal.collective(group, stack=where), (100 + step) * MS
            if journal.rank == 2 and step == 7:
                journal.raises(
                    call, t, 1000, "ValueError: not contiguous", q=number + 1, refused=True
                )
                continue
            number += 1
            journal.run(call, t=t, d=MS // 2, q=number)
        journal.leave(500 * MS)
    found = only(read(tmp_path))
    assert (found.kind, found.seq, len(found.culprits)) == ("divergence", 8, 1)
    assert found.summary.endswith(
        "Then all_reduce (train.py:20) raised on rank 2, which went on without it: ValueError: not"
        " contiguous."
    )
    assert (found.hint or "").startswith("Find why the call at train.py:20 raised on rank 2")


@pytest.mark.parametrize("helper", [False, True])
def test_a_rank_that_logs_by_another_line_is_in_step(
    tmp_path: Path, read: Read, helper: bool
) -> None:
    """In each step, under the same numbers."""
    logging = tuple("log" if name == "loss" else name for name in USUAL)
    run(tmp_path, [logging, USUAL, USUAL], ends=True, helper=helper)
    assert read(tmp_path) == []


def hanging(
    folder: Path, course: tuple[str, ...], *, then: str = "recv", helper: bool = False
) -> RuleFinding:
    """Rank 2 waits for rank 0, who made one call more, or a group, or calls with another size."""
    for journal, group in alive(steps(folder, 3, count=0)):
        called = course if journal.rank == 2 else ("grad", "norm") * 3
        journal.run_all(made(journal, group, called, helper), ends=len(called) < 6)
        if journal.rank == 2 and then == "recv":
            journal.begin(journal.message(group, "recv", 0), 120 * MS, q=1)
        elif journal.rank == 2 and then == "other":
            where = journal.stack(("train.py", 40, "patiently"))
            other = journal.collective(group, stack=where, shapes=[[8]], bytes=32)
            journal.begin(other, 120 * MS, q=6)
        elif journal.rank == 2:
            journal.create(120 * MS, [0, 1, 2])
    return only(by_states(folder))


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize(
    ("then", "kind"),
    [("recv", "deadlock"), ("create", "group_mismatch"), ("other", "shape_mismatch")],
)
def test_the_line_of_a_call_left_out(tmp_path: Path, then: str, kind: str, helper: bool) -> None:
    course = ("grad", "norm", "grad", "norm", "norm")
    found = hanging(tmp_path, course, then=then, helper=helper)
    assert found.kind == kind
    assert found.summary.endswith(
        "To #5 of the default group, the last that all have made, ranks 0, 1 came by all_reduce at"
        " train.py:10 and rank 2 came by all_reduce at train.py:20: one of these lines was left"
        " out, or called twice."
    )


def test_a_call_left_out_some_calls_before_is_told_with_its_line(tmp_path: Path) -> None:
    """Rank 2 left out its fourth call, and made one more that matched before it went on."""
    found = hanging(tmp_path, ("grad", "norm", "grad", "grad", "norm"))
    assert found.summary.endswith(
        "To #4 of the default group, from which on lines differ, ranks 0, 1 came by all_reduce at"
        " train.py:20 and rank 2 came by all_reduce at train.py:10: one of these lines was left"
        " out, or called twice."
    )
    assert [where.line for where in found.locations][-2:] == [LINES["norm"], LINES["grad"]]


def test_lines_that_differed_before_say_nothing(tmp_path: Path) -> None:
    """Rank 2 comes to its calls by lines in another order."""
    found = hanging(tmp_path, ("grad", "grad", "norm", "norm", "norm"))
    assert found.kind == "deadlock"
    assert "one of these lines" not in found.summary


def values_of(folder: Path, values: dict[int, list[int]]) -> None:
    """Ranks that had these checksums of 'weights' in their calls 10, 20, ..."""
    for journal, group in steps(folder, len(values)):
        for number, value in enumerate(values[journal.rank or 0], 1):
            journal.define(
                "digest", t=(50 + number) * MS, group=group, op="expect_equal", name="weights",
                q=10 * number, v=value, stack=("train.py", 7, "step"),
            )  # fmt: skip
        journal.leave(500 * MS)


def test_the_odd_rank_is_named_with_the_call_that_differs(tmp_path: Path, read: Read) -> None:
    values_of(tmp_path, {0: [7, 8, 9], 1: [7, 5, 4], 2: [7, 8, 9]})
    found = only(read(tmp_path))
    assert (found.kind, found.severity, found.certainty) == ("value_divergence", "error", "likely")
    assert len(found.culprits) == 1
    assert found.summary == (
        "Rank 1 has other values than ranks 0, 2, where they have to be equal: 'weights' in its"
        " call 20 of the default group at train.py:7."
    )


def test_of_two_nobody_is_named_and_one_that_is_yet_to_come_is_healthy(
    tmp_path: Path, read: Read
) -> None:
    values_of(tmp_path / "two", {0: [7, 8], 1: [7, 5]})
    found = only(read(tmp_path / "two"))
    assert (found.certainty, found.culprits) == ("certain", ())
    assert "is not the same in ranks 0, 1 in its call 20" in found.summary
    values_of(tmp_path / "healthy", {0: [7, 8], 1: [7], 2: [7, 8]})
    assert read(tmp_path / "healthy") == []


def spoil(folder: Path, numbers: dict[int, int], **where_from: int) -> None:
    """Three ranks; of some an input was not finite in that collective."""
    for journal, group in steps(folder, 3, **where_from):
        if journal.rank in numbers:
            q = numbers[journal.rank]
            keys = {"group": group, "op": "all_reduce", "stack": ("train.py", 7, "step")}
            keys |= {"parameters": ["head.bias"]} if q == 17 else {}
            journal.define("nonfinite", t=(50 + q) * MS, q=q, **keys)
        journal.leave(500 * MS)


def test_the_rank_and_the_line_of_the_first_input_that_is_not_finite(
    tmp_path: Path, read: Read, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What the others got of it is theirs later."""
    spoil(tmp_path, {0: 18, 1: 17, 2: 18})
    found = only(read(tmp_path))
    assert (found.kind, found.severity, found.certainty) == ("value_divergence", "error", "certain")
    assert len(found.culprits) == 1
    assert found.summary == (
        "The input of rank 1 is not finite (NaN or infinite) in all_reduce #17 of the default group"
        " at train.py:7: the first, before it was reduced (gradient of head.bias)."
    )
    assert [names for _, names in found.parameters] == [("head.bias",)]
    assert main(["diagnose", str(tmp_path), "--json"]) == 1
    told = json.loads(capsysbinary.readouterr().out)
    schema = json.loads((files("disttrace_viewer.diagnosis") / "diagnose.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(told)) == []
    nan = told["findings"][0]["nan"]
    assert nan.pop("at_ns") > 0
    assert nan == {"rank": 1, "op": "all_reduce", "seq": 17, "line": "train.py:7"}


def test_of_all_at_once_none_is_named(tmp_path: Path, read: Read) -> None:
    spoil(tmp_path, {0: 17, 1: 17, 2: 17})
    found = only(read(tmp_path))
    assert (found.culprits, found.nonfinite is not None) == ((), True)
    assert found.summary.startswith("The inputs of ranks 0-2 are not finite")


def test_the_exception_of_torchs_own_check_is_read_as_that(tmp_path: Path) -> None:
    """The rank that raised it, in which call; the others lost it."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group, stack=("train.py", 7, "step"))
        n = journal.begin(call, t=200 * MS, q=3)
        text = "NaN found in input tensor."
        if journal.rank != 1:
            text = "[pair.cc:553] Connection closed by peer [127.0.0.1]:7829"
        journal.end(n, d=5 * MS, x=journal.string(f"RuntimeError: {text}"))
        journal.fail((206 + (journal.rank != 1)) * MS, "RuntimeError", text)
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
        journal.leave(500 * MS)


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


def unreduced(journal: Journal, group: int, at: int, bucket: int, *names: str, **keys: Any) -> None:
    """What the reducer of a model says of a bucket that lacks these gradients."""
    keys = {"over": at * MS, "bytes": 48, "changes": 3, "bucket": bucket, **keys}
    journal.define("unreduced", t=at * MS, group=group, parameters=names, **keys)


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
        unreduced(journal, group, at, 1, "b.bias", "b.weight", stack=("train.py", 7, "main"))
        if next_op:
            journal.begin(journal.collective(group, next_op), 260 * MS, q=4)
    kind = "op_mismatch" if next_op else "missing_participant"
    found = finds(tmp_path, kind, [1] if at > 200 else [])
    named = "Rank 1 has not reduced bucket 1 of the model (train.py:7): no gradient of b.bias,"
    assert (named in found.summary) == (at > 200)


def test_a_deadlock_is_told_with_the_gradients_that_it_waits_for(tmp_path: Path) -> None:
    """Rank 1 went on to another group, and rank 0 is in DDP's all_reduce."""
    for journal, group in alive(steps(tmp_path, 2)):
        sub = journal.group(name="1", ranks=[0, 1], size=2, rank=journal.rank, default=False)
        reduced = journal.collective(group, origin="c++")
        journal.begin(journal.collective(sub) if journal.rank else reduced, 220 * MS, q=3)
        if journal.rank:
            unreduced(journal, group, 210, 0, "a.bias", over=205 * MS)
    found = finds(tmp_path, "deadlock", [1])
    assert "Rank 1 has not reduced bucket 0 of the model: no gradient of a.bias" in found.summary


def test_of_several_models_that_of_the_pass_before_is_told(tmp_path: Path) -> None:
    """Rank 1 is in the next model's bucket, which is of another size."""
    for journal, group in alive(steps(tmp_path, 2)):
        reduced = journal.collective(group, origin="c++", shapes=[[4 + (journal.rank or 0)]])
        journal.begin(reduced, 210 * MS, q=3)
        if journal.rank:
            unreduced(journal, group, 205, 0, "aux.bias", settled=1)
    found = finds(tmp_path, "shape_mismatch", [1])
    assert "Rank 1 has not reduced bucket 0 of the model: no gradient of aux.bias" in found.summary
