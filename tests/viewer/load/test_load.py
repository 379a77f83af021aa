"""Loading: segments, definitions completed later, signs of life, and what a call refers to; lines
that are read as numbers; journals by job and host, or under names of bytes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import orjson
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from disttrace.cli import main
from disttrace_viewer.load import batch, segments
from disttrace_viewer.load.segments import Chunk, Slice
from disttrace_viewer.load.text import Text
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.columns import IN_FLIGHT
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.views import prometheus
from support.journals import MS, UNIX_NS, Journal, S, bulk, training, workers
from support.processes import python
from support.states import hang


def test_an_operation_may_begin_and_end_in_different_segments(tmp_path: Path) -> None:
    """The copy of its begin in the second segment is no second operation."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    n = journal.begin(call, MS, q=1)
    journal.segment(2 * MS, pending=[{"b": n, "t": MS, "s": call, "q": 1}])
    journal.end(n, 5 * MS)
    trace = load([str(tmp_path)])
    assert trace.problems == ()
    assert trace.operations.select("number", "seq").rows() == [(1, 1)]
    assert trace.operations["end_ns"].to_list() == [UNIX_NS + 6 * MS]


def test_pending_operations_survive_a_dropped_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The begin's copy is enough; ends without begins are no damage then, and it is said."""
    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    n, other = journal.begin(call, MS, q=1), journal.begin(call, MS, q=2)
    journal.segment(2 * MS, pending=[{"b": n, "t": MS, "s": call, "q": 1}])
    journal.end(other, 5 * MS)
    journal.define("dropped", segment=1)
    journal.segments[0].unlink()
    trace = load([str(tmp_path)])
    assert trace.problems == ()
    assert trace.operations.filter(IN_FLIGHT)["seq"].to_list() == [1]
    main(["diagnose", str(tmp_path)])
    assert "Old operations of 1 process were dropped" in capsys.readouterr().out


def test_definitions_given_later_complete_earlier_ones(tmp_path: Path) -> None:
    """The real port of a store, the name of a group, the rank of a process."""
    journal = Journal(tmp_path, pid=1, role="main")
    store = journal.tcp_store(0, server=True)
    group = journal.group(store, name="", ranks=None, rank=0, size=1)
    journal.define("store", n=store, port=1234, name="tcp://127.0.0.1:1234")
    journal.define("group", n=group, name="0", ranks=[0])
    journal.define("identity", t=MS, role="worker", rank=0, world_size=1)
    trace = load([str(tmp_path)])
    assert (trace.stores[0].port, trace.stores[0].name) == (1234, "tcp://127.0.0.1:1234")
    assert (trace.groups[0].name, trace.groups[0].ranks) == ("0", (0,))
    assert (trace.processes[0].role, trace.processes[0].rank) == ("worker", 0)


def test_the_newest_sign_of_life_is_that_of_any_record(tmp_path: Path) -> None:
    """Heartbeats, stack samples, ends and definitions all count."""
    (journal,) = workers(tmp_path, 1)
    journal.run(journal.collective(journal.world()), 20 * MS, 4 * MS, q=1)
    assert load([str(tmp_path)]).processes[0].last_ns == UNIX_NS + 24 * MS
    journal.record(hb=27 * MS)
    assert load([str(tmp_path)]).processes[0].heartbeat_ns == UNIX_NS + 27 * MS
    journal.record(at=28 * MS, h=0, k=journal.stack(("a.py", 3, "f")))
    journal.record(at=29 * MS, h=1, k=0)
    (process,) = load([str(tmp_path)]).processes
    assert process.last_ns == UNIX_NS + 29 * MS
    assert process.latest_samples[0].stack == (Frame("a.py", 3, "f"),)
    assert process.latest_samples[1].stack == ()
    journal.define("exit", t=31 * MS, how="normal", code=0)
    trace = load([str(tmp_path)])
    assert trace.end_ns == trace.jobs[0].last_ns == UNIX_NS + 31 * MS


