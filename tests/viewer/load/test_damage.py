"""Every kind of damage gives one clear sentence and loses nothing else."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from disttrace.cli import main
from disttrace_viewer.load import batch
from disttrace_viewer.merge.reader import load
from support.journals import MS, Journal, training

STEPS = 5
HEALTHY = 2 * STEPS

UNPRIVILEGED = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""What makes permissions hold for root, too."""


@dataclass(frozen=True)
class Damage:
    """What ``do`` does to the first of two journals, and what is still read after it."""

    name: str
    do: Callable[[Journal], object]
    kind: str | None
    """Kind of the one problem that is reported; None: nothing is wrong with it."""
    words: tuple[str, ...] = ()
    """What the sentence must contain."""
    operations: int = HEALTHY
    ended: int = HEALTHY


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def torn_in_the_middle(journal: Journal) -> None:
    """Half of the third operation's end, glued to what follows."""
    lines = lines_of(journal.segments[0])
    lines[6] = lines[6][:9]
    journal.segments[0].write_bytes(b"".join(lines))


def without_head(journal: Journal) -> None:
    edit(journal.definitions, lambda data: data.split(b"\n", 1)[1])


def gap(journal: Journal) -> None:
    """Three segments with one operation each; the second is not there."""
    for n, t in ((2, 20), (3, 21)):
        journal.segment(t * MS)
        journal.run(1, t * MS, MS, q=STEPS + n)
    journal.segments[1].unlink()


def copied(journal: Journal) -> None:
    """The same journal in a second folder."""
    target = journal.folder / "copy"
    target.mkdir()
    for path in (journal.definitions, *journal.segments):
        shutil.copy(path, target)


def older_copy(journal: Journal) -> None:
    """A copy that was taken when half of it was written, and is found first."""
    target = journal.folder / "a_copy"
    target.mkdir()
    shutil.copy(journal.definitions, target)
    lines = lines_of(journal.segments[0])
    (target / journal.segments[0].name).write_bytes(b"".join(lines[:4]))


def forbidden(journal: Journal) -> None:
    """No permission to read the segment (root reads all the same: then a file that is none)."""
    journal.segments[0].unlink()
    # A link to itself cannot be opened by anybody, root included.
    journal.segments[0].symlink_to(journal.segments[0])


def link_circle(journal: Journal) -> None:
    (journal.folder / "loop").symlink_to(journal.folder, target_is_directory=True)


def foreign(journal: Journal) -> None:
    """Other people's JSON beside the journals."""
    (journal.folder / "package.json").write_text('{"name": "x"}')
    (journal.folder / "events.jsonl").write_text('{"b": 1, "t": 2}\n')


def foreign_under_our_name(journal: Journal) -> None:
    """A file with the name of a journal and somebody else's content."""
    (journal.folder / "x-y-1-z.defs.jsonl").write_text('[1, 2]\n{"type": "event"}\n')


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Journal], None]:
    return lambda journal: edit(journal.segments[0], change)


def appended(data: bytes) -> Callable[[Journal], None]:
    return rewrite(lambda old: old + data)


def inserted(data: bytes) -> Callable[[Journal], None]:
    return rewrite(lambda old: old.replace(b"\n", b"\n" + data, 1))


NOISE = bytes(range(128, 256)) * 40

