"""States say what journals say, with the order of collectives where that is wanted."""

from __future__ import annotations

import gzip
import random
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.companion import protocol, words
from disttrace_viewer.companion.endpoint import PeerReply
from disttrace_viewer.companion.reports import MOST_WHOLE, packed, unpacked
from disttrace_viewer.diagnosis import job
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.diagnosis.verdict import verdict
from disttrace_viewer.evidence.recorded import Recorded
from disttrace_viewer.load.foreign.evidence import evidence
from disttrace_viewer.load.problems import Problems, ViewerError
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.folder import SUFFIX, here, read
from disttrace_viewer.states.history import MOST_PACKED, CallOrder, History
from disttrace_viewer.states.history import packed as packed_history
from disttrace_viewer.states.reduce import WINDOW, reduce
from disttrace_viewer.states.state import MOST_BYTES, State, StateError, merge, pack, unpack
from disttrace_viewer.trace.model import LaunchedJob, Stream
from disttrace_viewer.trace.operation import Op
from support.journals import MS, PEER_GONE, S
from support.processes import python
from support.scenes import alive, nobody_knows, steps, told
from support.states import hang


def states(folder: Path, window: int | None = None) -> list[State]:
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
    assert protocol.value_of(text, protocol.state).listed == state.listed


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
    with pytest.raises(StateError, match=says):
        unpack(data)


