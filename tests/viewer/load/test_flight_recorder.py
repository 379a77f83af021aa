"""Dumps of the Flight Recorder, made by hand: what they tell, and what they do not."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.api.report import Report
from disttrace_viewer.api.verdict import diagnose
from disttrace_viewer.load.foreign import pickles
from disttrace_viewer.load.problems import ViewerError
from support.flight_dumps import CREATED_NS, dump, entry, write
from support.simulated_dumps import Call, Fault, dumped, run
from support.states import hang

WORLD = {"0": (0, 1, 2, 3)}
PAIR = {"0": (0, 1)}
ALL = (0, 1, 2, 3)
H100 = Path(__file__).with_name("h100")  # dumps of a real one
FORMS = pytest.mark.parametrize("form", ["pickle", "json"])
VERSIONS = pytest.mark.parametrize("version", ["1.5", "2.1", "2.3", "2.4", "2.6", "2.8", "2.10"])


def steps(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [entry("all_reduce", n + 1, at_s=n / 10, **fields) for n in range(count)]


Last = dict[int, list[dict[str, Any]]]


def left(folder: Path, last: Last, *, version: str = "2.10", **given: Any) -> Path:
    """The dumps of a job of which each rank did three steps, and then ``last``."""
    dumps = {
        rank: dump([*steps(3), *entries], groups=WORLD, version=version)
        for rank, entries in last.items()
    }
    return write(folder / "dumps", dumps, **given)


def job(folder: Path, last: Last, **given: Any) -> Report:
    return diagnose(left(folder, last, **given))


def judged(
    folder: Path, entries: Last, groups: Any = WORLD, first: int = 0, **given: Any
) -> Report:
    """The verdict on dumps that hold these entries alone."""
    dumps = {rank: dump(own, groups=groups, first=first) for rank, own in entries.items()}
    return diagnose(write(folder / "dumps", dumps, **given))


def without(missing: int) -> Last:
    """All others wait in the fourth."""
    return {rank: [waiting()] * (rank != missing) for rank in ALL}


def kinds(report: Report) -> list[tuple[str, str]]:
    return [(found.kind, found.severity) for found in report.findings]


def waiting(op: str = "all_reduce", **fields: Any) -> dict[str, Any]:
    return entry(op, fields.pop("seq", 4), at_s=1.0, state=fields.pop("state", "started"), **fields)


@FORMS
@VERSIONS
def test_a_rank_that_did_not_come_is_likely(tmp_path: Path, form: str, version: str) -> None:
    report = job(tmp_path, without(2), form=form, version=version)
    (found,) = report.findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert found.culprit_ranks == (2,)
    assert "where it is, this evidence does not hold" in found.summary
    assert "uneven" not in (found.hint or "")


@FORMS
@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ({"op": "broadcast"}, "op_mismatch"),
        ({"sizes": ((8,),)}, "shape_mismatch"),
        ({"dtype": "Half"}, "dtype_mismatch"),
    ],
)
def test_other_arguments_are_certain(
    tmp_path: Path, odd: dict[str, Any], kind: str, form: str
) -> None:
    last = {rank: [waiting(**(odd if rank == 3 else {}))] for rank in ALL}
    found = job(tmp_path, last, form=form).findings[0]
    assert (found.kind, found.certainty, found.culprit_ranks) == (kind, "certain", (3,))


def test_all_in_and_begun_by_the_device(tmp_path: Path) -> None:
    (found,) = job(tmp_path, {rank: [waiting()] for rank in ALL}).findings
    assert found.kind == "no_progress"
    assert not found.culprit_ranks
    assert "the device began it on all ranks" in found.summary


def test_a_host_may_stand_in_the_name(tmp_path: Path) -> None:
    """As in pytorch/pytorch#140563."""
    (found,) = job(tmp_path, without(2), name="nccl_trace_rank_container-node02_").findings
    assert (found.kind, found.culprit_ranks) == ("missing_participant", (2,))
    assert "rank 2 has enqueued nothing" in found.summary


