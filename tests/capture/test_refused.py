"""Calls that torch refuses before a method is called leave an operation with the error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.preloaded import preloaded, side_by_side
from support.processes import python
from support.raw import RawJournal, read_journals

PROGRAM = Path(__file__).parent / "programs" / "refused.py"
WORLD = 3
OUTSIDE = ("broadcast", "reduce", "send", "recv")


def failed(journal: RawJournal) -> list[tuple[str, list[int] | None, str, int | None]]:
    """(operation, members of its group, exception's type, the mark of no number) in order."""
    strings = journal.strings()
    members = {r["n"]: r["ranks"] for r in journal.of("group") if "ranks" in r}
    begun = {record["b"]: call for record, call in journal.begun()}
    ends = [(begun[r["e"]], r) for r in journal.records if "x" in r]
    return [
        (call["op"], members[call["group"]], strings[r["x"]].partition(":")[0], r.get("f"))
        for call, r in ends
    ]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    traced, plain = (side_by_side(PROGRAM, WORLD, folder, mode) for mode in ("trace", "plain"))
    assert traced == plain
    return folder / "out"


def test_each_refusal_is_an_operation(traced: Path) -> None:
    """Under its public name, on its group, once, without a number; its only record if it raised."""
    journals = read_journals(traced)
    assert len(journals) == WORLD
    everywhere = [
        ("send", [0, 1, 2], "ValueError", 1),
        ("all_reduce", [0, 1, 2], "TypeError", 1),
        ("all_gather_object", [0, 1, 2], "AttributeError", None),
        ("all_reduce", [0, 1, 2], "RuntimeError", None),
    ]
    outside = [(op, [1, 2], "ValueError", 1) for op in OUTSIDE]
    found = sorted([failed(journal) for journal in journals], key=len)
    assert found == [everywhere, outside + everywhere, outside + everywhere]
    for journal in journals:
        assert journal.of("note") == []


def test_the_stack_shows_the_call(traced: Path) -> None:
    """Its first frame is the program's, with the ranks that were given beside it."""
    for journal in read_journals(traced):
        strings, stacks = journal.strings(), journal.stacks()
        for call in journal.calls().values():
            if call["op"] == "broadcast" and call.get("args") == {"src": 0}:
                assert Path(strings[stacks[call["stack"]][0][0]]) == PROGRAM


def test_what_was_caught_is_no_finding(traced: Path) -> None:
    """Nobody was harmed: diagnose says nothing of it."""
    pytest.importorskip("polars")
    outcome = python("-m", "disttrace", "diagnose", str(traced), "--json").check()
    assert json.loads(outcome.stdout)["findings"] == []


EACH_WITH_A_TEXT = """
import os, re, sys, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
if traced := os.environ["DISTTRACE"] == "1":
    from disttrace.foreign import is_our_file

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
called, raised = 0, set()

def seen(frame, event, arg):
    global called
    called += event == "call" and is_our_file(frame.f_code.co_filename)

def refused(first, count):
    global called
    called = 0
    sys.setprofile(seen if traced else None)
    for number in range(first, first + count):
        try:
            dist.send(torch.ones(1), 10_000 + number)
        except ValueError as error:
            raised.add((re.sub("[0-9]+", "", str(error)), error.__context__))
        try:
            dist.all_reduce("text of its own " * 10 + str(number))
        except TypeError as error:
            raised.add((re.sub("[0-9]+", "", str(error)), error.__context__))
    sys.setprofile(None)
    return called / count / 2

refused(0, 10)
print(*[refused(first, 100) for first in (100, 200, 1000)][1:])  # the first defines signatures
print(sorted(raised, key=str))
"""


@pytest.mark.parametrize("core", ["c", "python"])
def test_a_refusal_with_a_text_of_its_own_is_bounded_work(tmp_path: Path, core: str) -> None:
    """79 to 87 functions of ours, the thousandth time too; what is raised is as without us."""
    variables = {"DISTTRACE_DIR": str(tmp_path / "out"), "DISTTRACE_CORE": core}
    bare, printed = (
        preloaded("-c", EACH_WITH_A_TEXT, DISTTRACE=on, **variables).check().stdout.splitlines()  # type: ignore[arg-type]
        for on in "01"
    )
    assert bare == ["0.0 0.0", printed[1]]
    early, late = map(float, printed[0].split())
    assert early < 150
    assert late < early + 1
