"""Faults of collectives: who is missing, whose arguments differ, and what is legal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.diagnosis.positions import places
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.process import Process
from disttrace_viewer.wording.sentences import NATIVE
from support.journals import MS, PEER_GONE, Frame, Journal, S, workers
from support.scenes import (
    act,
    alive,
    all_gone,
    findings,
    finds,
    hang_without,
    only,
    ranks,
    steps,
    stuck,
    verdict,
)


def test_a_rank_outside_communication_is_missing(tmp_path: Path) -> None:
    """Rank 2 stands in its loader; the others are named with line and time, rank 2 with its own."""
    for journal, _ in hang_without(tmp_path, 3, 2):
        journal.stand(3 * S, "/src/loader.py", 9, "load")
    found = finds(tmp_path, "missing_participant", [2], certainty="certain", seq=3, waiting=[0, 1])
    assert found.summary == (
        "Rank 2 never joined all_reduce #3 of the default group: ranks 0, 1 have been waiting at"
        " train.py:10 for 19.8 s; rank 2 is at loader.py:9 in load, not in any collective."
    )
    assert (found.locations[0].file, found.locations[0].line) == ("/src/loader.py", 9)


def test_a_part_that_the_program_named_is_said_and_hides_no_operation(tmp_path: Path) -> None:
    """As around the steps of a trainer: what a collective is a part of is told before that."""
    for outer, told in (("annotate", "'epoch 0 batch 2'"), ("gather_object", "gather_object")):
        folder = tmp_path / outer
        for journal, group in alive(steps(folder, 2)):
            named = journal.call("annotate", kind="composed", name="epoch 0 batch 2")
            around = journal.begin(named, 190 * MS)
            if outer != "annotate":
                around = journal.begin(journal.call(outer, kind="composed"), 195 * MS, p=around)
            if journal.rank == 1:
                journal.stand(3 * S, "/src/loader.py", 9, "load")
            else:
                journal.begin(journal.collective(group), 200 * MS, q=3, p=around)
        found = only(findings(folder))
        assert f"all_reduce #3 of the default group inside {told}: rank 0" in found.summary


def test_who_destroyed_its_groups_before_the_others_is_said_to_have(tmp_path: Path) -> None:
    """Rank 2 has left by an early return, and is at work alone."""
    for journal, _ in hang_without(tmp_path, 3, 2):
        where = journal.stack(("train.py", 40, "finish"))
        journal.run(journal.call("destroy_process_group", kind="composed", stack=where), S, MS)
        journal.stand(3 * S, "/src/report.py", 9, "write")
    told = "; rank 2 is at report.py:9 in write, after destroy_process_group at train.py:40."
    finds(tmp_path, "missing_participant", [2], ends=told)


@pytest.mark.parametrize("before", [False, True])
def test_the_fewer_at_a_line_where_nobody_was_before(tmp_path: Path, *, before: bool) -> None:
    """Rank 0 reduces alone, or the others are late for a line where some have been before."""
    alone = {"stack": ("train.py", 10 if before else 60, "main")}
    stuck(tmp_path, alone, *["at loader.py:9 load"] * 2)
    blamed, certainty = ([1, 2], "certain") if before else ([], "likely")
    found = finds(tmp_path, "missing_participant", blamed, certainty=certainty)
    assert ("None of the missing has called" in str(found.hint)) is not before


@pytest.mark.parametrize(
    ("keys", "waits", "has_ddp"),
    [({}, False, False), ({"origin": "c++"}, True, False), ({"origin": "c++"}, False, True)],
)
def test_a_clean_end_is_missing_and_no_failure(
    tmp_path: Path, keys: dict[str, Any], *, waits: bool, has_ddp: bool
) -> None:
    """Before a collective of the program, a functional one in a backward, or DDP's reducer."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            number = journal.begin(journal.collective(group, **keys), 200 * MS, q=3)
            if waits:
                journal.record(w=number, d=MS)
            journal.beat(20)
        else:
            journal.leave(210 * MS)
    found = finds(tmp_path, "missing_participant", [1], says="rank 1 has ended")
    assert "uneven inputs" in (found.hint or "")
    assert ("join() of DistributedDataParallel" in (found.hint or "")) is has_ddp


