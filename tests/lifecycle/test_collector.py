"""Putting the recorder in place brings on no collection of the program's objects."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from disttrace.journal.standard_library import Paused
from support.preloaded import preloaded

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
