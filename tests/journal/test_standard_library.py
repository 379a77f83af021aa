"""The context in which our imports find the standard library, beside a program that imports."""

from __future__ import annotations

import gc
import importlib._bootstrap
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttrace.journal import standard_library
from disttrace.journal.standard_library import Paused, StandardLibrary
from support.preloaded import preloaded

_find_spec: Any = importlib._bootstrap._find_spec  # type: ignore[attr-defined]


class Slow:
    """A finder that finds nothing, and lets other threads run meanwhile."""

    def find_spec(self, *_: object) -> None:
        time.sleep(0.0023)


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that is traced, and with somebody between our finder and that of files."""
    finders = list(sys.meta_path)
    finders.insert(len(finders) - 1, Slow())
    monkeypatch.setattr(sys, "meta_path", finders)
    standard_library.stay()
    yield
    standard_library.leave()


def test_another_thread_s_imports_find_what_is_there() -> None:
    """Whoever walks the list of finders misses one if another is taken out meanwhile."""
    over = threading.Event()

    def enter_and_leave() -> None:
        while not over.is_set():
            with StandardLibrary():
                time.sleep(0.0005)
            time.sleep(0.0005)

    thread = threading.Thread(target=enter_and_leave)
    thread.start()
    try:
        missed = sum(_find_spec("this", None) is None for _ in range(200))
    finally:
        over.set()
        thread.join()
    assert missed == 0


def test_its_finder_is_there_once_until_tracing_is_taken_off() -> None:
    before = list(sys.meta_path)
    for _ in range(3):
        with StandardLibrary():
            pass
    assert sys.meta_path[1:] == before
    standard_library.leave()
    assert sys.meta_path == before


def test_in_a_process_that_is_not_traced_nothing_stays() -> None:
    before = list(sys.meta_path)
    standard_library.leave()
    with StandardLibrary():
        assert sys.meta_path[1:] == before
    assert sys.meta_path == before


INSTALLED = """
import gc, sys
import disttrace
gc.set_threshold(50)  # that many new objects bring on a collection
if sys.argv[2] == "off":
    gc.disable()
begun = []
gc.callbacks.append(lambda phase, told: begun.append(phase))
before = len(begun)
disttrace.install(dir=sys.argv[1])
print(len(begun) - before < 40,  # two small modules until then; 800 without the pause
      gc.isenabled(), gc.get_threshold()[0])
"""


@pytest.mark.parametrize("collector", ["on", "off"])
def test_installing_brings_on_no_collection(tmp_path: Path, collector: str) -> None:
    """A few may come before and after; whether the program collects is as it was."""
    told = preloaded("-c", INSTALLED, tmp_path, collector).check().stdout
    assert told == f"True {collector == 'on'} 50\n"


def test_what_another_thread_says_meanwhile_holds() -> None:
    """Off is off, and a threshold of its own stays, also where one pause stands within another."""
    switched, before = gc.isenabled(), gc.get_threshold()
    try:
        with Paused(), Paused():
            gc.disable()
        assert (gc.isenabled(), gc.get_threshold()) == (False, before)
        with Paused(), Paused():
            gc.set_threshold(77)
        assert gc.get_threshold()[0] == 77
    finally:
        gc.set_threshold(*before)
        if switched:
            gc.enable()