def test_one_extra_call_of_those_who_wait_blames_nobody(tmp_path: Path) -> None:
    """Rank 0 called once more at another line; leaving that out makes both sequences equal."""
    for journal, group in alive(steps(tmp_path, 2, count=1)):
        usual = journal.collective(group)
        extra = journal.collective(group, stack=("train.py", 77, "evaluate"))
        calls = [extra, usual, usual] if journal.rank == 0 else [usual, usual]
        for number, call in enumerate(calls, 2):
            if number < 4:
                journal.run(call, t=200 * MS + number * MS, d=MS, q=number)
            else:
                journal.begin(call, 300 * MS, q=4)
    found = finds(tmp_path, "missing_participant", [], certainty="likely")
    assert "one more call at train.py:77" in (found.hint or "")


def test_a_rank_without_a_journal_is_not_blamed(tmp_path: Path) -> None:
    """It was there when the group was made; whether it came to this collective is not known."""
    for journal, _ in hang_without(tmp_path, 3, 2, beats=False):
        journal.remove()
    found = finds(tmp_path, "missing_participant", [], certainty="likely", absent_ranks=())
    assert "of rank 2 no journal was found, so it is not known whether it came" in found.summary


def test_beside_a_rank_without_a_journal_who_is_away_is_named(tmp_path: Path) -> None:
    """But if somebody lost a connection, the rank without a journal may have failed before."""
    for lost, culprits in ((False, [1]), (True, [])):
        folder = tmp_path / str(lost)
        for journal, group in steps(folder, 4):
            if journal.rank == 2:
                journal.remove()
                continue
            if journal.rank == 1:
                journal.stand(5 * S, "loader.py", 8, "load")
            else:
                number = journal.begin(journal.collective(group), 200 * MS, q=3)
                if lost and journal.rank == 3:
                    journal.end(number, 20 * MS, x=journal.string(PEER_GONE))
            journal.beat(20)
        finds(folder, "missing_participant", culprits, certainty="likely")


ODD: list[tuple[str, dict[str, Any], str]] = [
    ("op_mismatch", {"op": "all_gather", "reduce_op": None}, "all_gather"),
    ("dtype_mismatch", {"dtypes": ["float64"]}, "float64"),
    ("shape_mismatch", {"shapes": [[8]], "bytes": 32}, "8 elements"),
    ("reduce_op_mismatch", {"reduce_op": "MAX"}, "MAX"),
]


@pytest.mark.parametrize(("kind", "odd", "word"), ODD)
def test_who_is_in_no_majority(tmp_path: Path, kind: str, odd: dict[str, Any], word: str) -> None:
    """Also when everybody returned."""
    for journal, group in steps(tmp_path, 3):
        keys = dict(odd) if journal.rank == 1 else {}
        op = keys.pop("op", "all_reduce")
        journal.run(journal.collective(group, op, **keys), t=200 * MS, d=MS, q=3)
        journal.leave(300 * MS)
    finds(tmp_path, kind, [1], seq=3, certainty="certain", look=all_gone, says=word)


def test_one_against_one_names_nobody(tmp_path: Path) -> None:
    """Of two ranks both sides are shown."""
    stuck(tmp_path, "all_reduce", "all_gather")
    found = finds(tmp_path, "op_mismatch", [], waiting=[0, 1])
    assert {place.op for place in found.locations} == {"all_gather", "all_reduce"}


