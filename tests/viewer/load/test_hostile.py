"""Folders and journals that somebody else wrote: what they hold is shown, and nothing obeys it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from disttrace.cli import main
from disttrace.journal.format import (
    BOUNDS,
    CLOSED,
    DEFINITIONS,
    FIELDS,
    LONGEST,
    MOST_MEMBERS,
    NEEDED,
)
from disttrace_viewer.load import files
from disttrace_viewer.load.definitions import MOST_OF_A_KIND, Definitions
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.load.schema import Checker
from disttrace_viewer.load.tail import Tail
from disttrace_viewer.load.text import LONGEST_LINE, read
from disttrace_viewer.merge.reader import load
from disttrace_viewer.trace.model import JobTrace
from disttrace_viewer.trace.plain_text import plain, shortened
from support.journals import MS, Journal, training, workers

STEPS = 3
TYPES = {*BOUNDS, *CLOSED, *LONGEST, "size", "flag", "names", "texts", "keys", "prefixes", "map"}
TYPES |= {"ranks", "word", "words", "shapes", "frames", "json", "object", "call", "span"}
NASTY = "\x1b]0;owned\x07\x9b2J\u202e\u200b\n\r\b\ud800end"


def test_the_schema_knows_every_record() -> None:
    """Every kind has fields of known types, and needs only such as it has."""
    assert set(DEFINITIONS) <= set(FIELDS)
    assert {type_ for fields in FIELDS.values() for type_ in fields.values()} <= TYPES
    for kind, keys in NEEDED.items():
        assert set(keys) <= set(FIELDS[kind])


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("group", {"n": 1, "size": -1}), ("group", {"n": 1, "ranks": [0, "1"]}),
        ("group", {"n": 1, "ranks": [0, True]}), ("group", {"n": True}), ("group", {}),
        ("call", {"n": 1, "shapes": [4]}), ("call", {"n": 1, "async": 1}),
        ("call", {"n": 1, "args": [1]}),
        ("call", {"n": 1, "dtypes": ["float32", "float32); import os; os.system('x'"]}),
        ("call", {"n": 1, "reduce_op": "SUM); os.abort("}),
        ("call", {"n": 1, "kind": "collective\n"}),
        ("call", {"n": 1, "origin": "`id`"}),
        ("b", {"b": 1, "t": 1, "a": {"dtypes": ["$(id)"]}}),
        ("identity", {"role": "agent' #"}),
        ("worker", {"t": 1, "pid": -1}), ("process", {"pid": -1}), ("process", {"pid": 0}),
        ("stack", {"n": 1, "frames": [[1, 2]]}), ("exit", {"t": -1}), ("exit", {"t": 1 << 61}),
        ("exit", {"code": 1 << 70}), ("b", {"b": 1, "t": 1, "k": [1]}),
        ("b", {"b": 1, "t": 1, "h": 1 << 16}), ("b", {"b": 1, "t": 1, "a": {"group": "x"}}),
        ("b", {"b": 1 << 32, "t": 1}), ("b", {"b": 1}), ("e", {"e": 1, "d": 1.5}),
    ],
)  # fmt: skip
def test_a_record_of_a_wrong_type_is_left_out(kind: str, record: dict[str, object]) -> None:
    """And counted, with the name of the field."""
    checker = Checker()
    assert checker.record(kind, record) is None
    assert checker.wrong == 1
    assert [name for name, _ in checker.sentences()] == ["wrong values"]


def test_what_is_wrong_or_unknown_is_as_good_as_absent() -> None:
    """Other versions write other keys; and the whole journal hangs on the process record."""
    record = {"n": 1, "size": None, "later": {"x": [1]}}
    assert Checker().record("group", record) == {"n": 1}
    checker = Checker()
    fields = checker.fields("process", {"process": "p", "pid": "x", "t0": 5})
    assert (fields, checker.wrong) == ({"process": "p", "t0": 5}, 1)
    # A world of 10**11 ranks is one of unknown size, and that is said.
    checker = Checker()
    assert checker.record("group", {"n": 1, "size": 10**11}) == {"n": 1, "size": None}
    assert checker.record("group", {"n": 1, "size": MOST_MEMBERS}) == {"n": 1, "size": MOST_MEMBERS}
    ((kind, sentence),) = checker.sentences()
    assert kind == "cut values"
    assert "size, 100,000,000,000 members" in sentence


def test_text_is_made_plain_and_cut() -> None:
    """What can be seen stays; keys that differ in their end only are two keys."""
    assert plain("naïve 名 \U0001f600 a b") == "naïve 名 \U0001f600 a b"
    assert plain(NASTY) == (r"\x1b]0;owned\x07\x9b2J\u202e\u200b\n\r\x08\ud800end")
    one, two = shortened("k" * 5000 + "1", 100), shortened("k" * 5000 + "2", 100)
    assert one != two
    assert max(len(one), len(two)) <= 100


def nasty_job(folder: Path) -> Journal:
    """A job whose every text is nasty."""
    text = NASTY.replace("\ud800", "")
    keys = dict.fromkeys(("host", "boot_id", "job", "cwd", "run"), text)
    (journal,) = workers(folder, 1, keys={"argv": ["python", text], **keys})
    stack = journal.stack((text, 1, text))
    store = journal.tcp_store(host=text, name=f"tcp://{text}", path=text, address=text)
    group = journal.group(journal.prefix_store(store, text), name=text, desc=text, type=text)
    call = journal.collective(group, op=text, stack=stack, backend=text)
    journal.run(call, 20 * MS, MS, q=1)
    get = journal.call("store.get", kind="store", store=store, stack=stack)
    for key in (text, [text, "b"]):
        journal.run(get, 22 * MS, MS, k=key)
    journal.run(get, 24 * MS, MS, a={"name": text, "args": {text: [text]}})
    journal.define("thread", n=0, name=text)
    journal.define("failure", t=30 * MS, type=text, text=text, stack=stack)
    journal.define("note", t=30 * MS, text=text)
    journal.define("versions", t=1, torch=text, not_captured=[text], parts=[text])
    return journal


def values_of(value: object) -> list[str]:
    found: list[str] = []
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            found += values_of(key) + values_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            found += values_of(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            found += values_of(getattr(value, name))
    return found


def test_no_text_of_a_trace_can_be_obeyed(tmp_path: Path) -> None:
    nasty_job(tmp_path)
    odd = tmp_path / "a\x1b[2Jb.defs.jsonl"
    odd.write_bytes(b"{}\n")
    trace: JobTrace = load([str(tmp_path)])
    calls = [trace.call(i) for i in range(trace.calls.height)]
    texts = values_of((trace.processes, trace.groups, trace.stores, trace.places, trace.jobs))
    said = [problem.sentence for problem in trace.problems]
    texts += values_of((trace.stacks, trace.errors, trace.keys, calls, said))
    assert len([t for t in texts if r"\x1b]0;" in t]) > 20
    assert [t for t in texts if not t.isprintable()] == []


def test_a_key_that_begins_with_nul_is_a_key(tmp_path: Path) -> None:
    """HashStore takes it; it is no list."""
    (journal,) = workers(tmp_path, 1)
    call = journal.call("store.set", kind="store", store=journal.tcp_store())
    journal.run(call, MS, MS, k="\0x")
    journal.run(call, 3 * MS, MS, k=["a", "\0b"])
    keys = load([str(tmp_path)]).keys
    assert [(k.parts, k.many) for k in keys] == [((r"\x00x",), False), (("a", r"\x00b"), True)]
    # The recorder escapes halves of surrogate pairs, which orjson does not read.
    line = journal.definitions.read_bytes().replace(b'"train.py"', rb'"\udcff.py"')
    journal.definitions.write_bytes(line)
    trace = load([str(tmp_path)])
    assert trace.problems == ()
    assert trace.processes[0].argv == ("python", r"\udcff.py")


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "x-y-1-z.defs.jsonl")
    os.mkfifo(folder / "x-y-1-z.000001.ops.jsonl")


def endless(folder: Path) -> None:
    (folder / "x-y-1-z.defs.jsonl").symlink_to("/dev/zero")


def whole_machine(folder: Path) -> None:
    (folder / "all").symlink_to("/", target_is_directory=True)


def far_segment(folder: Path) -> None:
    first = next(folder.glob("*.000001.ops.jsonl"))
    name = first.name.replace("000001", "99999999999")
    (folder / name).write_bytes(b'{"seg":1}\n')


def huge_world(folder: Path) -> None:
    journal = Journal(folder, pid=77, rank=0, world_size=1, job="huge", host="other")
    journal.define("identity", t=2, world_size=10**11)
    journal.group(journal.tcp_store(1), size=2 * 10**7, ranks=None)
    journal.group(journal.tcp_store(2), size=10**11, ranks=None)
    journal.group(journal.tcp_store(3), size=-1, ranks=None)


def long_id(folder: Path) -> None:
    Journal(folder, pid=78, process="f" * 2_000_000, job="long", host="other")


def long_line(folder: Path) -> None:
    path = next(folder.glob("*.000001.ops.jsonl"))
    path.write_bytes(path.read_bytes() + b'{"b":9,"t":1,"k":"' + b"x" * LONGEST_LINE + b'"}\n{}\n')


@pytest.mark.parametrize(
    ("do", "kinds"),
    [
        (fifo, {"unreadable"}), (endless, {"link"}), (whole_machine, {"link"}),
        (far_segment, {"missing segment"}), (huge_world, {"cut values", "wrong values"}),
        (long_id, {"cut values"}), (long_line, {"noise"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_a_small_thing_in_a_folder_costs_little(
    do: Callable[[Path], None], kinds: set[str], tmp_path: Path
) -> None:
    """No hang, no exhausted memory, a sentence, and all operations beside it."""
    training(tmp_path, 2, STEPS)
    do(tmp_path)
    started = time.process_time()
    trace = load([str(tmp_path)])
    assert {p.kind for p in trace.problems} == kinds
    mine = [p.index for p in trace.processes if p.job == "job"]
    assert trace.operations["process"].is_in(mine).sum() == 2 * STEPS
    assert len(trace.short_ids) == len(trace.processes)
    assert time.process_time() - started < 60


def test_a_link_to_what_was_asked_for_too_is_followed(tmp_path: Path) -> None:
    """Folders may be put together by links."""
    training(tmp_path / "a", 1, STEPS)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a")
    assert load([str(tmp_path / "b")]).processes == ()
    assert len(load([str(tmp_path / "b"), str(tmp_path / "a")]).processes) == 1


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """And a sentence says what was left."""
    path = tmp_path / "x"
    path.write_bytes(b'{"a":1}\n' * 100)
    problems = Problems()
    assert read(str(path), problems, most=84).lines == 10
    (problem,) = problems.found()
    assert problem.kind == "too large"
    assert "(716 bytes)" in problem.sentence
    assert files.read(str(path))[1] == 0


def test_a_tail_follows_no_link_opens_no_pipe_and_skips_a_line_without_an_end(
    tmp_path: Path,
) -> None:
    """The exporter reads in folders where others write; such a line is not read into memory."""
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 * LONGEST_LINE) + b"\n" + b"good\n")
    (tmp_path / "link").symlink_to("file")
    for name in ("fifo", "link"):
        with pytest.raises(OSError, match=re.escape(name)):
            Tail(str(tmp_path / name))
    tail = Tail(str(path))
    lines = tail.lines()
    assert lines[-1] == b"good"
    assert sum(map(len, lines)) < 2 * LONGEST_LINE
    tail.close()


def test_both_readers_skip_the_same_records(tmp_path: Path) -> None:
    """A definition is checked by one schema, whoever reads."""
    from disttrace_viewer.otlp.journal import JournalReader

    (journal,) = workers(tmp_path, 1)
    call = journal.collective(journal.world())
    journal.run(call, MS, MS, q=1)
    journal.record(b=2, t="x", s=call)
    journal.record(b=3, t=1, s=call, h=-1)
    journal.record(e=1, d=orjson.Fragment(b"1e400"))
    journal.define("group", n="one")
    reader = JournalReader(str(tmp_path), journal.base.name)
    assert [op.number for op in reader.poll(final=True)] == [1]
    trace = load([str(tmp_path)])
    assert trace.operations["number"].to_list() == [1]
    assert sorted(p.kind for p in trace.problems) == ["noise", "wrong values"]
    assert reader.definitions.checker.wrong == 4


def test_ranges_and_definitions_are_bounded() -> None:
    """Sixty bytes may stand for a million ranks, and twenty for a record of a kilobyte."""
    found = Definitions()
    for number in range(10):
        ranks = [{"from": number, "to": 1_000_000}]
        assert found.add({"def": "group", "n": number, "ranks": ranks})
    known = [g for g in found.numbered["group"].values() if g["ranks"] is not None]
    assert len(known) == 4
    for number in range(MOST_OF_A_KIND + 1):
        found.add({"def": "thread", "n": number})
    assert len(found.numbered["thread"]) == MOST_OF_A_KIND
    assert found.checker.cut == 6 + 1


@pytest.mark.parametrize("value", [(1 << 64) - 1, 10**30, 1 << 61])
@pytest.mark.parametrize("key", ["t", "d"])
def test_an_impossible_number_costs_its_record_alone(tmp_path: Path, key: str, value: int) -> None:
    """Sums of such numbers are beyond 64 bits: every command ended by it."""
    journal = training(tmp_path)[0]
    lines = journal.segments[-1].read_bytes().splitlines()
    head = b'{"b":' if key == "t" else b'{"e":'
    place = next(i for i, line in enumerate(lines) if line.startswith(head))
    record = json.loads(lines[place])
    lines[place] = json.dumps({**record, key: value}).encode()
    journal.segments[-1].write_bytes(b"\n".join([*lines, b""]))
    trace = load([str(tmp_path)])
    assert trace.operations.height >= 5
    assert any("line" in problem.sentence for problem in trace.problems)
    for command in (["view", "--places"], ["diagnose"], ["export", "--format", "html"]):
        more = ["-o", str(tmp_path / "page.html")] if command[0] == "export" else []
        assert main([command[0], str(tmp_path), *command[1:], *more]) in (0, 1, 2)
