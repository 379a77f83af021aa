"""Members of a group that are out of step: told where it began, and not where it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.diagnosis import job
from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS
from support.scenes import alive, beat, create, leave, only, steps

USUAL = ("grad", "norm", "loss") * 8
LINES = {"grad": 10, "norm": 20, "loss": 30, "log": 40, "eval": 50}


def run(folder: Path, courses: list[tuple[str, ...]], *, ends: bool, helper: bool = False) -> None:
    """Ranks reduce at these lines; ``ends``: all is over; ``helper``: the lines are callers'."""
    for journal, group in steps(folder, len(courses), count=0):
        course = courses[journal.rank or 0]
        for number, name in enumerate(course, 1):
            inner = [("help.py", 3, "reduce")] if helper else []
            where = journal.stack(*inner, ("train.py", LINES[name], name))
            op = "all_gather" if name == "eval" else "all_reduce"
            call = journal.collective(group, op, stack=where)
            t = (100 + number) * MS
            if ends or number < len(course):
                journal.run(call, t=t, d=MS // 2, q=number)
            else:
                journal.begin(call, t, q=number)
        if ends:
            leave(journal, 500 * MS)
        else:
            beat(journal, 20)


def by_states(folder: Path) -> list[RuleFinding]:
    """Without a table, as where Polars is not installed."""
    return list(job.judged([str(folder)], choose=lambda jobs: [one.id for one in jobs]).findings)


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
@pytest.mark.parametrize("helper", [False, True])
def test_a_shift_nobody_notices_is_a_warning(tmp_path: Path, read: object, helper: bool) -> None:
    """Rank 2 leaves out its fifth call and makes one more; of a helper's the callers differ."""
    skipped = (*USUAL[:7], *USUAL[8:], "grad")
    run(tmp_path, [USUAL, USUAL, skipped], ends=True, helper=helper)
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.severity, found.certainty) == ("divergence", "warning", "likely")
    assert found.summary == (
        "Rank 2 is out of step with ranks 0, 1 in the default group since #8: rank 2 skipped"
        " all_reduce at train.py:20; 17 results since were mixed."
    )
    assert (found.seq, len(found.culprits)) == (8, 1)


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
@pytest.mark.parametrize("own", [False, True])
def test_a_module_that_one_rank_skips_is_named(tmp_path: Path, own: bool, read: object) -> None:
    """FSDP's equal gathers: modules tell which one; nothing if each rank has ``own`` names."""
    for journal, group in steps(tmp_path, 2, count=0):
        rank = journal.rank or 0
        layers = [0, 1, 2, 3] * 3 + [0, 2, 3] * (rank and not own) + [0, 1, 2, 3] * 3
        for number, layer in enumerate(layers[:20], 1):
            args = {"module": f"layers.{layer + 4 * own * rank}"}
            call = journal.collective(group, "all_gather_into_tensor", args=args)
            journal.run(call, t=(100 + number) * MS, d=MS // 2, q=number)
        leave(journal, 500 * MS)
    found = [f for f in read(tmp_path) if f.severity != "note"]  # type: ignore[operator]
    assert [(f.kind, f.op) for f in found] == [("divergence", "all_gather_into_tensor")] * (not own)
    told = "rank 1 skipped all_gather_into_tensor of layers.1 at train.py:10"
    assert own or told in found[0].summary


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("third", [(), ("loss",)])
def test_an_order_that_is_another_one_from_a_step_on_is_a_warning(
    tmp_path: Path, read: object, ends: bool, third: tuple[str, ...]
) -> None:
    """Two calls the other way round; while it runs, in a loop of two, one may be left out."""
    usual = ("grad", "norm", *third) * 12
    other = usual[: 4 * (2 + len(third))] + ("norm", "grad", *third) * 8
    run(tmp_path, [usual, usual, other], ends=ends)
    found = only(read(tmp_path))  # type: ignore[operator]
    number, mixed = 4 * (2 + len(third)) + 1, 16 if ends or third else 15
    either = "" if ends or third else " (or skipped all_reduce at train.py:10 once)"
    assert (found.kind, len(found.culprits)) == (("divergence", 1) if ends else ("no_progress", 0))
    assert f" since #{number}: rank 2 made all_reduce at train.py:20 before" in found.summary
    assert found.summary.endswith(
        f" all_reduce at train.py:10, again and again{either}; {mixed} results"
        f" {'since' if ends else 'before it'} were mixed."
    )


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
def test_the_last_consequence_is_told_with_where_it_began(tmp_path: Path, read: object) -> None:
    """The shift meets another operation at last."""
    usual = (*USUAL, "eval")
    skipped = (*USUAL[:7], *USUAL[8:], "eval")
    run(tmp_path, [usual[:-1], usual[:-1], skipped], ends=False)
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.seq) == ("op_mismatch", 24)
    assert found.summary.endswith(
        "Out of step since #8: rank 2 skipped all_reduce at train.py:20; 16 results before it were"
        " mixed."
    )


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
@pytest.mark.parametrize("extra", [("log", "log"), ("grad", "grad"), ("log", "log", "log", "log")])
@pytest.mark.parametrize("then", [("eval",), ()])
def test_several_calls_more_in_a_loop_that_is_in_step_again(
    tmp_path: Path, read: object, extra: tuple[str, ...], then: tuple[str, ...]
) -> None:
    """As many as the loop has, or twice: all meet their own again until others go on."""
    usual = ("grad", "norm") * 12
    more = (*usual[:13], *extra, *usual[13:])[: 24 + 1]
    if then:
        run(tmp_path, [(*usual, *then)] * 2 + [more], ends=False)
    else:
        for journal, group in alive(steps(tmp_path, 3, count=0)):
            for number, name in enumerate(more if journal.rank == 2 else usual, 1):
                where = journal.stack(("train.py", LINES[name], name))
                call, t = journal.collective(group, stack=where), (100 + number) * MS
                journal.begin(call, t, q=number) if number > 24 else journal.run(
                    call, t=t, d=MS // 2, q=number
                )
    found = only(read(tmp_path))  # type: ignore[operator]
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


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
def test_an_exception_by_which_a_call_was_skipped_is_told(tmp_path: Path, read: object) -> None:
    """Rank 2's eighth call raised, took no number, and nobody heard of it."""
    for journal, group in steps(tmp_path, 3, count=0):
        number = 0
        for step, name in enumerate((*USUAL, "grad") if journal.rank == 2 else USUAL):
            where = journal.stack(("train.py", LINES[name], name))
            call, t = journal.collective(group, stack=where), (100 + step) * MS
            if journal.rank == 2 and step == 7:
                raised = journal.begin(call, t, q=number + 1)
                journal.end(raised, 1000, x=journal.string("ValueError: not contiguous"), f=1)
                continue
            number += 1
            journal.run(call, t=t, d=MS // 2, q=number)
        leave(journal, 500 * MS)
    found = only(read(tmp_path))  # type: ignore[operator]
    assert (found.kind, found.seq, len(found.culprits)) == ("divergence", 8, 1)
    assert found.summary.endswith(
        "Then all_reduce (train.py:20) raised on rank 2, which went on without it: ValueError: not"
        " contiguous."
    )
    assert (found.hint or "").startswith("Find why the call at train.py:20 raised on rank 2")


@pytest.mark.parametrize("read", [lambda folder: list(diagnose(folder).found), by_states])
@pytest.mark.parametrize("helper", [False, True])
def test_a_rank_that_logs_by_another_line_is_in_step(
    tmp_path: Path, read: object, helper: bool
) -> None:
    """In each step, under the same numbers."""
    logging = tuple("log" if name == "loss" else name for name in USUAL)
    run(tmp_path, [logging, USUAL, USUAL], ends=True, helper=helper)
    assert read(tmp_path) == []  # type: ignore[operator]


def hanging(
    folder: Path, course: tuple[str, ...], *, then: str = "recv", helper: bool = False
) -> RuleFinding:
    """Rank 2 waits for rank 0, who made one call more, or a group, or calls with another size."""
    inner = [("help.py", 3, "reduce")] * helper
    for journal, group in alive(steps(folder, 3, count=0)):
        called = course if journal.rank == 2 else ("grad", "norm") * 3
        for number, name in enumerate(called, 1):
            where = journal.stack(*inner, ("train.py", LINES[name], name))
            call, t = journal.collective(group, stack=where), (100 + number) * MS
            if number < 6:
                journal.run(call, t=t, d=MS // 2, q=number)
            else:
                journal.begin(call, t, q=number)
        if journal.rank == 2 and then == "recv":
            journal.begin(journal.message(group, "recv", 0), 120 * MS, q=1)
        elif journal.rank == 2 and then == "other":
            where = journal.stack(("train.py", 40, "patiently"))
            other = journal.collective(group, stack=where, shapes=[[8]], bytes=32)
            journal.begin(other, 120 * MS, q=6)
        elif journal.rank == 2:
            create(journal, 120 * MS, [0, 1, 2])
    return only(by_states(folder))


@pytest.mark.parametrize("helper", [False, True])
@pytest.mark.parametrize(
    ("then", "kind"),
    [("recv", "deadlock"), ("create", "group_mismatch"), ("other", "shape_mismatch")],
)
def test_the_line_of_a_call_left_out(tmp_path: Path, then: str, kind: str, helper: bool) -> None:
    """Rank 2 left out its fifth call and went on."""
    course = ("grad", "norm", "grad", "norm", "norm")
    found = hanging(tmp_path, course, then=then, helper=helper)
    assert found.kind == kind
    assert found.summary.endswith(
        "To #5 of the default group, the last that all have made, came ranks 0, 1 by all_reduce at"
        " train.py:10 and rank 2 by all_reduce at train.py:20: one of these lines was left out, or"
        " called twice."
    )


def test_a_call_left_out_some_calls_before_is_told_with_its_line(tmp_path: Path) -> None:
    """Rank 2 left out its fourth call, and made one more that matched before it went on."""
    found = hanging(tmp_path, ("grad", "norm", "grad", "grad", "norm"))
    assert found.summary.endswith(
        "To #4 of the default group, from which on lines differ, came ranks 0, 1 by all_reduce at"
        " train.py:20 and rank 2 by all_reduce at train.py:10: one of these lines was left out, or"
        " called twice."
    )
    assert [where.line for where in found.locations][-2:] == [LINES["norm"], LINES["grad"]]


def test_lines_that_differed_before_say_nothing(tmp_path: Path) -> None:
    """Rank 2 comes to its calls by lines in another order."""
    found = hanging(tmp_path, ("grad", "grad", "norm", "norm", "norm"))
    assert found.kind == "deadlock"
    assert "one of these lines" not in found.summary