@pytest.mark.parametrize(("odd", "usual", "told"), [
    ([("helper.py", 5, "evaluate"), ("train.py", 14, "main")], [("train.py", 16, "main")], (
        "rank 0 all_gather (helper.py:5 <- train.py:14)", "ranks 1, 2 all_reduce (train.py:16)",
    )),
    ([("helper.py", 34, "gather"), ("roll.py", 50, "f"), ("train.py", 90, "main")],
     [("helper.py", 34, "gather"), ("train.py", 57, "head"), ("train.py", 90, "main")], (
        "rank 0 all_reduce with 4 elements (helper.py:34 <- roll.py:50)",
        "ranks 1, 2 all_reduce with 8 elements (helper.py:34 <- train.py:57)",
    )),
], ids=["a helper on one side", "one line of a helper"])  # fmt: skip
def test_callers_are_told_where_they_parted(
    tmp_path: Path, odd: list[Frame], usual: list[Frame], told: tuple[str, ...]
) -> None:
    """The innermost that differ, in the sentence, in the hint and as values."""
    one_line = odd[0] == usual[0]
    for journal, group in alive(steps(tmp_path, 3), 30):
        stack = journal.stack(*(usual if journal.rank else odd))
        size = 8 if journal.rank else 4
        op = "all_reduce" if journal.rank or one_line else "all_gather"
        call = journal.collective(group, op, shapes=[[size if one_line else 4]], stack=stack)
        journal.begin(call, S, q=3)
    found = only(findings(tmp_path))
    assert all(words in found.summary for words in told)
    if one_line:
        assert "The call at helper.py:34 <- roll.py:50 met another one" in (found.hint or "")
        callers = sorted(line for _, line in found.callers)
        assert callers == ["roll.py:50", *2 * ["train.py:57"]]


def test_different_roots_come_before_the_barrier_after_them(tmp_path: Path) -> None:
    """The third rank has returned and stands alone in the next collective: a consequence."""
    for journal, group in alive(steps(tmp_path, 3)):
        root = 1 if journal.rank == 1 else 0
        call = journal.collective(group, "broadcast", root=root)
        if journal.rank == 2:
            journal.run(call, t=200 * MS, d=MS, q=3)
            journal.begin(journal.collective(group, "barrier", shapes=None), 300 * MS, q=4)
        else:
            journal.begin(call, 200 * MS, q=3)
    found = finds(tmp_path, "root_mismatch", [1], seq=3)
    assert found.consequences == ("Rank 2 waits in barrier #4 of the default group (train.py:10).",)


def test_an_abort_inside_a_difference_is_its_consequence(tmp_path: Path) -> None:
    """Rank 1 dies without an exit record in the collective in which rank 0 brought another size."""
    for journal, group in steps(tmp_path, 3):
        size = 8 if journal.rank == 0 else 4
        call = journal.collective(group, shapes=[[size]])
        journal.begin(call, 200 * MS, q=3)
        if journal.rank != 1:
            journal.beat(20)
    finds(tmp_path, "shape_mismatch", [0], consequences=("Rank 1 fell silent.",))


def test_scatter_and_gather_differ_by_rank_and_are_legal(tmp_path: Path) -> None:
    """The root passes a list of tensors, the others receive one."""
    for journal, group in steps(tmp_path, 2):
        shapes = [[4], [4]] if journal.rank == 0 else [[4]]
        scatter = journal.collective(group, "scatter", root=0, shapes=shapes)
        slots = {"output_shapes": [[4], [4]]} if journal.rank == 0 else None
        gather = journal.collective(group, "gather", root=0, args=slots)
        journal.run(scatter, t=200 * MS, d=MS, q=3)
        journal.run(gather, t=300 * MS, d=MS, q=4)
        journal.leave(400 * MS)
    assert findings(tmp_path, look=all_gone) == []