def later(seq: int, op: str = "all_reduce") -> dict[str, Any]:
    return waiting(op, seq=seq, state="scheduled")


@pytest.mark.parametrize("made_s", [60.0, 600.0, None])
@pytest.mark.parametrize("active", [True, False], ids=["active only", "all"])
def test_a_device_others_are_ahead_of(tmp_path: Path, made_s: float | None, active: bool) -> None:
    """Its host went on, so that all have come to what the others wait in."""
    own = {0: [waiting()], 1: [], 2: [], 3: []}
    over = [] if active else [*steps(3), waiting(state="completed")]
    entries = {rank: [*(own[rank] or over), later(5), later(6)] for rank in ALL}
    (found,) = judged(tmp_path, entries, first=20 * active, made_s=made_s).findings
    assert (found.kind, found.certainty, found.severity) == ("no_progress", "certain", "error")
    assert (found.culprit_ranks, found.device, found.seq) == ((0,), True, 4)
    assert "rank 0 is not through with all_reduce #4 of the default group" in found.summary


def test_a_device_at_a_moment_is_behind_and_not_stuck(tmp_path: Path) -> None:
    """A watchdog sees an end a tenth of a second later."""
    last = {rank: [waiting(state="started" if rank == 2 else "completed")] for rank in ALL}
    assert job(tmp_path, last, made_s=2.0).healthy


def test_whose_dump_is_older_has_no_stuck_device(tmp_path: Path) -> None:
    """The others are through with what it has not begun: that takes its device as well."""
    last = {rank: [waiting(state="completed"), later(5) | {"state": "completed"}] for rank in ALL}
    last[2] = [waiting()]
    assert not any(found.culprit_ranks for found in job(tmp_path, last, made_s=None).findings)


def test_half_the_devices_blame_none(tmp_path: Path) -> None:
    last = {rank: [waiting(state="started" if rank < 2 else "completed")] for rank in ALL}
    (found,) = job(tmp_path, last).findings
    assert (found.kind, found.culprit_ranks, found.device) == ("no_progress", (), False)


def test_other_roots_are_no_network_fault(tmp_path: Path) -> None:
    last = {
        rank: [
            entry("broadcast", 4, at_s=1.0, state="completed" if rank in (1, 3) else "started"),
            *([waiting("barrier", seq=5)] if rank in (1, 3) else []),
        ]
        for rank in ALL
    }
    report = job(tmp_path, last)
    assert [found.kind for found in report.findings] == ["no_progress"]
    assert "the roots may differ, which this evidence does not hold" in report.findings[0].summary
    assert "matching arguments" not in report.findings[0].summary


def test_a_rank_without_a_dump_is_named_and_not_blamed(tmp_path: Path) -> None:
    report = job(tmp_path, {rank: [waiting()] for rank in (0, 1, 2)})
    assert "rank 3" in str(report)
    assert "left no dump" in str(report)
    assert not any(found.culprit_ranks for found in report.findings)


@FORMS
def test_a_moment_raises_no_alarm_and_proves_nothing(tmp_path: Path, form: str) -> None:
    report = job(tmp_path, without(1), form=form, made_s=2.0)
    assert report.healthy
    assert "Undecided" in str(report)


@FORMS
def test_files_without_times_name_who_is_missing_and_no_hang(tmp_path: Path, form: str) -> None:
    report = job(tmp_path, without(1), form=form, made_s=None)
    (found,) = report.findings
    assert kinds(report) == [("missing_participant", "warning")]
    assert (found.certainty, found.culprit_ranks) == ("likely", (1,))
    assert "Rank 1 had not come to all_reduce #4" in found.summary
    assert "copy the dumps with their times" in str(report)