TABLE = (
    Damage("healthy", lambda _: None, None),
    Damage("torn last line", appended(b'{"b":6,"t":'), None),
    Damage("whole last line without newline", rewrite(lambda d: d[:-1]), None),
    Damage("tail of NULs", appended(b"\0" * 5000), None),
    Damage("torn line and NULs", appended(b'{"b":6,"t"' + b"\0" * 100), None),
    Damage("NULs in the middle", inserted(b"\0" * 300), None),
    Damage("CRLF", rewrite(lambda d: d.replace(b"\n", b"\r\n")), None),
    Damage("blank lines", rewrite(lambda d: d.replace(b"\n", b"\n \n\n")), None),
    Damage(
        "torn in the middle", torn_in_the_middle, "noise", ("1 line", "line 7"),
        operations=HEALTHY - 1, ended=HEALTHY - 2,
    ),
    Damage("binary noise", inserted(NOISE + b"\n"), "noise", ("1 line", "line 2")),
    Damage(
        "noise with line ends", inserted(b"\xff\xfe\n\x01\x02\n<html>\n"), "noise", ("3 lines",)
    ),
    Damage("a 20 MB line", inserted(b"x" * 20_000_000 + b"\n"), "noise", ("1 line",)),
    Damage("a 20 MB torn line", appended(b"x" * 20_000_000), "noise", ("20 MB",)),
    Damage("numbers that are none", inserted(b'{"b":"x","t":2,"s":1}\n'), "noise", ("line 2",)),
    Damage("a number too large", inserted(b'{"b":9,"t":1e99,"s":1}\n'), "noise", ("line 2",)),
    Damage("two records in a line", inserted(b'{"hb":1}{"hb":2}\n'), "noise", ("line 2",)),
    Damage(
        "unknown records", inserted(b'{"zz":1}\n{"b":0,"t":1,"s":1,"zz":[1]}\n'), None,
        operations=HEALTHY + 1,
    ),
    Damage("UTF-8 with a mark", rewrite(lambda d: b"\xef\xbb\xbf" + d), None),
    Damage("UTF-16", rewrite(lambda d: d.decode().encode("utf-16")), "noise", ("1 line",)),
    Damage(
        "Latin-1", inserted('{"b":0,"t":1,"s":1,"k":"Käse"}\n'.encode("latin-1")), None,
        operations=HEALTHY + 1,
    ),
    Damage("duplicate begins", appended(b'{"b":1,"t":99,"s":1}\n'), None),
    Damage("duplicate ends", appended(b'{"e":1,"d":99}\n'), None),
    Damage("repeated begin", appended(b'{"b":1,"t":99,"s":1,"r":1}\n'), None),
    Damage("ends without begins", appended(b'{"e":77,"d":9}\n{"e":78,"d":9}\n'), None),
    Damage(
        "calls without definition", appended(b'{"b":77,"t":9,"s":500}\n'), "undefined call",
        ("1 operation",), operations=HEALTHY + 1,
    ),
    Damage(
        "empty segment", lambda j: edit(j.segments[0], lambda _: b""), "empty", operations=STEPS,
        ended=STEPS,
    ),
    Damage(
        "empty definitions", lambda j: edit(j.definitions, lambda _: b""), "no definitions",
        ("which process",), operations=STEPS, ended=STEPS,
    ),
    Damage(
        "no process record", without_head, "no definitions", ("which process",), operations=STEPS,
        ended=STEPS,
    ),
    Damage(
        "noise in definitions",
        lambda j: edit(j.definitions, lambda d: d.replace(b"\n", b"\n" + NOISE + b"\n", 1)),
        "noise", ("1 line", "definitions"),
    ),
    Damage(
        "no definitions", lambda j: j.definitions.unlink(), "no definitions",
        ("Collect that file",), operations=STEPS, ended=STEPS,
    ),
    Damage(
        "no segments", lambda j: j.segments[0].unlink(), "no segments", ("collect",),
        operations=STEPS, ended=STEPS,
    ),
    Damage(
        "missing segment", gap, "missing segment", ("1 segment", "number 2"),
        operations=HEALTHY + 1, ended=HEALTHY + 1,
    ),
    Damage("copy", copied, "copy", ("copy",)),
    Damage("older copy", older_copy, "copy", ("copy",)),
    Damage(
        "newer format", lambda j: j.define("process", format=3), "newer format",
        ("format 3", "knows 2", "update"),
    ),
    Damage(
        "unreadable", forbidden, "unreadable", ("cannot be read",), operations=STEPS, ended=STEPS
    ),
    Damage("links in a circle", link_circle, None),
    Damage("foreign JSON", foreign, "foreign", ("2 files", "package.json")),
    Damage("foreign under our name", foreign_under_our_name, "foreign", ("no record",)),
    Damage("folder named like a journal", lambda j: (j.folder / "x.defs.jsonl").mkdir(), None),
    Damage(
        "compressed", lambda j: (j.folder / "x.defs.jsonl.gz").write_bytes(gzip.compress(b"{}")),
        "compressed", ("gunzip",),
    ),
    Damage(
        "compressed under its old name", lambda j: edit(j.segments[0], gzip.compress), "compressed",
        ("gunzip",), operations=STEPS, ended=STEPS,
    ),
    Damage("dangling link", lambda j: (j.folder / "dead").symlink_to("/nowhere/at/all"), None),
)  # fmt: skip


@pytest.mark.parametrize("beside", [1, 0], ids=["", "alone"])
@pytest.mark.parametrize("damage", TABLE, ids=lambda damage: damage.name)
def test_damage_gives_one_sentence_and_loses_nothing_else(
    damage: Damage, beside: int, tmp_path: Path
) -> None:
    """Also of the only journal: by what reads tables, and by the judge."""
    damage.do(training(tmp_path, 1 + beside, STEPS)[0])
    absent = 0 if beside else STEPS
    trace = load([str(tmp_path)])
    kinds = [problem.kind for problem in trace.problems]
    assert kinds == ([] if damage.kind is None else [damage.kind]), trace.problems
    for problem in trace.problems:
        assert problem.sentence.startswith(str(tmp_path))
        assert problem.sentence.endswith(".")
        for word in damage.words:
            assert word in problem.sentence
    assert len(trace.processes) == 1 + beside
    assert trace.operations.height == damage.operations - absent
    assert trace.operations["end_ns"].count() == damage.ended - absent
    assert main(["diagnose", str(tmp_path)]) in (0, 1, 2)