@pytest.mark.parametrize("op", ["gather", "all_to_all_single"])
def test_parts_that_do_not_fit_are_compared_pair_by_pair(tmp_path: Path, op: str) -> None:
    """Rank 2 gathers six elements into a slot of four, or expects more rows than others send."""
    acts: list[dict[str, Any]] = []
    for rank in range(3):
        taken, slots = [1 + (rank == 2)] * 3, [[4], [4], [4]]
        split: dict[str, Any] = {"shapes": [[3]], "splits": [[1, 1, 1], taken]}
        split["args"] = {"output_shapes": [[sum(taken)]]}
        rooted = {"root": 0, "shapes": [[6 if rank == 2 else 4]]}
        rooted["args"] = {"output_shapes": slots} if rank == 0 else None
        acts.append({"op": op, **(rooted if op == "gather" else split)})
    stuck(tmp_path, *acts)
    finds(tmp_path, "shape_mismatch", [2])


def test_everybody_in_and_nobody_returns_is_no_progress(tmp_path: Path) -> None:
    stuck(tmp_path, "all_reduce", "all_reduce")
    finds(tmp_path, "no_progress", [], certainty="likely", waiting=[0, 1])


def test_who_came_just_before_the_end_leaves_no_time_to_move(tmp_path: Path) -> None:
    """The last one joined after ten seconds, and then all was ended."""
    for journal, group in alive(steps(tmp_path, 2)):
        late = journal.rank == 1
        journal.begin(journal.collective(group), 19 * S + 500 * MS if late else 200 * MS, q=3)
    assert findings(tmp_path, look=all_gone) == []
    assert findings(tmp_path) == []


def test_an_end_that_was_lost_is_no_wait(tmp_path: Path) -> None:
    """Rank 0's thread has gone on since, so it left the call, although its end is not there."""
    for journal, group in alive(steps(tmp_path, 2)):
        call = journal.collective(group)
        if journal.rank == 0:
            journal.begin(call, 200 * MS, q=3)
        else:
            journal.run(call, t=200 * MS, d=MS, q=3)
        journal.run(call, t=300 * MS, d=MS, q=4)
    assert findings(tmp_path) == []


def test_one_that_left_a_call_of_a_subgroup_out_is_told_in_the_hint(tmp_path: Path) -> None:
    """Rank 2 is in the last barrier, and the other leaders wait for it in their group."""
    for journal, world in alive(steps(tmp_path, 4)):
        leaders = journal.group(name="1", ranks=[0, 1, 2], size=3, default=False)
        if (journal.rank or 0) < 2:
            journal.begin(journal.collective(leaders), 200 * MS, q=1)
        else:
            act(journal, world, {"op": "barrier", "stack": ("train.py", 16, "main")})
    told = "or rank 2 is one call short in group [0-2] (none against 1 of ranks 0, 1): look for a"
    finds(tmp_path, "deadlock", [], hints=told)


def nccl(journal: Journal, ranks: list[int], name: str) -> int:
    """A call of an all_reduce on NCCL in a group of its own."""
    group = journal.group(name=name, ranks=ranks, size=len(ranks), backends={"cuda": "nccl"},
                          default=False)  # fmt: skip
    return journal.collective(group, backend="nccl", device="cuda")


def test_on_nccl_what_stands_behind_a_hanging_operation_has_not_begun(tmp_path: Path) -> None:
    """Both ranks issued both, in opposite order, and their hosts went on: a deadlock."""
    for journal, _ in alive(steps(tmp_path, 2)):
        calls = [nccl(journal, [0, 1], name) for name in "ab"]
        for place, call in enumerate(calls if journal.rank else calls[::-1]):
            journal.issue(call, 200 * MS + place * MS, q=1)
    finds(tmp_path, "deadlock", [])


def test_on_nccl_a_returned_call_is_in_flight_until_the_device_has_done_it(tmp_path: Path) -> None:
    """Rank 0's call returned, and it stands in `.item()`; rank 1 never came."""
    for journal, _ in alive(steps(tmp_path, 2)):
        call = nccl(journal, [0, 1], "a")
        if journal.rank == 0:
            journal.issue(call, 200 * MS, q=1)
            journal.stand(5 * S, "/src/train.py", 44, "log")
    found = finds(tmp_path, "missing_participant", [1])
    assert {(p.line, p.op) for p in found.locations} >= {(10, "all_reduce"), (44, "all_reduce")}