@pytest.mark.parametrize(
    "after_ms", [(0, 2, 4, 6), (0, 0, 0, 0), (0, 0, 1_000, 1_000)], ids=["copy", "archive", "FAT"]
)
def test_times_of_copies_tell_nothing(tmp_path: Path, after_ms: tuple[int, ...]) -> None:
    """Who is missing is missing; that all had come is undecided."""
    for name, missing in (("missing", 1), ("all in", None)):
        last: Last = {r: [waiting()] * (r != missing) for r in ALL}
        dumps = {rank: dump([*steps(3), *last[rank]], groups=WORLD) for rank in ALL}
        folder = write(tmp_path / name, dumps)
        for rank in ALL:
            at_ns = CREATED_NS + 60_000_000_000 + after_ms[rank] * 1_000_000
            os.utime(folder / f"nccl_trace_rank_{rank}", ns=(at_ns, at_ns))
        report = diagnose(folder)
        wrong = [("missing_participant", "warning")] if missing else []
        assert kinds(report) == wrong
        assert ("Undecided" in str(report)) is not bool(missing)


@pytest.mark.parametrize("made_s", [60.0, 600.0, None])
def test_no_wait_is_longer_than_what_the_dumps_hold(tmp_path: Path, made_s: float | None) -> None:
    """Their files may have been written anew by a copy, at any time after."""
    (found,) = job(tmp_path, without(2), made_s=made_s).findings
    assert not re.search(r"[\d.]+ (s|min)\b", found.summary)


@pytest.mark.parametrize("made_s", [60.0, None])
def test_rings_without_any_entry_prove_nothing(tmp_path: Path, made_s: float | None) -> None:
    dumps = {rank: dump([], groups=WORLD, status={"0": (4, 4)}) for rank in ALL}
    report = diagnose(write(tmp_path / "dumps", dumps, made_s=made_s))
    assert report.healthy
    assert report.incomplete
    assert "hold no operation" in str(report)


@pytest.mark.parametrize("made_s", [60.0, None])
def test_a_dump_without_entries_is_of_who_is_missing(tmp_path: Path, made_s: float | None) -> None:
    """Of active entries only: rank 2 has none, and what it counts is no progress."""
    dumps = {
        rank: dump([waiting()] if rank != 2 else [], groups=WORLD, first=20, status={"0": (4, 3)})
        for rank in ALL
    }
    dumps[2]["pg_status"]["0"]["last_enqueued_collective"] = 3
    report = diagnose(write(tmp_path / "dumps", dumps, made_s=made_s))
    severity = "warning" if made_s is None else "error"
    assert kinds(report) == [("missing_participant", severity)]
    assert report.findings[0].culprit_ranks == (2,)


def test_whoever_was_dumped_before_the_others_is_not_missing(tmp_path: Path) -> None:
    last = {0: [waiting(state="completed")], 1: [waiting()], 2: [waiting()], 3: []}
    assert job(tmp_path, last).healthy


def test_one_order_over_two_groups_is_a_deadlock_of_nobody(tmp_path: Path) -> None:
    groups = {**WORLD, "1": (0, 1), "2": (0, 1)}
    calls = {0: ("1", 1), 1: ("2", 2)}
    dumps = {
        rank: dump(
            [
                *steps(1),
                *(entry("all_reduce", 1, at_s=0.5, group=(n, n), pg_id=int(n)) for n in "12"),
                entry("all_reduce", 2, at_s=1, state="scheduled", group=(name, name), pg_id=number),
            ],
            groups=groups,
        )
        for rank, (name, number) in calls.items()
    } | {rank: dump(steps(1), groups=WORLD) for rank in (2, 3)}
    (found,) = diagnose(write(tmp_path / "dumps", dumps)).findings
    assert (found.kind, found.certainty, found.culprit_ranks) == ("deadlock", "likely", ())


@pytest.mark.parametrize(("made_s", "severity"), [(60.0, "error"), (None, "warning")])
def test_both_send_is_a_deadlock(tmp_path: Path, made_s: float | None, severity: str) -> None:
    entries = {
        rank: [*steps(1), entry(f"send {rank}->{1 - rank}", 1, at_s=1, state="started", p2p=1)]
        for rank in (0, 1)
    }
    (found,) = judged(tmp_path, entries, PAIR, made_s=made_s).findings
    assert (found.kind, found.culprit_ranks, found.severity) == ("deadlock", (), severity)


