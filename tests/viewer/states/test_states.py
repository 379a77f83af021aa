"""States of processes: what they are, how they merge, and what they need.

That the rules say of states what they say of journals is asked in ``support.scenes.verdict``, of
every scene of the tests of findings.
"""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.companion import messages
from disttrace_viewer.diagnosis.verdict import verdict
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems, ViewerError
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.folder import SUFFIX, read
from disttrace_viewer.states.reduce import reduce
from disttrace_viewer.states.state import MOST_BYTES, State, StateError, merge, pack, unpack
from support.journals import MS
from support.processes import python
from support.scenes import S, alive, nobody_knows, steps
from support.states import hang


def states(folder: Path, window: int | None = None) -> list[State]:
    """The states of all journals in a folder."""
    found = evidence([str(folder)], Problems())
    return [s for files in found if (s := reduce(files, window=window)) is not None]


def test_what_is_said_for_days_is_bounded(tmp_path: Path) -> None:
    """The first and the last of it; what is longer no other host takes for a state."""
    hang(tmp_path)
    definitions = next(tmp_path.glob("*.defs.jsonl"))
    with definitions.open("a") as file:
        for number in range(6_000):
            for kind in ("rendezvous", "clock"):
                record = {"def": kind, "t": number, "text": f"{number}", "unix_ns": S + number}
                file.write(orjson.dumps(record).decode() + "\n")
    state = max(states(tmp_path), key=lambda one: len(one.listed.get("rendezvous", ())))
    kept = [int(one["text"]) for one in state.listed["rendezvous"]]
    assert [*kept[:3], *kept[-3:]] == [0, 1, 2, 5997, 5998, 5999]
    assert len(kept) == len(state.listed["clock"]) < 1_000
    text = orjson.dumps(state.values(), option=orjson.OPT_NON_STR_KEYS)
    assert messages.value_of(text, messages.state).listed == state.listed


def test_the_command_needs_no_polars_for_states(tmp_path: Path) -> None:
    """Also where it is installed: to import it takes longer than most of these verdicts."""
    hang(tmp_path)
    code = (
        "import sys\n"
        "sys.modules['polars'] = None\n"
        "from disttrace.cli import main\n"
        "main(['reduce', sys.argv[1], '-o', sys.argv[2]])\n"
        "sys.exit(main(['diagnose', sys.argv[2], '--json']))"
    )
    judged = python("-c", code, str(tmp_path), str(tmp_path / "states"))
    assert judged.code == 1
    assert '"kind": "missing_participant"' in judged.stdout


@pytest.mark.parametrize("seed", range(5))
def test_any_grouping_merges_to_the_same(tmp_path: Path, seed: int) -> None:
    """In any order, in any tree, with states twice and with older ones of the same process."""
    hang(tmp_path, size=6)
    whole, tails = states(tmp_path), states(tmp_path, window=200)
    wanted = merge(whole)
    drawn = random.Random(seed)
    parts = [merge([state]) for state in (*whole, *tails, *whole[:2])]
    while len(parts) > 1:
        drawn.shuffle(parts)
        count = drawn.randint(2, 4)
        parts = [merge(parts[:count]), *parts[count:]]
    assert parts[0] == wanted
    told, all_told = (verdict(of, look=nobody_knows).findings for of in (parts[0], wanted))
    assert told == all_told


def test_a_tail_is_enough_to_be_likely(tmp_path: Path) -> None:
    """What happened before the window could change who is to blame."""
    hang(tmp_path, count=200)
    (whole,) = verdict(merge(states(tmp_path)), look=nobody_knows).findings
    (tail,) = verdict(merge(states(tmp_path, window=2_000)), look=nobody_knows).findings
    assert (whole.certainty, tail.certainty) == ("certain", "likely")
    assert (whole.kind, whole.culprits, whole.seq) == (tail.kind, tail.culprits, tail.seq)


def test_begins_in_flight_are_at_the_head_of_a_segment(tmp_path: Path) -> None:
    """An operation begun in an earlier segment is known by the newest one, and its head."""
    for journal, group in alive(steps(tmp_path, 2), 600):
        if journal.rank == 0:
            call = journal.collective(group)
            number = journal.begin(call, 200 * MS, q=3)
            journal.segment(300 * MS, pending=[{"b": number, "t": 200 * MS, "s": call, "q": 3}])
    (found,) = verdict(merge(states(tmp_path, window=1_000)), look=nobody_knows).findings
    assert (found.kind, found.seq) == ("missing_participant", 3)


