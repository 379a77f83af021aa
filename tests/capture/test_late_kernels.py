"""Kernels on the operators of c10d come with the first operation that C++ issues, not before."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrace.capture.native import functional
from support.preloaded import preloaded
from support.raw import read_journals

PROGRAMS = Path(__file__).parent / "programs"
PYTHON_ONLY = ("nothing", "profiler")
FUNCTIONAL = ("functional", "out_argument", "coalesced", "inference", "taken", "threads")
AUTOGRAD = "_c10d_functional_autograd."


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """What the program says of each case, and the folder of its journals."""
    folder = tmp_path_factory.mktemp("late")
    outcome = preloaded(PROGRAMS / "late_kernels.py", str(folder), timeout=120).check()
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
    """Imports, Python's own calls, functional collectives and DDP bring none that others pass;
    everything else does; none stays behind."""
    cases, _ = ran
    assert len(cases) == 12
    for case in cases:
        assert case["before"] is False
        other = case["name"] not in (*PYTHON_ONLY, *FUNCTIONAL, "reducer")
        assert case["after"] is (other and not case["hooks"]), case["name"]
        # C++ may wait by itself then.
        waits = case["name"] in ("autograd", "library")
        assert case["functional"] == ["wait_tensor"] * waits, case["name"]
        assert case["left"] == [], case["name"]


def test_calls_of_operators_are_watched(ran: tuple[list[dict[str, Any]], Path]) -> None:
    """Those of functional collectives all the time, those of autograd until the first call."""
    cases, _ = ran
    for case in cases:
        watched = set(case["watched"])
        for name in ("wait_tensor", *(() if case["hooks"] else ("all_reduce",))):
            assert {f"_c10d_functional.{name}", f"_c10d_functional.{name}.default"} <= watched
        assert ("_c10d_functional.all_reduce" in watched) is not case["hooks"]
        autograd = {name for name in watched if name.startswith(AUTOGRAD)}
        assert bool(autograd) is (case["name"] != "autograd"), case["name"]


def test_a_type_is_not_asked() -> None:
    """Whether it takes operators itself is read past its metaclass, which may raise."""

    class Asked(type):
        def __getattribute__(cls, name: str) -> object:
            raise RuntimeError(name)

        def __hash__(cls) -> int:
            raise RuntimeError("hash")

    class Odd(metaclass=Asked):
        pass

    class Taking(metaclass=Asked):
        def __torch_dispatch__(self) -> None:
            pass

    assert functional._runs(Odd()) is True
    assert functional._runs([torch.ones(1), Taking()]) is False
    assert functional._runs(torch.ones(1)) is True
