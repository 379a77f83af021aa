"""Where disttrace does not run it says so in one sentence, imports nothing else, and stays away."""

from __future__ import annotations

import json
import sys

import pytest

from disttrace.startup import refusal
from support.processes import python

# Interpreters like these are not at hand: what they say of themselves is.
FREE_THREADED = "import sys; sys._is_gil_enabled = lambda: False; "
WINDOWS = "import sys; sys.platform = 'win32'; "
INSTALL = "import disttrace; disttrace.install(); "
ACTIVATE = "from disttrace import startup; startup._called = False; startup.main(); "
NOTHING = (
    "unwanted = 'disttrace.session', 'disttrace.recording.recorder', 'orjson'; "
    "print([n for n in unwanted if n in sys.modules])"
)


def test_this_interpreter_is_traced() -> None:
    """Else nothing of this suite would mean anything."""
    assert refusal() is None


@pytest.mark.parametrize(("place", "word"), [(FREE_THREADED, "GIL"), (WINDOWS, "Linux")])
@pytest.mark.parametrize(("begin", "on"), [(INSTALL, "0"), (ACTIVATE, "1")])
def test_it_refuses(place: str, word: str, begin: str, on: str) -> None:
    """The program goes on, without an extension module that could switch the GIL on."""
    outcome = python("-S", "-c", f"{place}{begin}{NOTHING}", DISTTRACE=on).check()
    assert outcome.stdout == "[]\n"
    (sentence,) = outcome.stderr.splitlines()
    assert sentence.startswith("disttrace: not tracing: ")
    assert word in sentence


def test_info_says_so() -> None:
    """In the part that tells what can be captured."""
    code = f"{FREE_THREADED}from disttrace.cli import main; main(['info', '--json'])"
    outcome = python("-c", code).check()
    capture = json.loads(outcome.stdout)["capture"]
    assert "GIL" in capture["problem"]
    assert capture["parts"] == []


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled"), reason="this Python has always a GIL")
def test_an_interpreter_with_a_gil_says_that_it_has_one() -> None:
    """What the refusal asks exists under this name."""
    assert sys._is_gil_enabled() is True  # type: ignore[attr-defined]