def batch(*messages: str, seq: int, state: str, at_s: float) -> list[dict[str, Any]]:
    """A launch of several messages: the newest entry bears its state."""
    named = [*messages, "coalesced"]
    return [
        entry(
            name, 1, at_s=at_s + n / 1000, p2p=seq,
            state=state if n == len(named) - 1 else "scheduled", retired=state == "completed",
        )
        for n, name in enumerate(named)
    ]  # fmt: skip


def test_healthy_launches_of_messages_are_over(tmp_path: Path) -> None:
    def of(rank: int) -> list[dict[str, Any]]:
        other = 1 - rank
        both = (f"send {rank}->{other}", f"recv {rank}<-{other}")
        return [e for n in range(5) for e in batch(*both, seq=n + 1, state="completed", at_s=n)]

    assert judged(tmp_path, {rank: [*steps(1), *of(rank)] for rank in (0, 1)}, PAIR).healthy


def test_a_batch_that_hung_on_an_h100(tmp_path: Path) -> None:
    """torch 2.11, NCCL 2.28.9: rank 1 left a batch out; nothing of what is over is in flight."""
    dumps = {rank: json.loads((H100 / f"nccl_trace_rank_{rank}").read_text()) for rank in (0, 1)}
    begun = min(one["time_created_ns"] for one in dumps[0]["entries"])
    for one in (one for each in dumps.values() for one in each["entries"]):
        for key in ("time_created_ns", "time_discovered_completed_ns"):
            one[key] = one[key] and one[key] - begun + CREATED_NS
    report = diagnose(write(tmp_path / "dumps", dumps, form="json"))
    (found,) = report.findings
    assert (found.kind, found.severity, found.culprit_ranks) == ("unmatched_send", "error", (1,))
    assert "has enqueued nothing since recv from rank 0" in found.summary


def test_a_one_sided_launch_is_not_all_joined(tmp_path: Path) -> None:
    entries = {
        rank: [*steps(1), *batch(*messages, seq=1, state="started", at_s=1)]
        for rank, messages in enumerate((("send 0->1", "recv 0<-1"), ("recv 1<-0",)))
    }
    report = judged(tmp_path, entries, PAIR)
    assert [found.kind for found in report.findings] == ["unmatched_recv"]


RING = (
    ("send 0->1", "recv 0<-3"), ("send 1->2", "recv 1<-0"), ("recv 2<-1",),
    ("send 3->0", "recv 3<-2"),
)  # fmt: skip


@pytest.mark.parametrize("first", [0, 30])
@pytest.mark.parametrize("active", [False, True], ids=["all", "active only"])
@pytest.mark.parametrize("made_s", [60.0, None])
def test_a_launch_in_a_ring_that_lacks_a_message_blames_no_innocent(
    tmp_path: Path, first: int, active: bool, made_s: float | None
) -> None:
    """Rank 2 leaves its send to 3 out, all else is through; only a whole ring can tell that."""
    entries = {}
    for rank, messages in enumerate(RING):
        state = "scheduled" if rank == 3 else "completed"
        kept = batch(*messages, seq=1, state=state, at_s=1)
        entries[rank] = kept * (rank == 3) if active else [*steps(1), *kept]
    (found,) = judged(tmp_path, entries, first=first or 30 * active, made_s=made_s).findings
    assert found.severity == ("warning" if made_s is None else "error")
    if first or active:
        assert (found.culprit_ranks, found.certainty) == ((), "likely")
        assert "ranks 0, 2" in found.summary
    else:
        assert (found.kind, found.culprit_ranks) == ("unmatched_recv", (2,))


