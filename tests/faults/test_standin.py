"""A slice of the table of faults on a backend that only enqueues; `make faults BACKEND=standin`."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import standin
from faults.expectation import Row
from faults.harness import run_row
from faults.table import ROWS
from support.preloaded import torchrun
from support.processes import Outcome
from support.raw import RawJournal, read_journals

_HEALTHY, _HANGING = "pingpong_allreduce.py (torchrun)", "faults/opposite_order.py (2 ranks)"
SLICE = [row for row in ROWS if row.name in (_HEALTHY, _HANGING)]


@pytest.mark.parametrize("row", SLICE, ids=lambda row: row.name)
@pytest.mark.parametrize("semantics", ["2.13"])
def test_what_is_said_where_calls_return_at_once(row: Row, semantics: str, tmp_path: Path) -> None:
    """The host goes on, and the device waits."""
    pytest.importorskip("torch")
    assert len(SLICE) == 2
    with standin.environment(semantics) as environ:
        outcome = run_row(standin.adapted(row), tmp_path, environ)
    assert outcome.right, outcome.explain()


def _run(
    program: str, ranks: int, out: Path, *words: str, semantics: str = "2.13", **more: str
) -> Outcome:
    """A program of the folder beside this file, traced into ``out`` under ``abort``."""
    pytest.importorskip("torch")
    tracing = {"DISTTRACE": "1", "DISTTRACE_STALL": "2", "DISTTRACE_ON_STALL": "abort"}
    limit = 120 + float(more.get("STANDIN_CREATION_S", 0))
    with standin.environment(semantics) as environ:
        path = str(Path(__file__).parent / "programs" / f"{program}.py")
        given = {**tracing, "DISTTRACE_DIR": str(out), **more, **environ}
        return torchrun(path, ranks, *words, timeout=limit, **given)


@pytest.mark.parametrize(
    ("creation_s", "stall_s"), [(6, 2), pytest.param(60, 10, marks=pytest.mark.long)]
)
def test_quiet_while_communicators_are_made(creation_s: int, stall_s: int, tmp_path: Path) -> None:
    """Many limits long, and as many for a pair: told as a start, and nobody is ended."""
    more = {"STANDIN_CREATION_S": str(creation_s), "DISTTRACE_STALL": str(stall_s)}
    outcome = _run("first_calls", 3, tmp_path, **more).check()
    assert outcome.stdout.count("sum 12") == 3
    assert "disttrace: starting: NCCL makes the communicator of" in outcome.stderr
    assert "all members are in it" in outcome.stderr
    assert "stalled" not in outcome.stderr


def test_who_does_not_enter_the_first_call_is_told_at_the_limit(tmp_path: Path) -> None:
    """The other stands in the making of the communicator, and waits for it."""
    outcome = _run("first_calls", 2, tmp_path, "--missing", "1", STANDIN_CREATION_S="1")
    assert outcome.code != 0
    assert "disttrace: stalled: Rank 1 never joined all_reduce #1" in outcome.stderr
    assert "starting:" not in outcome.stderr


@pytest.mark.parametrize(
    ("missing", "semantics"),
    [
        (None, "2.13"),
        (None, "2.15"),
        ("2", "2.13"),
        pytest.param("2", "2.15", marks=pytest.mark.long),
    ],
)
def test_a_batch_ends_with_its_last(semantics: str, missing: str | None, tmp_path: Path) -> None:
    """Entries of their parts never complete on 2.13, and are complete when issued on 2.15."""
    arguments = () if missing is None else ("--missing", missing)
    outcome = _run("batched", 3, tmp_path, *arguments, semantics=semantics)
    if missing is None:
        assert outcome.check().stdout.count("all steps") == 3
        assert "disttrace: " not in outcome.stderr.replace("disttrace: waiting:", "")
        journals = [path.read_bytes() for path in tmp_path.glob("*.ops.jsonl")]
        assert sum(data.count(b'{"c":') for data in journals) >= 18  # each message was seen over
    else:
        (told,) = [t for t in outcome.stderr.splitlines() if t.startswith("disttrace: stalled")]
        assert "ank 2" in told
        assert "cycle" not in told


@pytest.mark.parametrize("missing", [False, True])
def test_what_ddp_issues_through_relays_ends_on_the_device(missing: bool, tmp_path: Path) -> None:
    """A reducer's all_reduces are C++'s, end by the device, and one not joined is told."""
    words = ("--missing",) if missing else ()
    outcome = _run("relayed", 2, tmp_path, *words, DISTTRACE_STALL="3")
    journals = read_journals(tmp_path)
    reduced = [_ends(j, "all_reduce", "c++") for j in journals if j.calls()]
    assert all(journal.of("note") == [] for journal in journals)
    if missing:
        assert outcome.code != 0
        told = [t for t in outcome.stderr.splitlines() if "disttrace: stalled" in t]
        assert "Rank 1" in told[0]
        assert len([one for each in reduced for one in each if one == "i"]) >= 1
    else:
        assert outcome.check().stdout.count("equal") == 2
        first, second = (each for each in reduced if each)
        assert first == second == ["ic"] * len(first)
        assert len(first) > 8  # two or three buckets, four steps


def _ends(journal: RawJournal, op: str, origin: str) -> list[str]:
    """What was recorded of each such operation after its begin, as the keys of records."""
    calls, found = journal.calls(), dict[int, str]()
    for record in journal.records:
        call = calls.get(record.get("s", 0), {})
        if "b" in record and (call.get("op"), call.get("origin")) == (op, origin):
            found.setdefault(record["b"], "")
        for key in "iecl":
            if record.get(key) in found:
                found[record[key]] += key
    return list(found.values())
