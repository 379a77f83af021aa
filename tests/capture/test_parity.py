"""With and without tracing a program gets the same results and the same exceptions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.preloaded import preloaded
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"
OVERRIDDEN = ("all_reduce", "barrier", "broadcast")


def outputs(program: str, folder: Path, **variables: str) -> tuple[str, str]:
    """What a program prints without and with tracing."""

    def run(mode: str) -> str:
        return preloaded(PROGRAMS / program, mode, folder, timeout=150, **variables).check().stdout

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


def test_compiled_graphs_are_the_same(tmp_path: Path) -> None:
    """Functional collectives, also differentiated, as one graph: code, results, recompilations."""
    plain, traced = outputs("graphs.py", tmp_path)
    assert traced == plain
    assert plain.count("_c10d_functional.all_reduce") >= 4
    (journal,) = read_journals(tmp_path)
    assert journal.of("note") == []
    origins = {call["origin"] for call in journal.calls().values() if call["kind"] == "collective"}
    assert origins == {"c++"}


def test_python_subclasses(tmp_path: Path) -> None:
    """Overriding none, some or all: same results, no recursion, each operation once."""
    plain, traced = outputs("subclasses.py", tmp_path)
    assert traced == plain
    assert "RecursionError" not in traced
    (journal,) = read_journals(tmp_path)
    kinds = {group["n"]: group["type"] for group in journal.of("group") if "type" in group}
    calls = journal.calls()
    found = [
        (kinds[calls[record["s"]]["group"]], calls[record["s"]]["op"])
        for record in journal.records
        if "b" in record and calls[record["s"]]["kind"] == "collective"
    ]
    each = [(kind, op) for kind in ("Before", "All", "NoneOf") for op in OVERRIDDEN]
    assert found == [*each, ("ProcessGroup", "all_reduce")]
    own = [calls[r["s"]]["op"] for r in journal.records if "b" in r and _from_python(calls, r)]
    assert [own.count(f"store.{op}") for op in ("set", "get", "append")] == [1, 2, 2]


def _from_python(calls: dict[int, dict[str, Any]], record: dict[str, Any]) -> bool:
    """Not what gloo writes into its store by itself."""
    return bool(calls[record["s"]]["origin"] == "python")