@pytest.mark.parametrize("posted", [True, False], ids=["one message less", "never came"])
@pytest.mark.parametrize("active", [False, True], ids=["all", "active only"])
def test_launches_around_a_ring_lack_a_message(tmp_path: Path, posted: bool, active: bool) -> None:
    """Each is over when all that hang together are: no other has a fault of its own."""
    before = [] if active else steps(1)
    entries = {
        rank: [*before, *batch(*messages, seq=1, state="scheduled", at_s=1)]
        for rank, messages in enumerate(RING)
    }
    if not posted:
        entries[2] = before
    (found,) = judged(tmp_path, entries, first=30 * active).findings
    assert found.kind.startswith("unmatched_")
    assert found.culprit_ranks == (2,)


@pytest.mark.parametrize("made_s", [60.0, None])
def test_a_twin_group_is_no_fault_of_the_network(tmp_path: Path, made_s: float | None) -> None:
    """No dump lists the members of either group, as gloo's do not: all wait, and none elsewhere."""
    names = {0: "1", 1: "1", 2: "2", 3: "1"}
    entries = {
        rank: [
            *steps(1, backend="gloo"),
            waiting(seq=1, group=(name, "undefined"), pg_id=int(name), backend="gloo"),
        ]
        for rank, name in names.items()
    }
    (found,) = judged(tmp_path, entries, made_s=made_s).findings
    assert (found.kind, found.culprit_ranks) == ("deadlock", ())


def test_a_healthy_uneven_all_gather_is_over(tmp_path: Path) -> None:
    def of(seq: int) -> list[dict[str, Any]]:
        parts = [entry("_broadcast_oop", seq, at_s=seq, state="scheduled") for _ in ALL]
        return [*parts, entry("ALLGATHER_coalesced", seq, at_s=seq)]

    assert judged(tmp_path, {rank: [*of(1), *of(2)] for rank in ALL}).healthy


def test_rings_are_compared_by_number(tmp_path: Path) -> None:
    rings = {
        rank: dump(
            [entry("all_reduce", n, at_s=n / 10) for n in range(first, last + 1)]
            + ([entry("all_reduce", last + 1, at_s=20, state="started")] if rank != 2 else []),
            groups=WORLD,
            first=first,
        )
        for rank, (first, last) in {0: (50, 99), 1: (52, 99), 2: (47, 99), 3: (50, 99)}.items()
    }
    (found,) = diagnose(write(tmp_path / "dumps", rings, made_s=90.0)).findings
    assert (found.kind, found.certainty) == ("missing_participant", "likely")
    assert found.culprit_ranks == (2,)
    assert found.seq == 100


def test_counts_alone_tell_who_is_behind(tmp_path: Path) -> None:
    counts = {rank: (7, 6) if rank != 3 else (6, 6) for rank in ALL}
    dumps = {r: dump([], groups=WORLD, status={"0": counts[r]}) for r in ALL}
    report = diagnose(write(tmp_path / "dumps", dumps))
    assert "Nothing is wrong" not in str(report)
    assert "Rank 3 had not come" in str(report)


def test_dumps_that_keep_no_messages_prove_no_health(tmp_path: Path) -> None:
    """Of NCCL's all is known that hangs in its operations; gloo's tell collectives alone."""
    for backend, proven in (("nccl", True), ("gloo", False)):
        dumps = {rank: dump(steps(3, backend=backend), groups=WORLD) for rank in ALL}
        for one in (one for each in dumps.values() for one in each["entries"]):
            if backend == "gloo":
                one.update(state="scheduled", time_discovered_started_ns=None)
        report = diagnose(write(tmp_path / backend, dumps))
        assert (report.healthy, not report.incomplete) == (True, proven)
        assert "journal" not in str(report)


def test_the_newest_of_several_dumps_of_a_rank_counts(tmp_path: Path) -> None:
    folder = left(tmp_path, without(2))
    write(folder, {2: dump(steps(1), groups=WORLD)}, name="old_rank_")
    report = diagnose(folder)
    assert report.findings[0].culprit_ranks == (2,)
    assert "#3" in report.findings[0].summary