def test_a_parents_times_are_no_sign_of_a_childs_life(tmp_path: Path) -> None:
    """A forked child repeats groups, and older recorders left the parent's times in them."""
    (journal,) = workers(tmp_path, 1)
    journal.define("versions", t=20_000 * MS, torch="2.5")
    journal.run(journal.collective(journal.group(t=30_000 * MS)), 20 * MS, 4 * MS, q=1)
    trace = load([str(tmp_path)])
    assert trace.end_ns == trace.processes[0].last_ns == UNIX_NS + 24 * MS


def test_how_a_process_ended_is_in_its_definitions(tmp_path: Path) -> None:
    """An exception with type, text and place; notes and threads beside it."""
    (journal,) = workers(tmp_path, 1)
    journal.define("thread", n=0, name="MainThread", native=77)
    journal.fail(MS, "ValueError", "no", line=5)
    journal.define("note", t=3 * MS, text="left out")
    (process,) = load([str(tmp_path)]).processes
    (failure,) = process.failures
    assert (failure.type, failure.text) == ("ValueError", "no")
    assert failure.stack == (Frame("train.py", 5, "step"),)
    assert process.exit is not None
    assert (process.exit.how, process.exit.code) == ("exception", 1)
    assert process.exit.t_ns == UNIX_NS + 2 * MS
    assert process.notes == ("left out",)
    assert process.threads == {0: "MainThread"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_small_chunks_and_batches_give_the_same_table(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where text is cut for parsing and matching makes no difference."""
    bulk(tmp_path, 4000, 4, asynchronous=asynchronous)
    whole = load([str(tmp_path)])
    monkeypatch.setattr(segments, "CHUNK_BYTES", 700)
    monkeypatch.setattr(batch, "BATCH_BYTES", 5000)
    pieces = load([str(tmp_path)])
    assert whole.operations.height == 4000
    assert whole.operations.select(pl.col("end_ns").null_count()).item() == 0
    assert pieces.operations.equals(whole.operations)


def test_a_damaged_line_in_a_large_file_costs_itself_only(tmp_path: Path) -> None:
    """Found by halving: the pieces around it are still decoded at once."""
    bulk(tmp_path, 20_000, 1)
    path = next(tmp_path.glob("*.000001.ops.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[12_345] = b'{"b":oops}\n'
    path.write_bytes(b"".join(lines))
    trace = load([str(tmp_path)])
    (problem,) = trace.problems
    told = f"{path}: 1 line (first: line 12346) not readable; the others were used."
    assert problem.sentence == told
    assert trace.operations.height in (19_999, 20_000)


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    training(tmp_path, 2, 3)
    told: list[tuple[int, int]] = []
    load([str(tmp_path)], progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_several_folders_and_single_files_are_read(tmp_path: Path) -> None:
    """A file of a journal stands for the whole journal; what is given twice is read once."""
    first, _ = training(tmp_path / "a", 2, 3)
    Journal(tmp_path / "b", pid=1, host="other", job="b").begin(1, MS)
    both = load([str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "a")])
    assert both.operations.height == 6 + 1
    alone = load([str(first.segments[0])])
    assert alone.operations.height == 3
    assert alone.processes[0].rank == 0


@pytest.mark.parametrize("key", [["a", "b"], ["a"], '\0["a"]', "a"])
def test_a_key_is_the_same_however_its_line_is_spaced(tmp_path: Path, key: object) -> None:
    """Journals may have gone through other tools; a list and a text that looks like one are two."""
    (journal,) = workers(tmp_path, 1)
    store = journal.prefix_store(journal.tcp_store(server=True), "p")
    call = journal.call("store.wait", kind="store", store=store)
    journal.begin(call, MS, k=key)

    def read() -> tuple[object, ...]:
        trace = load([str(tmp_path)])
        (row,) = trace.operations.select("call", "key").rows()
        return row[1], trace.full_key(*row)

    compact = read()
    lines = [json.loads(line) for line in journal.segments[0].read_text().splitlines()]
    journal.segments[0].write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read() == compact
    assert isinstance(compact[1], list) is isinstance(key, list)


def test_commands_read_an_archive(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """That ``collect`` made, as they read the folder; what is no journal's is refused."""
    training(tmp_path / "out")
    archive = str(tmp_path / "job.tar.gz")
    assert main(["collect", str(tmp_path / "out"), "-o", archive]) == 0
    for command in ("diagnose", "stats", "view", "jobs"):
        capsysbinary.readouterr()
        assert [main([command, one]) for one in (str(tmp_path / "out"), archive)] == [0, 0]
        text = capsysbinary.readouterr().out
        assert text[: len(text) // 2] == text[len(text) // 2 :] != b""
    (tmp_path / "x.tar.gz").write_bytes(b"\x1f\x8b")
    assert main(["diagnose", str(tmp_path / "x.tar.gz")]) == 2


def test_json_of_others_elsewhere_is_not_listed(tmp_path: Path) -> None:
    """Below ``.`` lie the files of every installed package; beside journals they are odd."""
    training(tmp_path / "out")
    package = tmp_path / ".venv" / "a-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "direct_url.json").write_text("{}")
    assert load([str(tmp_path)]).problems == ()
    (tmp_path / "out" / "odd.json").write_text("{}")
    assert [p.kind for p in load([str(tmp_path)]).problems] == ["foreign"]


def test_every_sample_of_the_main_thread_is_kept(tmp_path: Path) -> None:
    """In the order of time; other threads' samples are not among them."""
    (journal,) = workers(tmp_path, 1)
    journal.stand(3 * S, "loader.py", 9, "wait")
    journal.stand(S, "loader.py", 7, "fetch")
    journal.record(at=2 * S, h=3, k=journal.stack(("pool.py", 1, "run")))
    (process,) = load([str(tmp_path)]).processes
    samples = [(s.t_ns - UNIX_NS, s.stack[0].line) for s in process.samples]
    assert samples == [(1000 * MS, 7), (3000 * MS, 9)]


ODD = (
    b'{"b":9,"t":7,"s":3,"k":"a,b"}', b'{"b":9,"t":7,"s":3,"k":["a","b"]}',
    b'{"b":9,"t":7,"s":3,"a":{"bytes":4}}', b'{"b":9,"t":-7,"s":3}', b'{"b":9,"t":7.5}',
    b'{"b":9,"t":99999999999999999999,"s":3}', b'{"b":,"t":7,"s":3}', b'{"b":9,"t":7,"t":8}',
    b'{"b":9,"s":3}', b'{"b":4294967296,"t":1}', b'{"e":9,"d":null}', b'{"e":9,"d":1,"q":8,"y":2}',
    b'{"e":9,"d":1,"w":8}', b'{"c":9,"d":1,"g":4}', b'{"l":9,"d":1,"o":1}', b'{"hb":77}',
    b'{"at":78,"k":1}', b'{"new":1}', b"{}", b"[1]", b'"', b"torn{", b"123", b'{"b":9, "t":7}',
)  # fmt: skip


def lines(seed: int) -> list[bytes]:
    """Plain ones, and some of the others."""
    drawn = random.Random(seed)
    found = [b'{"seg":1,"format":1,"process":"ab12","t":5}']
    for number in range(1, 80):
        keys = drawn.choice((b"", b',"q":%d' % number, b',"p":1', b',"h":2,"q":3,"p":4'))
        found.append(b'{"b":%d,"t":%d,"s":%d%s}' % (number, 1000 * number, number % 7, keys))
        found.append(b'{"i":%d,"d":1}' % number)
        more = drawn.choice((b"", b',"u":5', b',"u":5,"v":6', b',"x":7'))
        found.append(b'{"e":%d,"d":%d%s}' % (number, drawn.randint(0, 10**12), more))
        if seed and drawn.random() < 0.3:
            found.append(drawn.choice(ODD))
    return found


def parsed(seed: int) -> Chunk:
    """The lines as those of two files."""
    found = lines(seed)
    half = len(found) // 2
    parts = []
    for file, part in enumerate((found[:half], found[half:])):
        parts.append(Slice(file, Text(str(file), b"\n".join(part) + b"\n", len(part)), 1))
    return segments.parse(parts)


@pytest.mark.parametrize("seed", range(12))
def test_columns_are_those_of_json(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, with the same lines counted as unreadable."""
    found = parsed(seed)
    assert found.begins.height >= 79
    monkeypatch.setattr(segments, "shapes_of", lambda data, count: None)
    json = parsed(seed)
    assert_frame_equal(found.begins, json.begins)
    assert_frame_equal(found.ends, json.ends)
    assert_frame_equal(found.marks, json.marks)
    assert (found.signs, found.bad) == (json.signs, json.bad)


def test_plain_lines_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the head of the segment."""
    taken: list[int] = []
    monkeypatch.setattr(segments._Reader, "take", lambda *args: taken.append(args[2].height))
    parsed(0)
    assert taken == [1]


COMMANDS = (
    "diagnose DIR", "view DIR --width 120", "stats DIR --width 120", "jobs DIR", "top DIR --once",
    "export DIR -o OUT/ops.jsonl", "collect DIR -o OUT/job.tar.gz", "reduce DIR -o OUT/states",
    "diagnose OUT/states",
)  # fmt: skip


def said(asked: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What each command says of a folder, without its name."""
    out.mkdir()
    found = []
    for command in COMMANDS:
        words = command.replace("DIR", str(asked)).replace("OUT", str(out)).split()
        code = main(words)
        text = capfd.readouterr()
        found.append(f"{code} {text.out}{text.err}".replace(str(asked), "").replace(str(out), ""))
    found.append((out / "ops.jsonl").read_text())
    return found


def test_commands_agree(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a folder by host, of one part of it, and where some lie by host and some beside it."""
    flat, other, mixed = tmp_path / "flat", tmp_path / "other", tmp_path / "mixed"
    hang(flat)
    for folder, which in ((other, "*"), (mixed, "job-host-4000")):
        shutil.copytree(flat, folder)
        for path in sorted(folder.glob(f"{which}-*.jsonl")):
            job, host, *_ = path.name.split("-")
            own = folder / job / host
            own.mkdir(parents=True, exist_ok=True)
            path.rename(own / path.name)
    known = said(flat, tmp_path / "out", capfd)
    assert "missing_participant" in known[0]
    for number, asked in enumerate((other, mixed, other / "job" / "host")):
        assert said(asked, tmp_path / f"out{number}", capfd) == known


def test_scrapes_find_what_lies_by_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where companions have no place but the folder of the journals."""
    monkeypatch.setattr(prometheus, "own_folder", lambda: None)
    own = tmp_path / "job" / "host"
    own.mkdir(parents=True)
    for path in (tmp_path / "a.live", own / "b.live"):
        path.touch()
    assert {Path(path).name for path in prometheus._files(str(tmp_path))} == {"a.live", "b.live"}


PROGRAM = """
import sys
from disttrace.cli import main
folder, out = sys.argv[1:]
for command in (
    ["diagnose", folder], ["diagnose", folder, "--json"], ["view", folder], ["stats", folder],
    ["top", folder, "--once"], ["export", folder, "--format", "html", "-o", f"{out}.html"],
    ["reduce", folder, "-o", f"{out}.states"], ["diagnose", f"{out}.states", "--json"],
):
    code = main(command)
    assert code == 0, (command, code)
"""


def test_every_command_reads_names_of_bytes(tmp_path: Path) -> None:
    """As it reads the same journals under other names; states of them travel, too."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    training(folder)
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("job-", os.fsdecode(b"j\xf6b-"), 1))
    done = python("-c", PROGRAM, folder, tmp_path / "out", LC_ALL="C.UTF-8").check()
    assert orjson.loads(done.stdout[done.stdout.rindex("\n{") :])["healthy"] is True
