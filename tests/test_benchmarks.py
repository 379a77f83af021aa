"""The benchmark's scripts run and count right; what they measure is never asserted here."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.recorder import (
    beside_version,
    child,
    journal_bytes,
    one_process,
    overhead,
    peak_memory,
    segment_lines,
    startup_time,
    store_operations,
    two_processes,
)
from benchmarks.recorder.journalled import Origin, begins, origins
from benchmarks.recorder.scale import TINY
from benchmarks.recorder.series import Spread, added, ratio, relative, spread
from benchmarks.report import BEGIN, END, Table, replaced
from benchmarks.steps import whole_steps
from benchmarks.viewer import live_judge
from benchmarks.viewer.growth import exponent
from benchmarks.viewer.jobs import Shape, make
from disttrace_viewer.api import load
from support.journals import Journal
from support.processes import ROOT

PYTHON_ISSUED = ["all_reduce", "all_reduce, async and wait", "broadcast"]
PYTHON_ISSUED += ["all_gather_into_tensor", "barrier"]
FUNCTIONAL = "functional all_reduce and wait"


def names(table: Table) -> list[str]:
    return [row[0] for row in table.rows]


# -- statistics and text -----------------------------------------------------------------------


def test_figures_of_a_run() -> None:
    """A tracer's share is taken within a round: the machine's mood does not count. Ratios are of
    medians; one sample is its own spread; exponents are slopes of logarithms.
    """
    variants = {"bare": [10.0, 100.0, 20.0], "disttrace": [13.0, 104.0, 25.0]}
    assert added(variants, "disttrace") == Spread(3.5, 4.0, 4.5)
    variants = {"bare": [1.0, 1.0], "ours": [4.0, 4.0], "theirs": [3.0, 3.0], "free": [1.0, 0.5]}
    assert ratio(variants, "ours", "theirs") == 1.5
    assert ratio(variants, "ours", "free") is None
    assert ratio(variants, "ours", "absent") is None
    assert relative(variants, "theirs") == Spread(2.0, 2.0, 2.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert Spread(-1.0, 0.5, 2.0).holds_zero
    assert not Spread(0.5, 1.0, 2.0).holds_zero
    assert exponent([1, 2, 4, 8], [3, 6, 12, 24]) == pytest.approx(1)
    assert exponent([1, 2, 4, 8], [1, 4, 16, 64]) == pytest.approx(2)


def test_figures_replace_what_stands_between_the_marks() -> None:
    """What is written by hand stays, writing twice changes nothing, and no machine is named."""
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nHow to read.\n"
    once = replaced(page, "new\n")
    assert once == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nHow to read.\n"
    assert replaced(once, "new\n") == once
    with pytest.raises(ValueError, match="the page has no"):
        replaced("# Title\n", "new")
    page = overhead.PAGE.read_text()
    assert all(replaced(page, "x", part) != page for part in overhead.PARTS)
    assert str(ROOT) not in page
    assert os.uname().nodename not in page
    assert "/tmp" not in page


def test_begins_are_counted_by_function_and_origin(tmp_path: Path) -> None:
    """Copies at the head of a segment, ends, heartbeats and torn lines are not counted."""
    journal = Journal(tmp_path, 1, rank=0, world_size=1)
    group = journal.group()
    reduces = journal.collective(group, stack=("main.py", 12, "step"))
    sends = journal.collective(group, "broadcast", origin="c++", stack=None)
    journal.segments[0].unlink()
    journal.segment(5, pending=[{"b": 1, "t": 6, "s": reduces}])
    journal.run(reduces, 7, 4, q=2)
    journal.begin(sends, 8)
    journal.record(hb=9)
    with journal.segments[-1].open("ab") as file:
        file.write(b'{"b":4,"t":9' + bytes(8))
    step, other = Origin("all_reduce", "step", "python"), Origin("broadcast", "", "c++")
    assert origins(tmp_path) == {step: 1, other: 1}
    assert begins(tmp_path) == {"step": 1, "": 1}


# -- the parts, on real processes -----------------------------------------------------------------


def complete(table: Table) -> None:
    """Every figure is a finite number, and our journal held every call."""
    assert "Not recorded" not in table.note
    for row in table.rows:
        for cell in row[1:]:
            for figure in re.findall(r"-?[\d,.]*\d|nan|inf", cell):
                assert math.isfinite(float(figure.replace(",", "")))


def test_one_process() -> None:
    """Both tables hold every operation, each as often in the journal as it was called."""
    alone, beside = one_process.measure(TINY).tables
    messages = ["send", "recv", "isend and wait"]
    assert names(alone) == [*PYTHON_ISSUED, *messages]
    assert names(beside) == [FUNCTIONAL, *PYTHON_ISSUED, *messages]
    tracers = ("disttrace", "disttrace, plain", "profiler", "profiler, stacks")
    assert alone.columns[:6] == ("operation", "bare", *tracers)
    complete(alone)
    complete(beside)
    calls = one_process.measure_calls(TINY)
    assert {*PYTHON_ISSUED, *one_process.AT_MOST} <= set(names(calls.tables[0]))
    assert len(calls.verdicts) == len(one_process.AT_MOST)


PARTS = {
    store_operations: ["HashStore.set", "HashStore.get", "TCPStore.set", "TCPStore.get"],
    segment_lines: ["mapped", "written"],
    journal_bytes: [kind.name for kind in journal_bytes.KINDS],
    peak_memory: ["FSDP2"],
    two_processes: [*PYTHON_ISSUED, "send and recv", FUNCTIONAL],
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__.rpartition(".")[2])
def test_a_part(part: ModuleType) -> None:
    """Its first table has a row for all that it measures, and each figure is a number."""
    report = part.measure(TINY)
    assert names(report.tables[0]) == PARTS[part]
    for table in report.tables:
        complete(table)


def test_startup_time() -> None:
    """Three starts of one program; the second environment differs in one file."""
    (table,) = startup_time.measure(TINY).tables
    assert [name.rsplit(", ", 1)[-1] for name in names(table)] == ["bare", "unset", "DISTTRACE=1"]


def test_a_start_that_fails_or_hangs_is_no_figure(tmp_path: Path) -> None:
    """A program that ends badly must not count as a fast one."""
    start = startup_time.Start(Path(sys.executable), {})
    with pytest.raises(OSError, match="status"):
        startup_time.cpu_time(start, "raise SystemExit(3)")
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        startup_time.cpu_time(start, "import time; time.sleep(60)", limit=0.2)


@pytest.mark.long  # as test_one_process
def test_whole_steps() -> None:
    """Both jobs take their turns, and what ours recorded is what was issued: two ranks."""
    found, begins = whole_steps.measured("all_reduce of 4 bytes", ["bare", "disttrace"], 1)
    assert {*found} == {"bare", "disttrace"}
    assert 1 <= len(found["bare"]) == len(found["disttrace"]) <= 4
    assert all(0 < one.main <= one.cpu for taken in found.values() for one in taken)
    assert 2 <= begins < 2.5  # what sets the group up is among them
    name, recorded, bare, share = whole_steps.row("a", found, begins, ["bare", "disttrace"])
    assert (name, float(recorded) >= 2, float(bare) > 0) == ("a", True, True)
    spread = r"[+-][\d.]+% \(.* to .*\)"
    assert re.fullmatch(rf"{spread}, main {spread}, wall [+-][\d.]+%", share)


def test_a_child_that_fails_is_reported_with_what_it_said() -> None:
    """The text holds the traceback, not only a code."""
    with pytest.raises(child.MeasurementFailed, match=r"AttributeError[^\n]*no_such_function"):
        child.measure("benchmarks.recorder.cases", "no_such_function", {}, timeout=120)


def test_beside_another_version() -> None:
    """Both of them record what they are called for; here the other one is this one."""
    added = beside_version.compare("HEAD", turns=1, calls=50)
    assert "send" in added
    told = beside_version.text("HEAD", 1, {"send": {"that": 2000.0, "this": 3000.0}})
    assert re.search(r"\| 1\.50 \(1\.50 to 1\.50\) +\| \*\*not met\*\* \|", told)


# -- the command line ------------------------------------------------------------------------------


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "recorder" / "overhead.py"), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_parts_are_chosen_by_name() -> None:
    """A wrong name is one sentence with the right ones, before anything is measured."""
    outcome = run("--parts", "fake,nothing")
    assert outcome.returncode == 2
    parts = "fake, calls, stores, gloo, startup, bytes, memory, segments"
    assert f"--parts takes {parts}" in outcome.stderr


@pytest.mark.parametrize("fault", ["tp", "dp", "mp", "world"])
def test_a_simulated_job_hangs_where_it_should(tmp_path: Path, fault: str) -> None:
    """Its journals read without a problem, and the verdict names the rank that stops coming."""
    job = make(tmp_path, Shape(2, 2, 2, 4, fault=fault, per_host=4))
    assert (job["ranks"], job["hosts"], job["culprit"]) == (8, 2, 3)
    found = load(tmp_path).diagnose().to_dict()
    (error,) = [one for one in found["findings"] if one["severity"] == "error"]
    assert (error["kind"], error["culprit_ranks"]) == ("missing_participant", [3])
    assert found["coverage"]["problems"] == []


def test_the_server_judges_what_clients_send() -> None:
    """Of 40 hosts 39 send what they know, and the verdict names the rank."""
    row = live_judge.measured(40, 1, "world")
    pattern = r"\| 40 \| [\d,]+ kB \| [\d.]+ \| \d+ MB \| stalled: Rank \d+ never joined"
    assert re.match(pattern, row)