def test_nodes_may_lie_in_folders_of_their_own(tmp_path: Path) -> None:
    last = {0: [waiting()], 1: [waiting()], 2: [], 3: [waiting()]}
    for node in (0, 1):
        mine = {r: dump([*steps(3), *last[r]], groups=WORLD) for r in (2 * node, 2 * node + 1)}
        write(tmp_path / "dumps" / f"node{node}", mine)
    (found,) = diagnose(tmp_path / "dumps").findings
    assert (found.kind, found.culprit_ranks) == ("missing_participant", (2,))


def test_a_file_without_a_rank_is_named(tmp_path: Path) -> None:
    folder = left(tmp_path, without(1))
    shutil.copy(folder / "nccl_trace_rank_1", folder / "mine")
    assert "neither its name nor its content tells of which rank" in str(diagnose(folder))


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["pg_config", "entries", "first"])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, protocol: int, place: str) -> None:
    folder = left(tmp_path, without(2))
    evil = Evil(str(tmp_path / "ran"))
    value: Any = dump(steps(3), groups=WORLD)
    if place == "first":
        value = {"evil": evil, **value}
    elif place == "entries":
        value["entries"].append(evil)
    else:
        value["pg_config"]["0"] = evil
    (folder / "nccl_trace_rank_1").write_bytes(pickle.dumps(value, protocol))
    text = str(diagnose(folder))
    assert not (tmp_path / "ran").exists()
    if protocol >= 2:
        assert "which no dump does" in text


def nested(inner: str) -> bytes:
    """A dump of one group, of which ``inner`` (opcodes) is the version."""
    value = pickle.dumps(dump(steps(3), groups=WORLD), 2)
    return value[:-2] + b"X\7\0\0\0version" + inner.encode("latin-1") + value[-2:]


def laughs(levels: int) -> str:
    """A list of ten lists of ten lists, each written once."""
    if not levels:
        return "K\1"
    return f"]({laughs(levels - 1)}q{chr(levels)}" + f"h{chr(levels)}" * 9 + "e"


def shared(rows: int) -> bytes:
    """A dump of which each call has one and the same list of shapes, that of one and the same."""
    sizes = [[1] * rows] * rows
    value = dump([{**one, "input_sizes": sizes} for one in steps(20)], groups=WORLD)
    return pickle.dumps(value, 2)


