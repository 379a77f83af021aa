"""The ten lines for each engine in docs/tables.md, executed: each counts what one process does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from disttrace_viewer.api import load
from frameworks.libraries import environment
from support.journals import bulk
from support.processes import ROOT, clean_environ

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
OWN = PAGE.partition("## An engine of your own")[2]
BLOCKS = dict(re.findall(r"^(\w+)[^\n]*:\n\n```python\n(.*?)```", OWN, re.DOTALL | re.MULTILINE))


def counted(engine: str, folder: Path, python: Path) -> object:
    """What the page's lines find in a folder of journals."""
    code = BLOCKS[engine].replace('"DIR"', repr(os.fspath(folder)))
    script = folder.parent / "page.py"
    script.write_text(f"{code}\nif __name__ == '__main__':\n    print(repr(counts))\n")
    env = clean_environ(PYSPARK_PYTHON=os.fspath(python), SPARK_LOCAL_IP="127.0.0.1")
    # Below pytest's faulthandler_timeout: what takes too long fails by itself, and alone.
    done = subprocess.run([python, script], env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return eval(done.stdout)


def expected(folder: Path) -> object:
    """The same by one process that reads all."""
    rows = load(os.fspath(folder)).select("op", "line")
    return rows.group_by("op", "line").len().sort("op", "line").rows()


@pytest.mark.parametrize("engine", ["Polars", "Dask"])
def test_what_is_installed_here(tmp_path: Path, engine: str) -> None:
    """On one machine."""
    bulk(tmp_path / "journals", 400, 4)
    found = counted(engine, tmp_path / "journals", Path(sys.executable))
    assert found == expected(tmp_path / "journals")


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "packages"), [("Spark", ("pyspark", "pyarrow", "pandas")), ("Ray", ("ray",))]
)
def test_what_takes_an_environment_of_its_own(
    tmp_path: Path, engine: str, packages: tuple[str, ...]
) -> None:
    """Spark's local master needs Java on this machine, too."""
    bulk(tmp_path / "journals", 400, 4)
    python = environment(*packages) / "python"
    assert counted(engine, tmp_path / "journals", python) == expected(tmp_path / "journals")
