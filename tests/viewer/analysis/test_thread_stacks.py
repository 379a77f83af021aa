"""Where a main thread stands is believed only as long as it has done nothing since."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrace_viewer.analysis.sample import innermost, inside, latest_samples
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.process import Frame
from support.journals import MS, Journal
from support.scenes import S, all_gone, beat, findings, only, stand, steps

LOADER = ("loader.py", 9, "load")


def one(folder: Path) -> tuple[Journal, int]:
    """The journal of rank 0 of two, which has made two all_reduces, and its group."""
    ((journal, group), _) = steps(folder, 2)
    return journal, group


def shown(folder: Path) -> Frame | None:
    """The innermost line of rank 0's main thread."""
    trace = load([str(folder)])
    (index,) = (p.index for p in trace.processes if p.rank == 0)
    found = verdict_on(trace).case.evidence.samples.get(index)
    return None if found is None else found.stack[0]


def test_a_note_holds_while_nothing_is_done(tmp_path: Path) -> None:
    """Heartbeats do not count."""
    journal, _ = one(tmp_path)
    stand(journal, 3 * S, *LOADER)
    beat(journal, 20)
    assert shown(tmp_path) == LOADER


def test_a_later_operation_makes_it_old(tmp_path: Path) -> None:
    """Also a composed one, which nothing is inside of."""
    journal, _ = one(tmp_path)
    stand(journal, 3 * S, *LOADER)
    journal.run(journal.call("destroy_process_group", kind="composed"), t=4 * S, d=MS)
    assert shown(tmp_path) is None


def test_what_was_waited_for_since_makes_it_old(tmp_path: Path) -> None:
    """The operation began before the note; its thread waited for it after."""
    journal, group = one(tmp_path)
    number = journal.begin(journal.collective(group, asynchronous=True), 1 * S, q=3)
    journal.record(i=number, d=MS)
    stand(journal, 3 * S, *LOADER)
    journal.record(w=number, d=3 * S)
    assert shown(tmp_path) is None


def test_what_somebody_else_saw_complete_does_not(tmp_path: Path) -> None:
    """The background thread polls; the main one has not moved for that."""
    journal, group = one(tmp_path)
    number = journal.begin(journal.collective(group, asynchronous=True), 1 * S, q=3)
    journal.record(i=number, d=MS)
    stand(journal, 3 * S, *LOADER)
    journal.record(c=number, d=3 * S)
    assert shown(tmp_path) == LOADER


def test_another_thread_does_not_move_it(tmp_path: Path) -> None:
    """A helper that sets keys leaves the main thread where it is."""
    journal, _ = one(tmp_path)
    journal.define("thread", n=1, name="helper", native=7)
    stand(journal, 3 * S, *LOADER)
    journal.run(journal.call("store.set", kind="store"), t=5 * S, d=MS, h=1, k="alive")
    assert shown(tmp_path) == LOADER


def test_an_old_line_is_not_told(tmp_path: Path) -> None:
    """Rank 1 was seen in its loader, came out of it, left the group, and never came again."""
    for journal, group in steps(tmp_path, 2):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 5 * S, q=3)
        else:
            stand(journal, 3 * S, *LOADER)
            where = journal.stack(("train.py", 40, "main"))
            leave = journal.call("destroy_process_group", kind="composed", stack=where)
            journal.run(leave, t=4 * S, d=MS)
        beat(journal, 20)
    found = only(findings(tmp_path, look=all_gone))
    assert found.kind == "missing_participant"
    assert "rank 1 is not in any collective since destroy_process_group." in found.summary
    assert [(one.file, one.line) for one in found.locations] == [("train.py", 40), ("train.py", 10)]


@pytest.mark.parametrize("file", ["<eval_with_key>.1", "/tmp/torchinductor_me/ab/cab.py"])
def test_code_that_was_generated_is_nobodys_line(file: str) -> None:
    """A compiled step is shown at the line of the program, with the inner one in brackets."""
    stack = (Frame(file, 7, "forward"), Frame("/src/train.py", 42, "step"))
    assert innermost(stack) == stack[1]
    assert inside(stack) == stack[0]


def test_a_main_thread_that_is_a_librarys_is_not_where_the_rank_is(tmp_path: Path) -> None:
    """As in a worker of Ray's: another thread trains, and is seen in the program."""
    libraries = "/v/lib/python3.11/site-packages/ray/worker.py"
    for main, told in (
        (("train.py", 40, "main"), ("train.py", 40, "main")),
        ((libraries, 1069, "main_loop"), LOADER),
    ):
        folder = tmp_path / str(told[1])
        journal, _ = one(folder)
        journal.define("thread", n=1, name="TrainingThread", native=7)
        stand(journal, 3 * S, *main)
        stand(journal, 3 * S, *LOADER, thread=1)
        trace = load([str(folder)])
        (index,) = (p.index for p in trace.processes if p.rank == 0)
        assert latest_samples(trace, {}, {index: {1}})[index].stack[0] == told


@pytest.mark.parametrize(
    ("main", "told"),
    [
        ([("threading.py", 327, "wait"), ("train.py", 12, "main")], "train.py:12"),
        ([("selectors.py", 468, "select"), ("train.py", 12, "main")], "train.py:12"),
        ([("train.py", 12, "main")], "thread.py:58"),  # it does something of its own meanwhile
        ([("threading.py", 327, "wait")], "thread.py:58"),
    ],
)
def test_a_pool_that_was_given_the_call_itself_is_told_by_who_waits_for_it(
    tmp_path: Path, main: list[tuple[str, int, str]], told: str
) -> None:
    """`pool.submit(dist.all_reduce, x).result()`: nothing of the program is on the pool's stack."""
    library = "/usr/lib/python3.11"
    for journal, group in steps(tmp_path, 2):
        journal.define("thread", n=1, name="pool", native=7)
        if journal.rank == 0:
            pool = journal.stack((f"{library}/concurrent/futures/thread.py", 58, "run"))
            journal.begin(journal.collective(group, stack=pool), 4 * S, q=3, h=1)
            frames = [(f if f == "train.py" else f"{library}/{f}", n, name) for f, n, name in main]
            journal.record(at=6 * S, h=0, k=journal.stack(*frames))
        else:
            stand(journal, 3 * S, *LOADER)
        beat(journal, 20)
    found = only(findings(tmp_path))
    assert found.kind == "missing_participant"
    assert f"rank 0 has been waiting at {told} for" in found.summary
