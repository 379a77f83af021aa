"""A hang is diagnosed where nothing but orjson is installed, in the same words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttrace_viewer.analysis.past import Past
from disttrace_viewer.load.foreign.logs import _marks
from support.journals import MS, S
from support.processes import ROOT, clean_environ, run_program
from support.scenes import alive, steps, stuck
from support.states import hang

LEAN = """
import pathlib, sys, time
sys.modules.update(dict.fromkeys(("polars", "rich", "torch", "numpy")))
from disttrace.cli import main
code = main(["diagnose", *sys.argv[1:]])
status = pathlib.Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
used_kb = next((line.split()[1] for line in lines if line.startswith("VmHWM")), 0)
costly = {"concurrent.futures.process", "multiprocessing", "disttrace_viewer.replay.verdict"}
costly |= {"tarfile", "pickle", "disttrace_viewer.load.foreign.logs"}
sys.stderr.write(f"{used_kb} {time.process_time()} {len(costly & {*sys.modules})}")
sys.exit(code)
"""
FULL = "import sys; from disttrace.cli import main; sys.exit(main(['diagnose', *sys.argv[1:]]))"
ASKS = f"{FULL.replace('sys.exit', 'print')}; print('polars' in sys.modules)"
REPORTS = ROOT / "tests/viewer/load/public_reports.txt"
MOST_KB, MOST_CPU_S = 40_000, 1.0
"""A table of operations takes 100 MB; on a quiet machine it is 29 MB and 0.18 s."""


@pytest.mark.parametrize("scene", ["hang", "failure"])
def test_the_same_is_said(tmp_path: Path, scene: str) -> None:
    """But for the sentence that only where processes are was looked at."""
    pytest.importorskip("polars")
    if scene == "hang":
        hang(tmp_path)
    else:
        stuck(tmp_path, "all_reduce", "failed", "all_reduce")
    lean = run_program([sys.executable, "-c", LEAN, str(tmp_path)], clean_environ())
    full = run_program([sys.executable, "-c", FULL, str(tmp_path)], clean_environ())
    assert (lean.code, full.code) == (1, 1), f"{lean}{full}"
    said = lean.stdout.splitlines()
    assert said.pop().startswith("Only current positions were read")
    assert said == full.stdout.splitlines()
    used_kb, cpu_s, costly = lean.stderr.split()
    assert int(used_kb) < MOST_KB
    assert float(cpu_s) < MOST_CPU_S
    assert costly == "0"  # no pool for a few journals, nothing replayed, no reader of others' files


def test_what_is_over_is_looked_at_where_polars_is(tmp_path: Path) -> None:
    """Arguments that differed in a call that returned: without a table nobody knows of them."""
    pytest.importorskip("polars")
    for journal, group in steps(tmp_path, 3):
        odd = journal.collective(group, reduce_op="MAX" if journal.rank == 1 else "SUM")
        journal.run(odd, t=S, d=S // 10, q=3)
        for number in range(4, 8):
            journal.run(journal.collective(group), t=number * S, d=S // 10, q=number)
        journal.define("exit", t=9 * S, how="normal", code=0)
    lean = run_program([sys.executable, "-c", LEAN, str(tmp_path)], clean_environ())
    full = run_program([sys.executable, "-c", FULL, str(tmp_path)], clean_environ())
    assert (lean.code, full.code) == (0, 1), f"{lean}{full}"
    assert "arguments in calls that are over were not looked at" in lean.stdout
    assert "reduce_op_mismatch" in full.stdout


@pytest.mark.parametrize("over", ["nothing", "dropped", "message"])
def test_tables_are_made_of_a_hang_where_they_tell_more(tmp_path: Path, over: str) -> None:
    """Polars takes longer to import than all else takes; a Work that was dropped is named still."""
    pytest.importorskip("polars")
    for journal, group in alive(steps(tmp_path, 2)):
        if over == "dropped":
            dropped = journal.collective(group, asynchronous=True)
            number = journal.issue(dropped, S // 2, q=3, d=MS)
            journal.record(l=number, d=2 * MS)
        elif over == "message" and journal.rank == 0:
            journal.run(journal.message(group, "send", 1), S // 2, MS, q=1)
        if journal.rank == 0:
            journal.begin(journal.collective(group), S, q=4 if over == "dropped" else 3)
    shown = run_program([sys.executable, "-c", ASKS, str(tmp_path)], clean_environ()).check()
    assert shown.stdout.splitlines()[-2:] == ["1", str(over != "nothing")]
    assert ("unwaited_work" in shown.stdout) == (over == "dropped"), shown.stdout


@pytest.mark.parametrize("late_ms", [4, 12])
def test_tables_are_made_of_a_job_that_is_over_where_a_rank_may_be_late(
    tmp_path: Path, late_ms: int
) -> None:
    pytest.importorskip("polars")
    for journal, group in steps(tmp_path, 3):
        late = late_ms * MS if journal.rank == 1 else 0
        for number in range(3, 24):
            journal.run(
                journal.collective(group), number * 20 * MS + late, 15 * MS - late, q=number
            )
        journal.define("exit", t=S, how="normal", code=0)
    shown = run_program([sys.executable, "-c", ASKS, str(tmp_path)], clean_environ()).check()
    assert shown.stdout.splitlines()[-2:] == [str(int(late_ms > 4)), str(late_ms > 4)]
    assert ("straggler" in shown.stdout) == (late_ms > 4), shown.stdout


def test_jobs_without_tables_answer_every_question_of_the_past() -> None:
    """``_is_whole`` sees that each has none; one that is added has to be seen there, too."""
    questions = {name for name in vars(Past) if not name.startswith("_")} - {"known"}
    assert questions == {"unlike", "misfits", "late", "unwaited", "moved"}


def test_logs_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever way their lines are searched: those of all reports that tests know, and one."""
    pytest.importorskip("polars")
    lines = REPORTS.read_text(encoding="utf-8").splitlines()
    quick = [marks[:3] for marks in _marks(lines)]
    monkeypatch.setitem(sys.modules, "polars", None)
    assert [marks[:3] for marks in _marks(lines)] == quick
    path = tmp_path / "job.log"
    path.write_text("[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad batch\n")
    lean = run_program([sys.executable, "-c", LEAN, str(path)], clean_environ())
    assert lean.code == 1
    assert "Rank 1 failed: ValueError: bad batch" in lean.stdout
