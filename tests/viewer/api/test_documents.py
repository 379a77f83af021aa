"""What the documents of the Python API show is run: the notebook, and the examples of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from disttrace_viewer.api import Report, ViewerError, diagnose
from support.journals import work_steps
from support.processes import ROOT

STEPS = 20


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with journals of a straggler in ``disttrace-out``, as the current one."""
    work_steps(tmp_path / "disttrace-out", [10, 10, 50, 10], steps=STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISTTRACE_DIR", raising=False)
    return tmp_path


QUESTIONS = """
assert last.row(0) == (2, {steps}, {late})
assert origins.row(0)[:4] == (2, "train.py:10", {steps}, {steps})
assert lines.rows() == [("all_reduce", "train.py:10", 4 * {steps}, 41.0, 41.0)]
stats = trace.stats()
assert "train.py:10" in str(stats) and str(stats) == stats.text(), "what is painted stays text"
stats
"""
"""Asked after the cells of the page, whose last values have these names here."""


def test_the_notebook_runs(job: Path) -> None:
    """In a kernel: each cell has one output, which names rank 2, its 40 ms and its line."""
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert len(notebook.cells) == 10
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, name in zip(
        code, ("trace", "report", "last", "origins", "lines", "page"), strict=True
    ):
        *first, value = cell.source.splitlines()
        cell.source = "\n".join([*first, f"{name} = {value}", name])
    text = QUESTIONS.format(steps=STEPS, late=3 * STEPS * 40.0)
    notebook.cells.append(nbformat.v4.new_code_cell(text))  # type: ignore[no-untyped-call]
    code.append(notebook.cells[-1])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(job))
    shown = [output.data for cell in code for output in cell.outputs]
    assert [len(cell.outputs) for cell in code] == [1] * len(code)
    assert "4 processes, 80 operations" in shown[0]["text/plain"]
    assert "straggler" in shown[1]["text/html"]
    assert shown[5]["text/html"].startswith('<iframe sandbox="allow-scripts"')
    assert "train.py:10" in shown[6]["text/html"]


def test_examples_of_the_page_run(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, each after what stands above it."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    told = capsys.readouterr().out
    assert told.count("Rank 2 ") >= 2
    assert "straggler (2,) Rank 2 " in told
    assert "['train.py:10']" in told
    assert isinstance(names["report"], Report)


def test_documented_columns_are_the_frames(job: Path) -> None:
    """docs/tables.md lists the columns of every file, in their order."""
    import polars as pl

    import disttrace

    disttrace.load().export("trace.parquet")
    text = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    for name in ("processes", "groups", "operations", "exchanges", "store_operations"):
        (listed,) = re.findall(rf"^\* \*\*{name}\*\*: `([^`]+)`", text, re.MULTILINE)
        where = "operations/**/*.parquet" if name == "operations" else f"{name}.parquet"
        frame = pl.read_parquet(f"trace.parquet/{where}", hive_partitioning=name == "operations")
        assert sorted(listed.split()) == sorted(frame.columns), name


def test_an_empty_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    """Documented as ``ViewerError``, with what to do."""
    with pytest.raises(ViewerError, match="no journals in"):
        diagnose(tmp_path)
    (tmp_path / "notes.txt").write_text("no journal")
    for place in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(ViewerError) as error:
            diagnose(place)
        told = "notes.txt: it does not show why the job ended: 1 line, no error."
        assert str(error.value).endswith(told), "no word of journals where other evidence was given"