def test_who_is_aborted_since_a_peer_is_gone_is_not_to_blame(tmp_path: Path) -> None:
    """NCCL's watchdog ends rank 0 with SIGABRT a moment after rank 1 was killed."""
    for journal, _ in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.issue(nccl(journal, [0, 1], "a"), 200 * MS, q=1)
        else:
            nccl(journal, [0, 1], "a")
        journal.record(hb=(900 if journal.rank == 0 else 500) * MS)

    def aborted(process: Process) -> Observation:
        return Observation(alive=False, code=-6 if process.rank == 0 else -9)

    finds(tmp_path, "process_failed", [1], look=aborted)


@pytest.mark.parametrize("behind", [True, False], ids=["before it", "on the other rank"])
def test_on_nccl_an_end_that_nobody_saw_holds_up_nobody(tmp_path: Path, behind: bool) -> None:
    """Rank 1 never comes to the second; of the first, which is over, one does not know."""
    for journal, _ in alive(steps(tmp_path, 2)):
        call = nccl(journal, [0, 1], "a")
        number = journal.issue(call, 200 * MS, q=1)
        if (journal.rank == 1) is behind:
            journal.record(c=number, d=2 * MS, g=MS)
        if journal.rank == 0:
            number = journal.issue(call, 210 * MS, q=2)
    finds(tmp_path, "missing_participant", [1], seq=2)


@pytest.mark.parametrize("went_on", [False, True])
def test_on_nccl_a_device_is_stuck_with_what_others_did(tmp_path: Path, went_on: bool) -> None:
    """All have come to what its host went on to, if it did: nobody else is waited for."""
    for journal, _ in alive(steps(tmp_path, 3)):
        call = nccl(journal, [0, 1, 2], "a")
        number = journal.issue(call, 200 * MS, q=1)
        if journal.rank != 1:
            journal.record(c=number, d=2 * MS, g=MS)
        if went_on:
            number = journal.issue(call, 210 * MS, q=2)
    finds(tmp_path, "no_progress", [1], certainty="likely", seq=1, device=True)


