"""Whose a journal is, by the name of its files."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrace.identity import Identity, file_part
from disttrace.journal import format as fmt
from disttrace.journal.writer import JournalWriter
from disttrace_viewer.companion.reading import of_job
from disttrace_viewer.load.definitions import Definitions, parse
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.text import Text
from disttrace_viewer.merge.reader import load
from support.journals import MS, training, workers


def test_a_journal_is_of_the_job_that_its_name_begins_with() -> None:
    """As a whole: another job may be called like the beginning of a longer one, or odd."""
    end = "host-17-0123456789ab.defs.jsonl"
    for name in (f"x-{end}", "x-host-17-0123456789ab.000001.ops.jsonl"):
        assert fmt.is_of_job(name, "x")
    for name in (f"x-1-{end}", f"x_1-{end}", f"xy-{end}", "x-notes.defs.jsonl"):
        assert not fmt.is_of_job(name, "x")
    for job in ("x-1", "x", "a b/c", "-", "x" * 90):
        known = Identity({}, job=job)
        assert fmt.is_of_job(f"{known.base_name()}{fmt.DEFS_SUFFIX}", file_part(job))


def test_a_companion_reads_no_other_jobs_journals(tmp_path: Path) -> None:
    """Neither of one whose name begins with its own: a thousand of them took it 40 s."""
    ours = training(tmp_path)
    assert [one.job for one in ours] == ["job"] * len(ours)
    for other in ("job-1", "job_1", "jobs"):
        training(tmp_path / other)
        for path in (tmp_path / other).iterdir():
            path.rename(tmp_path / path.name.replace("job-", f"{other}-", 1))
    found = {path for one in ours for path in (one.definitions, *one.segments)}
    read = {Path(path) for one in of_job(str(tmp_path), "job") for path in one.paths}
    assert read == found


SIZE = 4096


@given(
    st.one_of(
        st.lists(st.integers(-3, 40), max_size=40),
        st.builds(
            lambda a, n, s, rest: [*range(a, a + n * s, s), *rest],
            st.integers(0, 9), st.integers(0, 30), st.sampled_from([-2, -1, 1, 8]),
            st.lists(st.integers(0, 9), max_size=4),
        ),
    )
)  # fmt: skip
def test_ranges_stand_for_the_same_ranks(ranks: list[int]) -> None:
    """In their order, repeated ones too."""
    written = orjson.loads(orjson.dumps(fmt.ranges_of(ranks)))
    assert fmt.ranks_of(written) == tuple(ranks)
    assert fmt.ranks_of(ranks) == tuple(ranks)


@pytest.mark.parametrize(
    "value",
    [None, 3, "0-7", ["a"], [{"from": 0}], [{"from": 0, "to": 9, "step": 0}], [[[0]]],
     [{"from": 0, "to": 1 << 40}], [{"from": [], "to": 1}], [True]],
)  # fmt: skip
def test_what_is_no_list_of_ranks_is_none(value: object) -> None:
    """However it is broken, and however many ranks it claims."""
    assert fmt.ranks_of(value) is None


def test_a_group_of_thousands_costs_a_line(tmp_path: Path) -> None:
    """In the group and among the arguments of the call that made it; small ones stay plain."""
    journal = JournalWriter(str(tmp_path), "j", max_bytes=1 << 20)
    journal.define({"def": "group", "n": 1, "ranks": list(range(SIZE))})
    journal.define({"def": "call", "n": 1, "args": {"ranks": list(range(0, SIZE, 8)), "x": 1}})
    journal.define({"def": "group", "n": 2, "ranks": [0, 1, 2, 3]})
    journal.close()
    data = Path(fmt.definitions_name(str(tmp_path / "j"))).read_bytes()
    assert len(data) < 300
    assert b'"ranks":[0,1,2,3]' in data
    batch = parse(Text("j", data, 3), Problems()).numbered
    assert batch["group"][1]["ranks"] == tuple(range(SIZE))
    follow = Definitions()
    for line in data.splitlines():
        follow.add(orjson.loads(line))
    group, call = follow.get("group", 1), follow.get("call", 1)
    assert group is not None
    assert call is not None
    assert group["ranks"] is batch["group"][1]["ranks"]
    assert call["args"] == {"ranks": [{"from": 0, "to": SIZE - 8, "step": 8}], "x": 1}


def test_journals_of_format_1_are_read_alike(tmp_path: Path) -> None:
    """Their lists are numbers only, whatever their length; members share one copy."""
    for journal in workers(tmp_path, 2):
        group = journal.group(ranks=list(range(SIZE)), size=SIZE)
        args = {"ranks": list(range(0, SIZE, 2)), "t": 1.5}
        call = journal.call("new_group", kind="composed", args=args)
        journal.run(journal.collective(group), MS, MS, q=1)
        journal.run(call, 3 * MS, MS)
    trace = load([str(tmp_path)])
    assert not trace.problems
    assert [g.ranks for g in trace.groups] == [tuple(range(SIZE))]
    made = [trace.call(c) for c in range(trace.calls.height)]
    given_ranks = [c.args["ranks"] for c in made if c.op == "new_group"]
    assert given_ranks == [list(range(0, SIZE, 2))] * 2


def test_it_is_closed_afterwards(tmp_path: Path) -> None:
    """Also when what was done with it failed."""
    with fmt.opened_own(str(tmp_path / "ours"), os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"ours")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    path = str(tmp_path / "ours")
    with pytest.raises(ZeroDivisionError), fmt.opened_own(path, os.O_RDONLY) as fd:
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("taken", [True, False])
def test_a_changed_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """While the thread reads: the number is another file's, or nobody's."""
    (tmp_path / "ours").write_text("ours")
    (tmp_path / "theirs").write_text("theirs")
    theirs: list[int] = []
    read = os.pread

    def read_slowly(fd: int, length: int, offset: int) -> bytes:
        data = read(fd, length, offset)
        os.close(fd)
        if taken:
            opened = os.open(tmp_path / "theirs", os.O_RDONLY)
            theirs.append(os.dup2(opened, fd))
            os.close(opened)
        return data

    monkeypatch.setattr(os, "pread", read_slowly)
    try:
        with fmt.opened_own(str(tmp_path / "ours"), os.O_RDONLY) as fd:
            assert os.pread(fd, 6, 0) == b"ours"
        monkeypatch.undo()
        assert [os.pread(fd, 6, 0) for fd in theirs] == [b"theirs"] * taken
    finally:
        for fd in theirs:
            os.close(fd)
