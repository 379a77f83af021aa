"""Kernels on the operators of c10d come with the first operation that C++ issues, not before."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from support.processes import python
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"
PYTHON_ONLY = ("nothing", "profiler")
FUNCTIONAL = ("functional", "out_argument", "coalesced", "inference", "threads")
AUTOGRAD = "_c10d_functional_autograd."


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What the program says of each case, and the folder of its journals."""
    folder = tmp_path_factory.mktemp("late")
    outcome = python(PROGRAMS / "late_kernels.py", str(folder), timeout=120).check()
    return [json.loads(line) for line in outcome.stdout.splitlines()], folder


def test_every_operation_is_recorded(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """The first one too: in threads, inference mode, autograd, and from a compiled library."""
    cases, folder = ran
    for case in cases:
        (journal,) = read_journals(folder / case["name"])
        calls = journal.calls()
        begun = [calls[r["s"]] for r in journal.records if "b" in r and "r" not in r]
        # torch issues some single ones as coalesced.
        names = [c["op"].removesuffix("_coalesced") for c in begun if c["kind"] == "collective"]
        found = collections.Counter(names)
        if case["name"] == "reducer":  # what DDP's constructor does differs by version
            assert found["all_gather"] or found["broadcast"]
        else:
            assert found == case["issued"], case["name"]
        assert journal.of("note") == []


def test_kernels_wait_for_a_call(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """Imports and Python's own calls bring none; functional collectives bring those of their own
    operators, by which no call of Python's passes; everything else does; none stays behind."""
    cases, _ = ran
    assert len(cases) == 11
    for case in cases:
        assert case["before"] is False
        other = case["name"] not in (*PYTHON_ONLY, *FUNCTIONAL)
        assert case["after"] is (other and not case["hooks"]), case["name"]
        if case["name"] != "autograd":  # issues some of the others, too
            functional = case["name"] in FUNCTIONAL
            assert case["functional"] is (functional and not case["hooks"]), case["name"]
        assert case["left"] == [], case["name"]


def test_operators_wait_until_the_first_call(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """Then each has its own class again, as it has where nothing waits."""
    cases, _ = ran
    for case in cases:
        armed = {name.startswith(AUTOGRAD) for name in case["waiting"]}
        if case["hooks"]:
            assert not armed, case["name"]
        elif case["name"] in FUNCTIONAL:
            assert armed == {True}, case["name"]
        elif case["name"] == "autograd":
            assert True not in armed
        else:
            assert "_c10d_functional.all_reduce" in case["waiting"]
            assert "_c10d_functional.all_reduce.default" in case["waiting"]
            assert not any(name.startswith("_c10d_functional.wait") for name in case["waiting"])