@pytest.mark.parametrize(("asynchronous", "blamed"), [(False, []), (True, [0])])
def test_an_order_that_threads_leave_to_chance_blames_nobody(
    tmp_path: Path, asynchronous: bool, blamed: list[int]
) -> None:
    """Rank 0's barrier comes before its thread's reduction; what left before is no chance."""
    for journal, group in alive(steps(tmp_path, 3)):
        journal.define("thread", n=1, name="saver", native=7)
        reduce = journal.collective(group, asynchronous=asynchronous)
        meet = journal.collective(group, "barrier", shapes=None)
        order = [(meet, 1), (reduce, 0)] if journal.rank == 0 else [(reduce, 0), (meet, 1)]
        for n, (call, thread) in enumerate(order[: 1 if asynchronous and not journal.rank else 2]):
            number = journal.begin(call, (200 + n) * MS, q=3 + n, h=thread)
            if call == reduce and asynchronous:
                journal.record(i=number, d=MS // 2)
                journal.record(w=number, d=9 * MS)
    found = finds(tmp_path, "op_mismatch", blamed)
    assert ("threads" in (found.hint or "")) is (not blamed)


def test_on_nccl_a_wait_orders_streams(tmp_path: Path) -> None:
    """It is no wait for the device: what was waited for is over when it was seen to be complete."""
    for journal, _ in alive(steps(tmp_path, 2)):
        number = journal.issue(nccl(journal, [0, 1], "a"), 200 * MS, q=1)
        journal.record(w=number, d=MS // 5)
        journal.record(c=number, d=MS, g=MS // 2)
    assert findings(tmp_path) == []
    operations = load([str(tmp_path)]).operations
    waited = operations.filter(pl.col("wait_begin_ns").is_not_null())
    assert waited.filter(pl.col("end_ns").is_null()).is_empty()


@pytest.mark.parametrize(("last_s", "told"), [(35, []), (10, ["no_progress"])])
def test_on_nccl_a_host_may_be_far_ahead(tmp_path: Path, last_s: int, told: list[str]) -> None:
    """All was issued half a minute ago, and comes through one by one, up to some moment."""
    for journal, _ in alive(steps(tmp_path, 2), 40):
        call = nccl(journal, [0, 1], "a")
        issued = [journal.begin(call, 200 * MS + n * MS, q=n + 1) for n in range(9)]
        for number in issued:
            journal.record(i=number, d=MS // 10)
        for place, number in enumerate(issued[:8]):
            journal.record(c=number, d=(last_s - 7 + place) * S, g=S)
    assert [one.kind for one in findings(tmp_path)] == told


@pytest.mark.parametrize("more", [{}, {"o": 1}])
def test_what_nobody_saw_complete_is_no_hang(tmp_path: Path, more: dict[str, int]) -> None:
    """The device finished it or not: that is unknown, and nobody waits for it on record."""
    for journal, _ in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            number = journal.issue(nccl(journal, [0, 1], "a"), 200 * MS, q=1)
            journal.record(l=number, d=MS // 5, **more)
        else:
            nccl(journal, [0, 1], "a")
    assert [one.kind for one in findings(tmp_path) if one.severity != "note"] == []
    assert [one.kind for one in findings(tmp_path)] == ([] if more else ["unwaited_work"])


@pytest.mark.parametrize("op", ["all_reduce", "broadcast"])
def test_who_froze_after_what_others_did_is_missing_in_the_next(tmp_path: Path, op: str) -> None:
    """Rank 2 holds the GIL before the end of its reducer's operation could be noted."""
    for journal, group in steps(tmp_path, 3):
        call = journal.collective(group, op, root=0, origin="c++", stack=None)
        number = journal.issue(call, 200 * MS, q=3, d=MS)
        if journal.rank == 2:
            continue
        journal.end(number, 2 * MS)
        journal.begin(journal.collective(group, "broadcast", root=0), 205 * MS, q=4)
        journal.beat(30)
    finds(tmp_path, "missing_participant", [2], seq=4, look=lambda _: Observation(alive=True))


@pytest.mark.parametrize("failed", [True, False])
def test_a_cycle_through_another_thread_is_not_certain(tmp_path: Path, *, failed: bool) -> None:
    """Rank 1's thread for statistics is gone, and its main thread waits in another group."""
    for journal, group in alive(steps(tmp_path, 2)):
        thread = journal.numbered("thread", name="statistics", main=False)
        store = journal.prefix_store(1, "default_pg/0//", "1/")
        other = journal.group(store, name="1", nth=2, default=False)
        counts = journal.collective(other)
        journal.run(counts, 150 * MS, MS, q=1, h=thread)
        if journal.rank:
            if failed:
                where = ("train.py", 12, "count")
                journal.failure(160 * MS, "KeyError", "'norm'", where, thread=thread)
            journal.begin(journal.collective(group, "barrier", shapes=None), 300 * MS, q=3)
        else:
            journal.begin(counts, 200 * MS, q=2, h=thread)
    look = Observation(alive=True)
    found = finds(tmp_path, "deadlock", [], certainty="likely", look=lambda _: look)
    assert found.hint is not None
    if failed:
        assert "of a thread of rank 1 first: KeyError: 'norm' at train.py:12" in found.hint
    else:
        assert found.hint.startswith("The calls there are made by other threads of ranks 0, 1")


@pytest.mark.parametrize(
    ("function", "is_hinted"), [("main", False), ("save", True), (None, False)]
)
def test_uneven_inputs_need_proof(tmp_path: Path, function: str | None, *, is_hinted: bool) -> None:
    """In DDP's backward; a rank in the function that called before may have been in the loop."""
    for journal, group in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            journal.begin(journal.collective(group, origin="c++"), 200 * MS, q=3)
        elif function is not None:
            journal.stand(5 * S, "train.py", 9, function)
    assert ("uneven inputs" in (only(findings(tmp_path)).hint or "")) is is_hinted


@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_in_python_is_sure_to_lack_what_cxx_issues(tmp_path: Path, backward: bool) -> None:
    """As far as it is in no backward pass, which may be about to issue it."""
    for journal, group in alive(steps(tmp_path, 2, 0)):
        call = journal.collective(group, origin="c++")
        journal.run(call, 100 * MS, MS, q=1)
        if journal.rank == 0:
            journal.begin(call, 200 * MS, q=2)
        elif backward:
            graph = ("/lib/python3.11/site-packages/torch/autograd/graph.py", 7, "backward")
            stack = journal.stack(graph, ("train.py", 12, "main"))
            journal.record(at=5 * S, h=0, k=stack)
        else:
            journal.stand(5 * S, "loader.py", 9, "load")
    finds(
        tmp_path, "missing_participant", [1], because=(NATIVE,) if backward else (),
        certainty="likely" if backward else "certain",
    )  # fmt: skip


def test_what_cxx_issued_is_not_over_when_another_of_its_number_is(tmp_path: Path) -> None:
    """Rank 1 is the root of the broadcast, and through; rank 2 skipped it, and is in DDP's call."""
    for journal, group in alive(steps(tmp_path, 3)):
        if journal.rank == 2:
            journal.issue(journal.collective(group, origin="c++"), 200 * MS, q=3, d=MS)
            journal.stand(2 * S, "train.py", 10, "main")
            continue
        number = journal.begin(journal.collective(group, "broadcast", root=1), 200 * MS, q=3)
        if journal.rank == 1:
            journal.end(number, MS)
            journal.begin(journal.collective(group, "broadcast", root=0), 210 * MS, q=4)
    case, found = verdict(tmp_path)
    mismatch = only(found)
    assert (mismatch.kind, ranks(tmp_path, mismatch.culprits)) == ("op_mismatch", [2])
    assert "  in all_reduce #3 of the default group  train.py:10" in places(case, found)[0].line(
        case
    )


@pytest.mark.parametrize("own", [False, True], ids=["swapped", "a name of its own on each"])
def test_names_of_dimensions_tell_who_has_swapped_them(tmp_path: Path, *, own: bool) -> None:
    """One against one in a group, and the same one in each group whose names differ."""
    for journal in alive(workers(tmp_path, 4)):
        journal.world()
        rank = journal.rank or 0
        names = ("dp", "tp") if rank < 3 else ("tp", "dp")
        groups = {}
        for n, (name, ranks_of) in enumerate(
            zip(names, ([rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]), strict=True)
        ):
            groups[name] = journal.group(
                name=f"{n}{ranks_of}", desc=f"mesh_{rank}" if own else f"mesh_{name}",
                ranks=ranks_of, rank=ranks_of.index(rank), size=2, default=False,
            )  # fmt: skip
        for name, op in (("dp", "all_reduce"), ("tp", "all_gather")):
            call = journal.collective(groups[name], op)
            if (rank, name) in ((0, "dp"), (2, "dp")):
                journal.run(call, 200 * MS, 5 * MS, q=1)
                continue
            journal.begin(call, 300 * MS, q=1)
            break
    found = findings(tmp_path)[0]
    assert (found.kind, ranks(tmp_path, found.culprits)) == ("op_mismatch", [] if own else [3])
    told = "[1, 3] is 'mesh_tp' there and 'mesh_dp' elsewhere and [2, 3] is 'mesh_dp' there and"
    assert (told in found.summary) is not own
