"""The trace-event export: events as the format wants them, no overlaps, arrows in pairs."""

from __future__ import annotations

import gzip
import tarfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace.cli import main
from disttrace_viewer.analysis.exchanges import Exchanges
from disttrace_viewer.merge.reader import load
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.views import jsonl
from disttrace_viewer.views.timeline import perfetto
from support.journals import MS, T0, UNIX_NS, Journal, S, bulk, workers
from viewer.views.test_html import data

Event = dict[str, Any]
REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"}, "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"}, "M": {"name", "pid", "args"},
}  # fmt: skip


def document(folder: Path) -> dict[str, Any]:
    """The export of a folder, read back."""
    found: dict[str, Any] = orjson.loads(b"".join(perfetto.lines(load([str(folder)]))))
    return found


def events(folder: Path) -> list[Event]:
    """Its events, after they were held to the format."""
    found: list[Event] = document(folder)["traceEvents"]
    check(found)
    return found


def slices(found: list[Event]) -> list[Event]:
    """Complete slices: there are no others."""
    return [event for event in found if event["ph"] == "X"]


def check(found: list[Event]) -> None:
    """What must hold of every export: keys, nesting, names of tracks, pairs of arrows."""
    for event in found:
        assert event["ph"] in REQUIRED, event
        wanted = REQUIRED[event["ph"]] - ({"args"} if event.get("cat") == "exchange" else set())
        assert wanted <= set(event), event
        assert event.get("dur", 0) >= 0
    _check_nesting(found)
    _check_flows(found)
    named = {(e["pid"], e.get("tid")) for e in found if e["name"].endswith("_name")}
    assert {(e["pid"], e["tid"]) for e in slices(found)} <= named
    assert {(e["pid"], None) for e in found} <= named