HOSTILE = {
    "shapes that all calls share": shared(400),
    "ten bytes that ask for a memo of gigabytes": nested("K\1r\0\0\0\1"),
    "pairs in each other": nested(")" + "\x85" * 100_000),
    "more pairs than any dump": nested(")" + "\x85" * 300_000),
    "lists in each other": nested("(" * 100), "a list that holds itself": nested("]q\1h\1a"),
    "a list of ten lists of ten lists": nested(laughs(12)),
    "an array of a terabyte": nested("\x96\0\0\0\0\0\1\0\0"),
    "a text of four gigabytes": nested("X\xff\xff\xff\xff"),
    "a number of a gigabyte": nested("\x8b\xff\xff\xff\x3f"), "an extension": nested("\x82\1"),
    "something persistent": nested("K\1Q"),
    "a frame of more than there is": nested("\x95" + "\xff" * 8),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_greedy_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Neither memory nor a deep recursion; the other dumps are read, and tell what they told."""
    monkeypatch.setattr(pickles, "MOST_VALUES", 200_000)
    monkeypatch.setattr(pickles, "MOST_READS", 200_000)
    folder = left(tmp_path, without(2))
    (folder / "nccl_trace_rank_1").write_bytes(data)
    tracemalloc.start()
    try:
        report = diagnose(folder)
        assert tracemalloc.get_traced_memory()[1] < 200 * len(data) + (64 << 20)
    finally:
        tracemalloc.stop()
    assert {r for f in report.findings for r in f.culprit_ranks} & {2}
    assert len(str(report)) < 10_000


def test_a_torn_dump_gives_what_was_whole(tmp_path: Path) -> None:
    folder = left(tmp_path, without(2))
    path = folder / "nccl_trace_rank_0"
    at = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes()[:-400])
    os.utime(path, ns=(at, at))
    report = diagnose(folder)
    assert "of its operations were whole and used" in str(report)
    assert "nccl_trace_rank_0" in str(report)


def test_what_nobody_knows_is_named_once_and_is_no_error(tmp_path: Path) -> None:
    folder = left(tmp_path, {rank: [] for rank in ALL})
    for name in ("a.json", "b.json"):
        (folder / name).write_text('{"a": 1}')
    report = diagnose(folder)
    assert report.healthy
    assert str(report).count("a.json, b.json") == 1


def test_damaged_dumps_give_no_traceback(tmp_path: Path) -> None:
    drawn = random.Random(7)
    for number in range(20):
        form = drawn.choice(("pickle", "json"))
        folder = left(tmp_path / str(number), without(2), form=form)
        for path in folder.iterdir():
            data = bytearray(path.read_bytes())
            for _ in range(drawn.choice((0, 1, 3, 20))):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
            if drawn.random() < 0.3:
                del data[drawn.randrange(len(data)) :]
            path.write_bytes(bytes(data))
        with suppress(ViewerError):
            str(diagnose(folder))


def test_dumps_beside_journals_make_no_second_job(tmp_path: Path) -> None:
    hang(tmp_path)
    alone = diagnose(tmp_path)
    write(tmp_path, {r: dump(steps(3), groups=WORLD) for r in ALL})
    both = diagnose(tmp_path)
    assert [f.summary for f in both.findings] == [f.summary for f in alone.findings]
    assert both.to_dict()["evidence"] == ["journals"]


def pipeline_of_experts() -> tuple[list[list[Call]], dict[str, tuple[int, ...]]]:
    """Four stages of four ranks: pairs for tensors, a stage for experts, columns for messages."""
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(16))}
    groups |= {str(35 + n): (2 * n, 2 * n + 1) for n in range(8)}
    groups |= {str(43 + n): tuple(range(n, 16, 4)) for n in range(4)}
    groups |= {str(71 + n): tuple(range(4 * n, 4 * n + 4)) for n in range(4)}
    programs = []
    for rank in range(16):
        pair, column, stage = str(35 + rank // 2), str(43 + rank % 4), str(71 + rank // 4)
        step = [
            *[Call(column, messages=(("recv", rank - 4),))] * (rank >= 4),
            *(Call(pair, "_all_gather_base"), Call(stage, "alltoall_base", reads=True)),
            *(Call(stage, "alltoall_base"), Call(pair, "_reduce_scatter_base")),
            *(Call(stage, "alltoall_base"), Call(pair, "_all_gather_base")),
            *(Call(stage, "all_reduce"), Call(pair, "broadcast")),
            *[Call(column, messages=(("send", rank + 4),))] * (rank < 12),
        ]
        programs.append([replace(call, line=n) for n, call in enumerate(step, 10)] * 6)
    return programs, groups


@pytest.mark.parametrize("made_s", [600.0, None], ids=["timed", "without times"])
@pytest.mark.parametrize(
    ("kind", "who"),
    [("missing", (9, 14)), ("missing", (12, 15)), ("unseen", (12, 14)), ("unseen", (9, 14))],
)
def test_two_ranks_of_sixteen_by_what_is_in_flight_alone(
    tmp_path: Path, kind: str, who: tuple[int, ...], made_s: float | None
) -> None:
    """In the shape of four public sets, of which dumps hold active entries only: two ranks hold the
    GIL, or have a device that does not get on, deep in a pipeline of experts. The sets themselves
    are in the tests of NVIDIA's resiliency extension (Apache 2.0).
    """
    programs, groups = pipeline_of_experts()
    ranks = run(programs, groups, Fault(kind, who, 24))
    dumps = {r.rank: dumped(r, groups, version="2.9") for r in ranks}
    report = diagnose(write(tmp_path / "dumps", dumps, made_s=made_s, name="_dump_"))
    named = {rank for found in report.findings for rank in found.culprit_ranks}
    assert named == set(who), str(report)
    assert {found.device for found in report.findings} == {kind == "unseen"}
    assert not report.healthy
