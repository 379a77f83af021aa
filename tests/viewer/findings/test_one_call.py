"""Differing calls that were not meant for one another, and sentences that say so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.findings.finding import RuleFinding
from support.journals import MS, PEER_GONE, Journal, S
from support.scenes import alive, findings, finds, hang_without, only, ranks, steps


def test_a_skipped_call_is_told_and_not_uneven_batches(tmp_path: Path) -> None:
    """Every step reduces at two lines; in the third one rank 1 leaves out the first of them."""
    for journal, group in alive(steps(tmp_path, 4, count=0)):
        small = journal.collective(group, shapes=[[1]], stack=("hang.py", 6, "norm"))
        large = journal.collective(group, shapes=[[1000]], stack=("hang.py", 14, "step"))
        calls = [small, large, small, large, large if journal.rank == 1 else small]
        journal.run_all(calls, ends=False)
    found = finds(tmp_path, "shape_mismatch", [1])
    assert (found.hint or "").startswith("Rank 1 skipped the call at hang.py:6")


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("line", [10, 77])
def test_sizes_of_two_lines_are_no_batches(tmp_path: Path, line: int, world_size: int) -> None:
    """In its first step one rank recomputes, and so reduces a norm once more."""
    for journal, group in alive(steps(tmp_path, world_size, count=0)):
        size, at = (1, line) if journal.rank == world_size - 1 else (64, 10)
        where = journal.stack(("train.py", at, "step"))
        journal.begin(journal.collective(group, shapes=[[size]], stack=where), 200 * MS, q=1)
    found = only(findings(tmp_path))
    odd = [2] if world_size == 3 else []
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("shape_mismatch", odd)
    one, two = (77, 10) if odd else (10, 77)
    told = f"The call at train.py:{one} met another one, at train.py:{two}: look for a call that"
    assert (found.hint or "").startswith(told if line == 77 else "Compare what the ranks pass")


MORE = "Rank 0 made one more call, at train.py:77"
LESS = "Rank 0 skipped the call at train.py:77, which ranks 1, 2 make, or made one more at"


@pytest.mark.parametrize(
    ("away", "op", "told"),
    [({0}, "all_gather", MORE), ({1, 2}, "barrier", LESS)],
    ids=["rank 0 evaluates in between", "it failed, and was caught, where the others save"],
)
def test_one_more_call_of_another_kind_is_told(
    tmp_path: Path, away: set[int], op: str, told: str
) -> None:
    for journal, group in alive(steps(tmp_path, 3, count=3)):
        call = journal.collective(group)
        if journal.rank in away:
            call = journal.collective(group, op, stack=("train.py", 77, "evaluate"))
        journal.begin(call, 200 * MS, q=4)
    found = finds(tmp_path, "op_mismatch", [0])
    assert (found.hint or "").startswith(told)


@pytest.mark.parametrize("losses", [1, 2])
def test_an_operation_of_several_calls_left_out_has_a_name(tmp_path: Path, losses: int) -> None:
    """Rank 1 leaves out ``broadcast_object_list``; the next may be of several from one line too."""
    for journal, group in alive(steps(tmp_path, 3, count=0)):
        loss = journal.collective(group, stack=("train.py", 9, "step"))
        where = journal.stack(("load.py", 88, "share"))
        outer = journal.call(
            "broadcast_object_list", kind="composed", group=group, origin="python", stack=where
        )
        part, number = journal.collective(group, "broadcast", stack=where, root=0), 0
        for step in range(3):
            t = (100 + 10 * step) * MS
            left_out = (journal.rank, step) == (1, 2)
            composed = None if left_out else journal.begin(outer, t)
            for n in range(0 if left_out else 2):
                number += 1
                begun = journal.begin(part, t + n * MS, q=number, p=composed)
                if step == 2:
                    break
                journal.end(begun, MS // 2)
            if composed is not None and step < 2:
                journal.end(composed, 3 * MS)
            for _ in range(losses if step < 2 else left_out):
                number += 1
                begun = journal.begin(loss, t + 5 * MS, q=number)
                if step < 2:
                    journal.end(begun, MS // 2)
    found = finds(tmp_path, "op_mismatch", [1])
    assert (found.hint or "").startswith("Rank 1 skipped the broadcast_object_list at load.py:88")


@pytest.mark.parametrize("again", [False, True], ids=["every third step", "once more"])
def test_a_call_of_some_steps_alone(tmp_path: Path, again: bool) -> None:
    """Rank 0 leaves out an evaluation, which comes after some steps, or makes it twice."""
    for journal, group in alive(steps(tmp_path, 3, count=0)):
        step = journal.collective(group, stack=("train.py", 9, "step"))
        share = journal.collective(group, "all_gather", stack=("eval.py", 88, "share"))
        norm = journal.collective(group, stack=("train.py", 12, "step"))
        calls = [step, share, norm, step, share, share if journal.rank == 0 else norm]
        if not again:
            calls = [step, share, step, step, step, step if journal.rank == 0 else share]
        journal.run_all(calls, ends=False)
    found = finds(tmp_path, "op_mismatch", [0])
    at, due = ("eval.py:88", "train.py:12") if again else ("train.py:9", "eval.py:88")
    told = f"Rank 0 made one more call, at {at}, or left out the one at {due} and went on"
    assert (found.hint or "").startswith(told)


def test_splits_are_printed(tmp_path: Path) -> None:
    """Who sends how many rows to whom, and not those that fit."""
    for journal, group in alive(steps(tmp_path, 3)):
        rows = [2, 2, 3 if journal.rank == 1 else 2]
        call = journal.collective(
            group, "all_to_all_single", shapes=[[sum(rows)]], splits=[rows, [2, 2, 2]],
            args={"output_shapes": [[6]]},
        )  # fmt: skip
        journal.begin(call, 200 * MS, q=3)
    found = finds(tmp_path, "shape_mismatch")
    assert found.summary.endswith(
        "with sizes that do not fit: all_to_all_single (train.py:10), in which rank 1 sends 3 rows"
        " to rank 2, which expects 2."
    )
    assert "What one sends, the other must expect" in (found.hint or "")


def test_four_sends_and_five_receives(tmp_path: Path) -> None:
    """Rank 0 went on to a collective, rank 1 waits for one more message."""
    for journal, group in alive(steps(tmp_path, 2)):
        sends = journal.rank == 0
        call = journal.message(group, "send" if sends else "recv", 1 if sends else 0)
        for number in range(1, 5):
            journal.run(call, t=(200 + number) * MS, d=MS // 2, q=number)
        last = (journal.collective(group), 3) if sends else (call, 5)
        journal.begin(last[0], 300 * MS, q=last[1])
    found = finds(tmp_path, "deadlock")
    assert (found.hint or "").startswith(
        "Rank 1 is one call short in the default group (2 against 3 of rank 0), or rank 0 is one"
        " send short to rank 1 (4 against 5): look for a call that was left out"
    )


def test_an_exit_that_was_asked_for_is_no_uneven_input(tmp_path: Path) -> None:
    """Rank 1 left by os._exit(0) in the middle."""
    for journal, _ in hang_without(tmp_path, 2, 1, beats=False):
        journal.define("exit", t=210 * MS, how="os._exit", code=0, stack=("train.py", 9, "stop"))
    finds(tmp_path, "missing_participant", [1], hints="os._exit")


@pytest.mark.parametrize("named", [False, True])
def test_ddp_says_whose_model_differs(tmp_path: Path, named: bool) -> None:
    """It raises on all ranks; the counts are in the texts, and the names where they are known."""
    for journal, _ in steps(tmp_path, 3):
        rank = journal.rank or 0
        mine, other = (3, 4) if rank == 1 else (4, 3)
        text = (
            f"DDP expects same model across all ranks, but Rank {rank} has {mine} params, while"
            f" rank {0 if rank == 1 else 1} has inconsistent {other} params."
        )
        names = ["a", "b", "head", "old"][rank == 1 :][:mine] if named else []
        journal.fail(1 * S, "RuntimeError", text, parameters=names)
    found = finds(tmp_path, "process_failed", [1])
    assert ("The model of rank 1 lacks, or has frozen, a." in found.summary) == named
    assert [names for _, names in found.parameters] == [("a",)] * named


def test_parameters_without_a_gradient_have_their_names(tmp_path: Path) -> None:
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 1:
            lines = ["Parameter indices which did not receive grad for rank 1: 2"]
            journal.fail(1 * S, "RuntimeError", "not reduced", lines=lines, parameters=["b.bias"])
        else:
            journal.beat(20)
    found = only(findings(tmp_path))
    assert "for rank 1: 2 (train.py:30). In the model: b.bias." in found.summary


def of_module(journal: Journal, group: int, op: str, names: str, layer: int = 2) -> int:
    """A call that FSDP makes for a layer: all of them come from one line."""
    full = [f"layers.{layer}.{name}" for name in names.split()]
    args = {"module": f"layers.{layer}", "parameters": full}
    return journal.collective(group, op, shapes=[[4 * len(full)]], args=args)


@pytest.mark.parametrize("own", ["up.bias", "up.bias[2]"])
@pytest.mark.parametrize("op", ["reduce_scatter_tensor", "all_gather_into_tensor"])
def test_parameters_one_rank_does_not_pass_are_named(tmp_path: Path, op: str, own: str) -> None:
    """FSDP's call for a module is of another size in rank 1, or DDP's for what it shares."""
    what, usual = "gradient of " * ("reduce" in op), "up.weight up.bias down.bias"
    for journal, group in alive(steps(tmp_path, 3)):
        names = own if journal.rank == 1 else usual
        journal.begin(of_module(journal, group, op, names), 200 * MS, q=3)
    found = finds(tmp_path, "shape_mismatch", [1])
    lacking = ", ".join(f"layers.2.{one}" for one in usual.split() if one != own)
    beyond = f", and passes layers.2.{own}, which others do not" * (own not in usual)
    assert f"rank 1 {op} of layers.2 with 4 elements" in found.summary
    assert found.summary.endswith(f" Rank 1 passes no {what}{lacking}, which others do{beyond}.")


@pytest.mark.parametrize("helpers", [(9, 9), (8, 9)], ids=["", "by a helper of its own"])
def test_the_first_module_that_ranks_did_not_call_for_together_is_told(
    tmp_path: Path, helpers: Sequence[int]
) -> None:
    """Rank 1 leaves out the third layer, which is of the fourth one's size: later one breaks."""
    for journal, group in alive(steps(tmp_path, 2, count=0)):
        rank = journal.rank or 0
        log = journal.collective(group, stack=journal.stack(("train.py", helpers[rank], "log")))
        journal.run(log, 90 * MS, MS, q=1)
        layers = [0, 1, 3, 3, 1, 0] if rank else [0, 1, 2, 3, 3, 2]
        for number, layer in enumerate(layers, 2):
            last, t = number > len(layers), (100 + number) * MS
            op = "reduce_scatter_tensor" if last and rank else "all_gather_into_tensor"
            call = of_module(journal, group, op, "up.weight", layer)
            begun = journal.begin(call, t, q=number)
            if not last:
                journal.end(begun, MS // 2)
    found = only([*diagnose(tmp_path).found])
    told = (
        "To #4 of the default group, from which on modules differ, rank 0 came by all_gather_into"
    )
    assert told in found.summary
    assert "_tensor of layers.2 at " in found.summary
    assert "an expert without tokens" in (found.hint or "")


def leaders(folder: Path, courses: dict[int, list[int]], then: Sequence[int]) -> list[RuleFinding]:
    """Ranks 0 and 2 reduce at these lines; ``then``: who is in a barrier of all."""
    for journal, group in alive(steps(folder, 4, count=0)):
        rank = journal.rank or 0
        if rank in courses:
            sub = journal.group(name="1", ranks=[0, 2], size=2, rank=rank // 2, default=False)
            for number, line in enumerate(courses[rank], 1):
                where = journal.stack(("train.py", line, "step"))
                call, t = journal.collective(sub, stack=where), (200 + number) * MS
                if number == len(courses[rank]) and rank not in then:
                    journal.begin(call, t, q=number)
                else:
                    journal.run(call, t=t, d=MS // 2, q=number)
        if rank in then or rank not in courses:
            where = journal.stack(("train.py", 26, "main"))
            call = journal.collective(group, "barrier", shapes=None, stack=where)
            journal.begin(call, 300 * MS, q=1)
    return [*diagnose(folder).found]


@pytest.mark.parametrize("lines", [[10], [10, 11]])
def test_who_is_one_call_short_is_told(tmp_path: Path, lines: list[int]) -> None:
    """Rank 2 left out one of twelve; where the group has two lines, they tell which one."""
    all_of = lines * (12 // len(lines))
    courses = {0: all_of, 2: [*all_of[:4], *all_of[5:]]}
    found = only(leaders(tmp_path, courses, [2]))
    assert (found.kind, found.culprits) == ("deadlock", ())
    if len(lines) == 1:
        assert (found.hint or "").startswith(
            "Rank 2 is one call short in group [0, 2] (11 against 12 of rank 0), or rank 0 is one"
            " call short in the default group (none against 1 of ranks 1-3): look for a call that"
        )
    else:
        assert "Out of step in group [0, 2] since #5: " in found.summary
        assert "skipped all_reduce at train.py:10" in found.summary
    assert (found.hint or "").endswith("another order.") is (len(lines) == 1)


@pytest.mark.parametrize("short", [1, 3], ids=["in the midst", "the last stage"])
def test_who_left_a_collective_out_is_a_round_ahead(tmp_path: Path, short: int) -> None:
    """A pipeline passes a batch along, then all gather; one leaves the gathering out once."""
    for journal, group in alive(steps(tmp_path, 4, count=0)):
        rank, t = journal.rank or 0, 200 * MS
        gather = journal.collective(group, "all_gather", stack=("train.py", 50, "metrics"))
        recv = journal.message(group, "recv", rank - 1) if rank else 0
        send = journal.message(group, "send", rank + 1) if rank < 3 else 0
        for n in range(1, 5):
            for call in (recv, send):
                if call:
                    t += 2 * MS
                    journal.run(call, t=t, d=MS, q=n)
            t += 50 * MS
            if n < 4:
                journal.run(gather, t=t, d=5 * MS, q=n)
        call, q = (recv, 5) if rank == short else (gather, 4)
        journal.begin(call, t, q=q)
    found = only(findings(tmp_path))
    others = ", ".join(str(rank) for rank in range(4) if rank != short)
    assert found.kind == "deadlock"
    assert ranks(tmp_path, found.culprits) == ([1] if short == 1 else [])
    if short == 1:
        assert (found.hint or "").startswith("Rank 1 went on to recv from rank 0 (train.py:20)")
        told = f"in which ranks {others} are: look for a call that it left out"
        assert told in (found.hint or "")
    else:
        assert (found.hint or "").startswith("Rank 3 is one call short in the default group")
        assert ", or rank 2 is one send short to rank 3" in (found.hint or "")


ERROR = "TypeError: cannot pickle '_thread.lock' object"
TOLD = f"went on without it: {ERROR}."


def gather_object(journal: Journal, group: int, t: int, q: int, *, raises: str = "") -> None:
    """``all_gather_object``, in its first collective; or raised before that, as it pickles."""
    where = journal.stack(("train.py", 15, "collect"), ("train.py", 32, "main"))
    keys = {"kind": "composed", "group": group, "origin": "python", "stack": where}
    outer = journal.call("all_gather_object", **keys)
    number = journal.begin(outer, t)
    if raises:
        journal.end(number, MS // 4, x=journal.string(raises))
    else:
        journal.begin(journal.collective(group, "all_gather", stack=where), t + 1000, q=q, p=number)


def scatter(journal: Journal, group: int, t: int, q: int, *, raises: str = "") -> None:
    """``scatter``, in flight; or refused on issue: then its number is given back."""
    call = journal.collective(group, "scatter", stack=("train.py", 16, "share"))
    number = journal.begin(call, t, q=q)
    if raises:
        journal.end(number, MS // 4, x=journal.string(raises), f=1)


@pytest.mark.parametrize("make", [gather_object, scatter])
@pytest.mark.parametrize(("world_size", "who"), [(3, [1]), (2, [1]), (3, [1, 2])])
def test_who_raised_who_went(tmp_path: Path, make: type, world_size: int, who: list[int]) -> None:
    """Be they one of two, or most: it is they who are not where they should be."""
    for journal, group in alive(steps(tmp_path, world_size)):
        raises = ERROR if journal.rank in who else ""
        make(journal, group, 200 * MS, 3, raises=raises)
        if raises:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
    found = only(findings(tmp_path))
    line = 15 if make is gather_object else 16
    certainty = "certain" if len(who) == 1 else "likely"
    assert (found.kind, found.certainty) == ("op_mismatch", certainty)
    assert ranks(tmp_path, found.culprits) == who
    assert found.summary.endswith(TOLD)
    name = "scatter" if line == 16 else "all_gather_object"
    assert f"Just before, {name} (train.py:{line})" in found.summary
    assert (found.hint or "").startswith(f"Find why the call at train.py:{line} raised on rank")
    assert ERROR in (found.hint or "")
    assert "inputs" not in (found.hint or "")
    assert any(place.line == line and place.process in found.culprits for place in found.locations)


@pytest.mark.parametrize("between", ["call", "thread", "peer", "place"])
def test_an_exception_of_something_else_is_not_told(tmp_path: Path, between: str) -> None:
    """Another call came after it in that group; another thread; over a lost peer; elsewhere."""
    for journal, group in alive(steps(tmp_path, 3)):
        at = 4 if between == "call" else 3
        if journal.rank == 1:
            line = journal.stack(("other.py", 99, "log"))
            kind, op = "composed", "gather_object" if between == "place" else "all_gather_object"
            outer = journal.call(op, kind=kind, group=group, origin="python", stack=line)
            thread = {"h": 1} if between == "thread" else {}
            number = journal.begin(outer, 200 * MS, **thread)
            error = journal.string(PEER_GONE if between == "peer" else ERROR)
            journal.end(number, MS // 4, x=error)
        if between == "call":
            journal.run(journal.collective(group), t=205 * MS, d=MS // 2, q=3)
        if journal.rank == 1:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=at)
        else:
            gather_object(journal, group, 210 * MS, at)
    found = finds(tmp_path, "op_mismatch", [1])
    assert "raised" not in found.summary + (found.hint or "")


@pytest.mark.parametrize("make", [gather_object, scatter])
def test_who_went_on_to_nothing_is_missing_for_that(tmp_path: Path, make: type) -> None:
    """Rank 1 caught it and is in no collective since."""
    for journal, group in alive(steps(tmp_path, 3)):
        make(journal, group, 200 * MS, 3, raises=ERROR if journal.rank == 1 else "")
    found = finds(tmp_path, "missing_participant", [1], ends=TOLD)
    assert (found.hint or "").startswith("Find why the call at train.py:1")


def test_a_job_that_probes_is_not_blamed_for_it(tmp_path: Path) -> None:
    """All ranks tried a call that their backend has not, and rank 1 is in its loader now."""
    for journal, group in alive(steps(tmp_path, 3)):
        scatter(journal, group, 150 * MS, 3, raises=ERROR)
        if journal.rank != 1:
            journal.begin(journal.collective(group), 200 * MS, q=3)
    found = finds(tmp_path, "missing_participant", [1])
    assert "raised" not in found.summary + (found.hint or "")


@pytest.mark.parametrize("make", [gather_object, scatter])
def test_who_went_on_to_another_group_is_told_in_the_deadlock(tmp_path: Path, make: type) -> None:
    """Rank 1 is in a barrier of all, rank 0 in the call of their group that raised on rank 1."""
    for journal, group in alive(steps(tmp_path, 3)):
        rank = journal.rank or 0
        if rank < 2:
            sub = journal.group(name="1", ranks=[0, 1], size=2, rank=rank, default=False)
            journal.run(journal.collective(sub), t=150 * MS, d=MS // 2, q=1)
            make(journal, sub, 200 * MS, 2, raises=ERROR if rank == 1 else "")
        if rank:
            where = journal.stack(("train.py", 27, "main"))
            journal.begin(journal.collective(group, "barrier", stack=where), 210 * MS, q=3)
    found = finds(tmp_path, "deadlock", ends=f"raised on rank 1, which {TOLD}")
    assert (found.hint or "").startswith("Find why the call at train.py:1")