def _check_nesting(found: list[Event]) -> None:
    """On a track, slices are apart or one inside the other."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in slices(found):
        begin = round(event["ts"] * 1000)
        end = begin + round(event["dur"] * 1000)
        tracks[event["pid"], event["tid"]].append((begin, end))
    for spans in tracks.values():
        stack: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], (begin, end, stack)
            stack.append(end)


def _check_flows(found: list[Event]) -> None:
    """Each id starts once, and ends (a message once) not before that, on slices of its tracks."""
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    for leaves, *arrive in flows.values():
        assert (leaves["ph"], {end["ph"] for end in arrive} <= {"f"}) == ("s", True)
        assert len(arrive) == 1 or leaves["cat"] == "collective"
        for end in (leaves, *arrive):
            assert around(found, end), end
            assert (leaves["ts"] <= end["ts"], end["cat"]) == (True, leaves["cat"])
            assert end["ph"] == "s" or end["bp"] == "e"


def around(found: list[Event], event: Event) -> list[Event]:
    """Slices of its track that cover an event, outermost first."""
    return [
        one
        for one in slices(found)
        if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
        and one["ts"] <= event["ts"]
        and event["ts"] < one["ts"] + one["dur"]
    ]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks: collectives, a late send, asynchronous work that overlaps, a hang."""
    first, second = workers(tmp_path, 2)
    groups = [first.world(), second.world()]
    for journal, group, late in ((first, groups[0], 0), (second, groups[1], 3 * MS)):
        step = journal.call("annotate", kind="composed", name="train_step", origin="python")
        reduce = journal.collective(group)
        outer = journal.begin(step, t=20 * MS)
        journal.run(reduce, t=21 * MS + late, d=5 * MS - late, q=1, p=outer)
        journal.end(outer, 10 * MS)
        overlapping = journal.collective(group, "broadcast", asynchronous=True, root=0)
        numbers = [journal.begin(overlapping, t=40 * MS + k * MS + late, q=2 + k) for k in range(3)]
        for number in numbers:
            journal.end(number, 8 * MS, u=MS // 10)
    receive = first.message(groups[0], "recv", 1)
    send = second.message(groups[1], "send", 0)
    first.run(receive, t=60 * MS, d=6 * MS, q=1)
    second.run(send, t=64 * MS, d=MS, q=1)
    first.begin(first.collective(groups[0], "barrier"), t=80 * MS, q=5)
    for journal in (first, second):
        journal.beat(30)
    return tmp_path


def test_every_operation_is_one_slice(job: Path) -> None:
    """With the ids, times and facts of the other exports; times are exact to the nanosecond."""
    found = events(job)
    start = document(job)["otherData"]["start_unix_ns"]
    made = {e["args"]["id"]: e for e in slices(found) if e["cat"] != "exchange"}
    trace = load([str(job)])
    rows = list(map(orjson.loads, b"".join(jsonl.lines(trace)).splitlines()))
    assert set(made) == {row["id"] for row in rows}
    for row in rows:
        event = made[row["id"]]
        assert round(event["ts"] * 1000) == row["begin_ns"] - start
        if row["end_ns"] is not None:
            assert round(event["dur"] * 1000) == row["end_ns"] - row["begin_ns"]
        assert event["args"]["status"] == row["status"]
        assert event["args"].get("seq") == row["seq"]
        assert event["args"].get("shapes") == row["shapes"]
    (step, _) = [e for e in made.values() if e["name"] == "train_step"]
    assert step["cat"] == "composed"
    (reduce, _) = [e for e in made.values() if e["name"] == "all_reduce #1"]
    assert (reduce["args"]["group"], reduce["args"]["reduce_op"]) == ("0", "SUM")
    assert reduce["args"]["group_ranks"] == "0, 1"
    assert reduce["args"]["stack"] == ["train.py:10 main"]


def test_tracks_are_processes_and_threads(job: Path) -> None:
    """A group per rank with its host and pid; what overlaps is beside the thread."""
    found = events(job)
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    ranks = {"rank 0 (host, 4000)", "rank 1 (host, 4001)"}
    assert set(names.values()) == {*ranks, "findings"}
    tracks = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert len(tracks) == len([e for e in found if e["name"] == "thread_name"])
    where: dict[str, set[str]] = defaultdict(set)
    for event in slices(found):
        where[event["name"].partition(" ")[0]].add(tracks[event["tid"]])
    assert where["broadcast"] == {"asynchronous", "asynchronous 2", "asynchronous 3"}
    assert where["all_reduce"] == where["train_step"] == {"thread 0"}


def test_arrows_lead_from_who_came_last(job: Path) -> None:
    """A slice that had waited has one inside from then on: arrows lead to starts of slices."""
    found = events(job)
    arrows: Counter[tuple[str, ...]] = Counter()
    for leaves in (e for e in found if e["ph"] == "s"):
        for arrives in [e for e in found if e["ph"] == "f" and e["id"] == leaves["id"]]:
            source, target = around(found, leaves)[-1], around(found, arrives)
            assert target[-1]["ts"] == arrives["ts"]
            names = [source["name"], *(e["name"] for e in target[-2:])]
            arrows[tuple(names)] += 1
    assert arrows == {
        ("all_reduce #1", "all_reduce #1", "rank 1 arrived"): 1,
        **{(f"broadcast #{q}", f"broadcast #{q}", "rank 1 arrived"): 1 for q in (2, 3, 4)},
        ("send #1", "recv #1", "rank 1 arrived"): 1,
    }
    # Also where nobody else has arrived: the barrier that hangs.
    exchanges = Exchanges(load([str(job)]))
    both = exchanges.messages.drop_nulls(["send_process", "recv_process"])
    made = Counter(event["cat"] for event in events(job) if event["ph"] == "s")
    assert made == {"collective": exchanges.collectives.height, "message": both.height}
    assert made["collective"] == 5


def test_a_large_job_can_be_mailed(tmp_path: Path) -> None:
    """Packed, as ``-o trace.json.gz`` writes it."""
    bulk(tmp_path, 8000, world_size=8)
    trace = load([str(tmp_path)])
    packed = gzip.compress(b"".join(perfetto.lines(trace)), 6)
    assert len(packed) / trace.operations.height <= 150


def test_what_is_in_flight_is_drawn_to_the_last_sign_of_life(job: Path) -> None:
    """With its age in the name, and in a color of its own."""
    (hung,) = [e for e in slices(events(job)) if e.get("args", {}).get("status") == "in_flight"]
    assert hung["name"] == "barrier #5 (in flight 29.9 s)"
    assert (round(hung["dur"]), hung["cname"]) == (29_920_000, "terrible")
    # In full above all, and by kind on culprits and on who waits.
    found = [e for e in events(job) if e["ph"] == "i" and e["cat"] == "error"]
    pids = {e["args"]["name"]: e["pid"] for e in events(job) if e["name"] == "process_name"}
    by_process = {e["pid"]: e for e in found}
    assert len(by_process) == len(found) == 3
    whole = by_process[pids["findings"]]
    assert whole["name"].startswith("missing_participant: ")
    assert whole["args"]["culprit_ranks"] == [1]
    assert by_process[pids["rank 1 (host, 4001)"]]["name"] == "missing_participant (culprit)"
    assert by_process[pids["rank 0 (host, 4000)"]]["name"] == "missing_participant (waits)"


def test_ends_of_processes_are_marks(tmp_path: Path) -> None:
    """An uncaught exception with its text."""
    (journal,) = workers(tmp_path, 1)
    journal.run(journal.collective(journal.world()), t=20 * MS, d=MS, q=1)
    journal.fail(S, "ValueError", "no number")
    marks = [e["name"] for e in events(tmp_path) if e["ph"] == "i" and e["cat"] == "end"]
    assert marks == ["ValueError: no number", "end (exception)"]


def test_a_call_that_overlaps_its_thread_is_drawn_beside(tmp_path: Path) -> None:
    """Two calls of one thread that cross (a lost end, a thread that died): nothing is hidden."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    journal.run(call, t=20 * MS, d=5 * MS, q=1)
    journal.run(call, t=22 * MS, d=5 * MS, q=2)
    assert len({e["tid"] for e in slices(events(tmp_path))}) == 2
    # Still a document, with the process.
    Journal(tmp_path / "empty", pid=1, role="main")
    assert [e["args"] for e in events(tmp_path / "empty")][:1] == [{"name": "main (host, 1)"}]


def test_pieces_do_not_show(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large traces are written piece by piece: the same document as in one."""
    whole = document(job)
    monkeypatch.setattr(perfetto, "CHUNK_ROWS", 2)
    assert document(job) == whole


def test_profiles_of_hosts_whose_clocks_are_seconds_apart_are_one_picture(tmp_path: Path) -> None:
    """Events lie where ours do, no message runs backwards; both hosts' processes have one pid."""
    size, paths, wall = 4, [], UNIX_NS - UNIX_NS % S
    name_of_file = "ä" * 70 + ".pt.trace.json"  # more bytes than a TAR has room for
    rounds = range(1, 6)
    for rank in range(size):
        ahead = rank * 5 * S
        journal = Journal(
            tmp_path / "journals", pid=7, rank=rank, world_size=size, host=f"h{rank}",
            boot_id=f"boot {rank}", offset_ns=UNIX_NS - T0 + ahead, store_host="h0",
        )  # fmt: skip
        group, profile = journal.world(), []
        for seq in rounds:
            start = seq * 100 * MS
            journal.run(journal.collective(group, "barrier"), t=start + rank, d=MS, q=seq)
            for op, peer, t, d in (
                ("send", (rank + 1) % size, start + 2 * MS, MS),
                ("recv", (rank - 1) % size, start + 4 * MS, MS),
            ):
                journal.run(journal.message(group, op, peer), t=t, d=d, q=seq)
                us = (UNIX_NS + ahead + t - wall) / 1000
                name = f"{op} {seq} {rank if op == 'send' else peer}"
                span = {"ph": "X", "name": name, "ts": us, "dur": d / 1000, "pid": 7, "tid": 1}
                profile.append(span)
        journal.define("exit", t=S, how="normal", code=0)
        paths.append(tmp_path / str(rank) / f"{name_of_file}.gz")
        paths[-1].parent.mkdir()
        head = {"distributedInfo": {"rank": rank}, "baseTimeNanoseconds": wall}
        paths[-1].write_bytes(gzip.compress(orjson.dumps({**head, "traceEvents": profile})))
    options = ["--with", *map(str, paths), "-o", str(tmp_path / "job.tar")]
    assert main(["export", str(tmp_path / "journals"), *options]) == 0

    with tarfile.open(tmp_path / "job.tar") as packed:
        members = {one.name: packed.extractfile(one) for one in packed.getmembers()}
        read = {name: file.read() for name, file in members.items() if file is not None}
    assert next(iter(read)) == "perfetto_manifest.json"
    assert read["perfetto_manifest.json"].startswith(b'{"perfetto_manifest"')
    manifest = orjson.loads(read.pop("perfetto_manifest.json"))["perfetto_manifest"]
    ours, *theirs = manifest["files"]
    assert (manifest["version"], ours) == (1, {"path": perfetto.OURS})
    assert [one["machine"]["name"] for one in theirs] == [
        f"rank {rank} of h{rank}, {rank + 1}: {name_of_file}.gz" for rank in range(size)
    ]
    # Perfetto reads files by their names, and the first one's time line is that of all.
    assert list(read) == [one["path"] for one in manifest["files"]] == sorted(read)
    document = orjson.loads(read[perfetto.OURS])
    begins: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in sorted(slices(document["traceEvents"]), key=lambda one: float(one["ts"])):
        begins[event["name"].split(" ")[0], event["pid"] - 1].append(event["ts"] * 1000)
    placed: dict[str, tuple[float, float]] = {}
    for rank, one in enumerate(theirs):
        assert one["clocks"]["sync_to"] == {"file": perfetto.OURS}
        for event in orjson.loads(read[one["path"]])["traceEvents"]:
            at = event["ts"] * 1000 + one["clocks"]["offset_ns"]
            assert at >= 0
            op, seq, _ = event["name"].split(" ")
            assert abs(at - begins[op, rank][int(seq) - 1]) < 1000  # a double has microseconds
            placed[event["name"]] = at, at + event["dur"] * 1000
    for name, (begin, _) in placed.items():
        if name.startswith("send"):
            assert begin < placed[name.replace("send", "recv")][1]


DELAYS_US = {(0, 1): 3000, (1, 0): 100, (0, 2): 100, (2, 0): 3000, (1, 2): 90, (2, 1): 90,
             (2, 3): 100, (3, 2): 2000, (3, 1): 80, (1, 3): 80}  # fmt: skip


def test_between_hosts_whose_clocks_are_apart_no_message_runs_backwards(tmp_path: Path) -> None:
    """In the file for Perfetto and on the page, also where a third host bounds two clocks loosely:
    by its exchanges alone those of ranks 1 and 2 would be 3 ms apart. By states as well.
    """
    for rank in range(4):
        journal = Journal(
            tmp_path / "journals", pid=7, rank=rank, world_size=4, host=f"h{rank}",
            boot_id=f"boot {rank}", offset_ns=UNIX_NS - T0 + rank * 5 * S, store_host="h0",
        )  # fmt: skip
        group = journal.world()
        for number, ((source, target), us) in enumerate(DELAYS_US.items()):
            calls = {source: ("send", target, 1), target: ("recv", source, us)}
            for seq in (1, 2, 3) if rank in calls else ():
                op, peer, for_us = calls[rank]
                at = seq * S + number * 20 * MS
                journal.run(journal.message(group, op, peer), t=at, d=for_us * 1000, q=seq)
        journal.define("exit", t=5 * S, how="normal", code=0)
    for name in ("x.json", "x.html"):
        assert main(["export", str(tmp_path / "journals"), "-o", str(tmp_path / name)]) == 0
    placed: dict[tuple[str, str, int, int, int], tuple[float, float]] = {}
    for event in slices(orjson.loads((tmp_path / "x.json").read_bytes())["traceEvents"]):
        if event["cat"] == "message":
            op, more = event["name"].split(" ")[0], event["args"]
            key = "json", op, event["pid"] - 1, more["peer"], more["seq"]
            placed[key] = event["ts"], event["ts"] + event["dur"]
    page = data((tmp_path / "x.html").read_text())
    for process, number, seq, begin, d in zip(
        *(page[name] for name in ("process", "call", "seq", "begin", "end")), strict=True
    ):
        call, rank = page["calls"][number], page["processes"][process]["rank"]
        placed["html", call["op"], rank, call["peer"], seq] = begin, begin + d
    assert len(placed) == 2 * 2 * 3 * len(DELAYS_US)
    for (kind, op, rank, peer, seq), (begin, _) in placed.items():
        if op == "send":
            assert begin <= placed[kind, "recv", peer, rank, seq][1], (kind, rank, peer)
    clocks = of_journals([str(tmp_path / "journals")]).survey.clocks
    assert [clock.offset_ns for clock in clocks] == [
        pytest.approx(UNIX_NS - T0, abs=max(clock.error_ns, 1)) for clock in clocks
    ]
    assert max(clock.error_ns for clock in clocks) < 2 * MS


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (b"{}", "is no profile"),
        (b"[]", "is no profile"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "pid": 1}]}', "no process has its pids"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "pid": 7}]}', "several hosts have its pids"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    tmp_path: Path, profile: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sentence, and without an archive."""
    for host in "ab":
        Journal(tmp_path / "journals", pid=7, host=host, boot_id=host)
    path = tmp_path / "x.json"
    path.write_bytes(profile)
    target = tmp_path / "job.tar"
    assert main(["export", str(tmp_path / "journals"), "--with", str(path), "-o", str(target)]) == 2
    assert why in capsys.readouterr().err
    assert not target.exists()