def test_a_state_is_about_a_kilobyte(tmp_path: Path) -> None:
    """Whatever the number of operations; and equal journals give equal bytes."""
    small, large = hang(tmp_path / "a", count=10), hang(tmp_path / "b", count=3_000)
    assert len(small) == len(large)
    sizes = [[len(pack([s])) for s in states(tmp_path / name)] for name in "ab"]
    assert max(sizes[1]) < 1_500
    assert max(sizes[1]) - max(sizes[0]) < 200
    assert pack(states(tmp_path / "a")) == pack(states(tmp_path / "a"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no state"),
        (b"{}", "is no state"),
        (zlib.compress(b'{"shared":[],"states":[{"id":"x","state":99}]}'), "version 99"),
        (zlib.compress(b'{"shared":[],"states":[{"state":1}]}'), "is no state"),
        (zlib.compress(b'{"shared":[],"states":[{"id":"x","state":4}]}'), "lacks base, named"),
        (zlib.compress(b" " * (MOST_BYTES + 1)), "more than 64 MB"),
    ],
)
def test_what_is_no_state_is_refused(data: bytes, says: str) -> None:
    """With the end of a sentence."""
    with pytest.raises(StateError, match=says):
        unpack(data)


def test_a_file_of_states_that_unpacks_without_end_is_not_read(tmp_path: Path) -> None:
    """A few kilobytes of it are gigabytes of brackets."""
    path = tmp_path / f"x{SUFFIX}"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[" * (MOST_BYTES + 1))
    with pytest.raises(ViewerError, match="has a line of more than 64 MB"):
        read([str(path)])


def test_unreadable_lines_are_named(tmp_path: Path) -> None:
    """What they said might contradict whatever is found."""
    for journal in hang(tmp_path):
        with journal.segments[0].open("ab") as file:
            file.write(b'{"b":"x","t":1}\nnoise\n')
    merged = merge(states(tmp_path))
    found = verdict(merged, look=nobody_knows)
    assert (found.findings, len(found.case.incomplete)) == ((), 4)
    assert all("not readable" in str(s.problems) for s in merged.states.values())


def test_states_pretend_no_tables(tmp_path: Path) -> None:
    """Whoever asks for all operations of a trace of states hears that there are none."""
    for journal, group in steps(tmp_path, 2):
        journal.begin(journal.collective(group), S, q=3)
    files = evidence([str(tmp_path)], Problems())
    trace, sample = trace_of(merge([state for one in files if (state := reduce(one))]))
    assert sample.ops
    assert trace.tables is None
    for name in ("operations", "calls", "completions"):
        with pytest.raises(TypeError, match="no table"):
            getattr(trace, name)


def reduced(path: Path, window: int | None = None) -> list[State]:
    """The states of all journals in a folder."""
    found = []
    for files in evidence([str(path)], Problems()):
        state = reduce(files, window=window)
        assert state is not None
        found.append(state)
    return found


def test_of_two_states_that_which_read_more_counts(tmp_path: Path) -> None:
    """In whatever order they come, by themselves or merged."""
    hang(tmp_path, count=200)
    tails, whole = unpack(pack(reduced(tmp_path, window=200))), unpack(pack(reduced(tmp_path)))
    assert merge([*tails, *whole]) == merge([*whole, *tails]) == merge(whole)
    some = merge([merge(tails), *whole[:2]])
    assert some.states == {s.id: s for s in (*whole[:2], *tails[2:])}
    assert merge([some, *tails]) == some
    assert some.partial == {s.id for s in tails[2:]}


def test_what_calls_are_alike_in_is_one_object(tmp_path: Path) -> None:
    """Also of several batches."""
    hang(tmp_path, size=6)
    states, known = reduced(tmp_path), dict[str, Any]()
    parts = [unpack(pack(part), known) for part in (states[:3], states[3:])]
    _, sample = trace_of(merge([*parts[0], *parts[1]]))
    calls = {op.call.index: op.call for op in sample.ops}.values()
    assert 3 * len({id(call.signature) for call in calls}) <= len(calls)