def test_a_segment_cut_anywhere_keeps_every_whole_line(tmp_path: Path) -> None:
    """Cutting bytes off the end loses the operations behind the cut and says nothing."""
    first, _ = training(tmp_path, 2, STEPS)
    path = first.segments[0]
    for _ in range(59):
        kept = path.read_bytes()[:-1]
        path.write_bytes(kept)
        whole = [line for line in kept.split(b"\n") if line.endswith(b"}")]
        trace = load([str(tmp_path)])
        assert trace.problems == ()
        assert trace.operations.height == STEPS + sum(b'"b"' in line for line in whole)
        assert trace.operations["end_ns"].count() == STEPS + sum(b'"e"' in line for line in whole)


@pytest.mark.parametrize(
    ("what", "commands"),
    [
        ("segment", ["view", "diagnose", "stats"]),
        ("definitions", ["view"]),
        ("folder", ["view", "diagnose"]),
    ],
)
def test_what_is_forbidden_is_named(what: str, commands: list[str], tmp_path: Path) -> None:
    """Without permission the file is named with what to do, whatever is asked of the others."""
    folder = tmp_path / "traces"
    first, _ = training(folder, 2, STEPS)
    path = {"segment": first.segments[0], "definitions": first.definitions, "folder": folder}[what]
    path.chmod(0)
    program = "import sys; from disttrace.cli import main\nfor word in sys.argv[2:]:"
    program += " main([word, sys.argv[1]]); print('OVER'); print('OVER', file=sys.stderr)"
    try:
        words = [*UNPRIVILEGED, sys.executable, "-c", program, str(folder), *commands]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    finally:
        path.chmod(0o700)
    both = (text.split("OVER")[:-1] for text in (done.stdout, done.stderr))
    each = ["".join("".join(texts).split()) for texts in zip(*both, strict=True)]
    assert len(each) == len(commands)
    for said in each:  # lines are broken, paths too
        assert f"{path}:cannotberead(Permissiondenied)" in said or (
            what == "folder" and f"{path}:itcannotbelisted(Permissiondenied)" in said
        )


def test_files_that_vanish_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder deleted between finding and reading costs its own operations only."""
    first, _ = training(tmp_path, 2, STEPS)
    original = batch.read

    def vanish(*of: Any) -> batch.Batch:
        first.segments[0].unlink(missing_ok=True)
        return original(*of)

    monkeypatch.setattr(batch, "read", vanish)
    trace = load([str(tmp_path)])
    assert [p.kind for p in trace.problems] == ["unreadable"]
    assert trace.operations.height == STEPS


@pytest.mark.parametrize(("end", "lost"), [(b'  File "/src/train.py", li', 0), (b'{"def":"st', 1)])
def test_a_kill_while_stacks_are_written_is_no_loss(tmp_path: Path, end: bytes, lost: int) -> None:
    """It is written in pieces, and a definition at once: half of that means half a copy."""
    first, _ = training(tmp_path, 2, STEPS)
    with first.definitions.open("ab") as file:
        file.write(b"Stack (most recent call first):\n" + end)
    assert sum(len(process.losses) for process in load([str(tmp_path)]).processes) == lost


def test_bad_values_in_definitions_are_no_error(tmp_path: Path) -> None:
    """Definitions with values of the wrong types are read as far as they make sense."""
    first, _ = training(tmp_path, 2, STEPS)
    for kind in ("store", "group", "call", "stack", "thread", "string"):
        first.define(kind, n=90, prefix=3, base="x", ranks="all", frames=[1], shapes=[[1], 2])
        first.define(kind, n=90, dtypes=7, backends=[1], args=[1], t="now", host=5, port="p", v=1)
    for kind in ("exit", "failure", "note", "dropped", "clock", "versions", "identity"):
        first.define(kind, t="now", code="x", type=4, unix_ns="x", segment=[])
    trace = load([str(tmp_path)])
    assert trace.operations.height == HEALTHY
    assert {p.rank for p in trace.processes} == {0, 1}


@pytest.mark.parametrize("command", ["view", "diagnose", "stats"])
def test_whatever_is_asked_says_why_it_finds_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger's file in a folder, and journals without a sound line."""
    strange, damaged = tmp_path / "strange", tmp_path / "damaged"
    strange.mkdir()
    (strange / "x.json").write_text("{}")
    assert main([command, str(strange)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(": 1 file here (x.json) bears no name of a journal and was left out.")
    assert " it 1 " not in said
    assert main([command, f"{tmp_path}/a\nb"]) == 2
    assert r"a\nb: it does not exist;" in capsys.readouterr().err
    (journal,) = training(damaged, 1, STEPS)
    for path in damaged.iterdir():
        path.write_bytes(b"\xff\x00noise\n" * 9)
    assert main([command, str(damaged)]) == 2
    name = os.path.basename(journal.definitions)
    assert f"{name}: has the name of a journal but holds no record" in capsys.readouterr().err


def test_operations_without_definitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The definitions of calls are lost: nobody says that nothing was communicated."""
    for journal in training(tmp_path, 2, STEPS):
        lines = journal.definitions.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if b'"call"' not in line]
        journal.definitions.write_bytes(b"".join(kept))
    assert main(["stats", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("No communication could be read; what is missing stands below.\n")
    assert "of calls that are not defined" in said
