"""With and without tracing a program gets the same results and the same exceptions."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.processes import clean_environ, run_program
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"


def outputs(program: str, folder: Path, **variables: str) -> tuple[str, str]:
    """What a program prints without and with tracing."""

    def run(mode: str) -> str:
        command = [sys.executable, str(PROGRAMS / program), mode, str(folder)]
        return run_program(command, clean_environ(**variables), 150).check().stdout

    with ThreadPoolExecutor(2) as pool:
        plain, traced = pool.map(run, ("plain", "traced"))
    return plain, traced


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_every_operation_gives_the_same(tmp_path: Path, debug: str) -> None:
    """Results, types and texts of exceptions, plain and under the debug wrapper."""
    plain, traced = outputs("parity.py", tmp_path, TORCH_DISTRIBUTED_DEBUG=debug)
    assert len(plain.splitlines()) > 50
    assert traced.splitlines() == plain.splitlines()
    (journal,) = read_journals(tmp_path)
    assert journal.of("note") == []


def test_compiled_functions_break_where_they_did(tmp_path: Path) -> None:
    """Graph breaks, frames and recompilations are those of a run without tracing."""
    plain, traced = outputs("compiled.py", tmp_path)
    assert traced == plain
    (journal,) = read_journals(tmp_path)
    calls = journal.calls().values()
    assert {"python", "c++"} == {call["origin"] for call in calls if call["op"] == "all_reduce"}