def test_a_file_of_states_that_unpacks_without_end_is_not_read(tmp_path: Path) -> None:
    """A few kilobytes of it are gigabytes of brackets."""
    path = tmp_path / f"x{SUFFIX}"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[" * (MOST_BYTES + 1))
    with pytest.raises(ViewerError, match="has a line of more than 64 MB"):
        read([str(path)])
    path.write_bytes(b"no gzip")
    with pytest.raises(ViewerError, match="cannot be read as states"):
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


def test_of_two_states_that_which_read_more_counts(tmp_path: Path) -> None:
    """In whatever order they come, by themselves or merged."""
    hang(tmp_path, count=200)
    tails, whole = unpack(pack(states(tmp_path, window=200))), unpack(pack(states(tmp_path)))
    assert merge([*tails, *whole]) == merge([*whole, *tails]) == merge(whole)
    some = merge([merge(tails), *whole[:2]])
    assert some.states == {s.id: s for s in (*whole[:2], *tails[2:])}
    assert merge([some, *tails]) == some
    assert some.partial == {s.id for s in tails[2:]}


def test_what_calls_are_alike_in_is_one_object(tmp_path: Path) -> None:
    """Also of several batches."""
    hang(tmp_path, size=6)
    six, known = states(tmp_path), dict[str, Any]()
    parts = [unpack(pack(part), known) for part in (six[:3], six[3:])]
    _, sample = trace_of(merge([*parts[0], *parts[1]]))
    calls = {op.call.index: op.call for op in sample.ops}.values()
    assert 3 * len({id(call.signature) for call in calls}) <= len(calls)


def one_more(path: Path, size: int, count: int) -> None:
    """Rank 0 reduces once more at another line, is refused before it, and waits alone at last."""
    for journal, group in alive(steps(path, size, 1), 30):
        usual = journal.collective(group)
        extra = journal.collective(group, stack=("train.py", 77, "evaluate"))
        calls = [usual] * count + [extra] * (journal.rank == 0) + [usual] * count
        text = journal.string("ValueError: no such op")
        for number, call in enumerate(calls, 2):
            t = (200 + number) * MS
            if call == extra:
                journal.end(journal.begin(call, t - MS, q=number), 9, x=text, f=1)
            if number > 2 * count + 1:
                journal.begin(call, t, q=number)
            else:
                journal.run(call, t, MS // 2, q=number)


def all_of(jobs: Sequence[LaunchedJob]) -> list[str]:
    return [one.id for one in jobs]


@pytest.mark.parametrize("window", [4_000, WINDOW])
def test_one_more_call_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Whether the ends of journals hold everything or not."""
    one_more(tmp_path, 3, 200)
    monkeypatch.setattr(job, "WINDOW", window)
    (found,) = job.judged([str(tmp_path)], choose=all_of, look=nobody_knows).findings
    assert (found.kind, found.culprits) == ("missing_participant", ())
    told = "Rank 0 made one more call (all_reduce #202 at train.py:77) than ranks 1, 2"
    assert found.summary.startswith(told)


def test_another_host_is_asked_for_the_calls_of_one_who_made_the_same(tmp_path: Path) -> None:
    """And the verdict is that of one folder."""
    one_more(tmp_path, 4, 50)
    names = sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        place = tmp_path / ("a" if "-4000-" in name else "b")
        place.mkdir(exist_ok=True)
        (tmp_path / name).rename(place / name)
    ours, there = (folder.of_journals([str(tmp_path / name)]) for name in "ab")
    asked: list[str] = []

    def fetch(wanted: Sequence[str]) -> Sequence[State]:
        asked.extend(wanted)
        whole = job.in_full(there, wanted, [str(tmp_path / "b")], here).states
        answer = packed(merge([whole[one] for one in wanted]), nobody_knows, most=MOST_WHOLE)
        answers = [PeerReply("b", told) for told in (b"", answer)]
        return unpacked(answers, ours).states

    found = job.judged(
        [str(tmp_path / "a")], choose=all_of,
        others=unpacked([PeerReply("b", packed(there, nobody_knows))], ours).merged, fetch=fetch,
        look=nobody_knows,
    )  # fmt: skip
    assert len(asked) == 1
    assert asked[0] in there.states
    assert "Rank 0 made one more call (all_reduce #52 at train.py:77)" in found.findings[0].summary


def test_a_million_calls_of_a_loop_are_short() -> None:
    """And calls without a pattern are not told, nor those of which some are missing."""
    loop = [1, 2, 3, 3, 3, 4, 7] * 150_000
    text = packed_history(array("I", loop))
    assert text is not None
    assert len(text) < MOST_PACKED
    known = {call: 10 * call for call in loop}
    assert list(History(text, known)) == [(n, 10 * call) for n, call in enumerate(loop, 1)]
    drawn = random.Random(1)
    assert packed_history(array("I", (drawn.randrange(200) for _ in range(100_000)))) is None
    with pytest.raises(ValueError, match="no history"):
        History("xyz", known)
    with pytest.raises(ValueError, match="not known"):
        History(text, {1: 2})


@pytest.mark.parametrize(
    ("numbers", "whole"),
    [((1, 2, 3), True), ((1, 3, 2), True), ((2, 3), False), ((1, 3), False), ((), False)],
)
def test_calls_of_threads_are_put_in_order(numbers: Sequence[int], *, whole: bool) -> None:
    """And nothing is told where one is missing."""
    calls = CallOrder()
    for number in numbers:
        calls.note(number, 10 * number)
    assert calls.all() == (array("I", sorted(10 * n for n in numbers)) if whole else None)


BUCKETS = (3000, 1000, 2000, 500)


@pytest.mark.parametrize("other", [(3000, 2000, 500, 1000), (3000, 2000, 1000, 500)])
def test_a_first_difference_is_told_where_it_is_over(tmp_path: Path, other: Sequence[int]) -> None:
    """Rank 1 has its own order; of one line states keep the newest call only, and that may fit."""
    for journal, group in steps(tmp_path, 3, 0):
        for number, size in enumerate(other if journal.rank == 1 else BUCKETS, 1):
            call = journal.collective(group, shapes=[[size]], stack=("train.py", 18, "reduce_all"))
            journal.run(call, (200 + number) * MS, MS // 2, q=number)
        if journal.rank != 1:
            barrier = journal.collective(group, "barrier", shapes=None)
            error = journal.string(PEER_GONE)
            number = journal.begin(barrier, 900 * MS, q=5)
            journal.end(number, MS, x=error)
            kind, text = PEER_GONE.split(": ", 1)
            journal.fail(902 * MS, kind, text)
        else:
            journal.fail(899 * MS, "RuntimeError", "too many bytes")
    by_states = job.judged([str(tmp_path)], choose=all_of, look=nobody_knows)
    (found,) = by_states.findings
    assert (found.kind, found.certainty, found.seq) == ("shape_mismatch", "certain", 2)
    assert "rank 1 all_reduce with 2,000 elements" in found.summary
    whole = verdict_on(load([str(tmp_path)]), look=nobody_knows)
    assert [told(whole.case, f) for f in whole.findings] == [told(by_states.case, found)]


def test_a_member_that_went_on_is_named_with_the_others(tmp_path: Path) -> None:
    """Rank 2 fails after a call that did not fit; rank 1 has come to the next line meanwhile."""
    for journal, group in steps(tmp_path, 3, 0):
        where = journal.stack(("train.py", 13, "share"))
        for number in (1, 2):
            shapes = [[3 + (journal.rank == 2) if number == 1 else 99]]
            call = journal.collective(group, "broadcast", shapes=shapes, root=0, stack=where)
            if number == 1 or journal.rank == 1:
                journal.run(call, (200 + number) * MS, MS // 2, q=number)
            elif journal.rank == 0:
                journal.begin(call, 202 * MS, q=number)
        if journal.rank == 1:
            journal.begin(journal.collective(group), 203 * MS, q=3)
        if journal.rank == 2:
            journal.fail(202 * MS, "RuntimeError", "cannot allocate memory")
        else:
            journal.beat(20)
    (found,) = job.judged([str(tmp_path)], choose=all_of, look=nobody_knows).findings
    assert (found.kind, found.certainty) == ("shape_mismatch", "certain")
    assert "rank 2 broadcast with 4 elements" in found.summary
    assert "ranks 0, 1 broadcast with 3 elements" in found.summary


def test_what_is_refused_without_a_number_gives_none_back(tmp_path: Path) -> None:
    """Torch refuses a list in its own function, which is recorded beside the call inside."""
    ((journal, group),) = steps(tmp_path, 1, 3)
    outer = journal.collective(group, shapes=None)
    journal.end(journal.begin(outer, 200 * MS), 9, x=journal.string("ValueError: no"), f=1)
    journal.run(journal.collective(group), 300 * MS, MS, q=4)
    (state,) = states(tmp_path)
    ((*_, newest, _, _),) = state.courses
    assert newest == 4


def test_ends_of_journals_that_begin_at_other_calls_are_compared_from_the_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 writes more, and calls something else at last: the same before a stall as after."""
    for journal, group in alive(steps(tmp_path, 3, 0)):
        usual = journal.collective(group)
        more = journal.message(group, "send", (journal.rank or 0) + 1)
        for number in range(1, 400):
            journal.run(usual, (200 + number) * MS, MS // 2, q=number)
            if journal.rank == 0:
                journal.run(more, (200 + number) * MS + MS // 2, 9, q=number)
        other = journal.collective(group, "all_gather", stack=("train.py", 77, "evaluate"))
        journal.begin(usual if journal.rank else other, 700 * MS, q=400)
    monkeypatch.setattr(words, "MOST_EACH", 8_000)
    files = evidence([str(tmp_path)], Problems())
    ends = folder.of_journals(files, window=4_000)
    found = verdict(words.newest_calls(ends, files), look=nobody_knows).findings
    hints = [one.hint for one in found if one.kind == "op_mismatch"]
    (whole,) = job.judged([str(tmp_path)], choose=all_of, look=nobody_knows).findings
    assert hints == [whole.hint]
    assert (whole.hint or "").startswith("Rank 0 made one more call, at train.py:77")


def test_who_passed_what_stands_in_no_call_is_not_told_with_sizes(tmp_path: Path) -> None:
    """Of too many sizes at one line further ones stand in the operations only."""
    for journal, group in steps(tmp_path, 3, 0):
        sizes = [[[3]], [[4]], None][journal.rank or 0]
        call = journal.collective(group, shapes=sizes)
        more: dict[str, Any] = {} if sizes else {"a": {"shapes": [[3]]}}
        for number in (1, 2):
            again = journal.collective(group, shapes=[[3]]) if sizes and number == 2 else call
            journal.end(journal.begin(again, (200 + number) * MS, q=number, **more), 9)
        if journal.rank:
            journal.beat(20)
        else:
            journal.fail(400 * MS, "RuntimeError", "too many bytes")
    (found,) = job.judged([str(tmp_path)], choose=all_of, look=nobody_knows).findings
    assert (found.kind, found.culprits) == ("shape_mismatch", ())
    assert "rank 0 all_reduce with 3 elements" in found.summary
    assert "rank 1 all_reduce with 4 elements" in found.summary
    assert "rank 2" not in found.summary


def test_who_went_on_is_asked_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by each of those who wait in it: they are thousands, and so are its members."""
    for journal, group in alive(steps(tmp_path, 8, 1), 30):
        if journal.rank:
            journal.begin(journal.collective(group), 300 * MS, q=2)
    asked: list[tuple[Stream, int]] = []
    exchange = Recorded.exchange

    def counted(self: Recorded, stream: Stream, seq: int) -> Mapping[int, Op]:
        asked.append((stream, seq))
        return exchange(self, stream, seq)

    monkeypatch.setattr(Recorded, "exchange", counted)
    evidence = job.judged([str(tmp_path)]).case.evidence
    evidence.__dict__.pop("went_on", None)
    asked.clear()
    assert evidence.went_on == ()
    assert len(asked) == 1
