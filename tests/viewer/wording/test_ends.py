"""How a process ended, in words."""

from __future__ import annotations

from disttrace_viewer.analysis.process_ends import FAILED, SILENT, End
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording.ends import ended


def failed(text: str, *causes: str) -> str:
    failure = Failure(t_ns=0, type="RuntimeError", text=text, stack=(), thread=0, causes=causes)
    return ended(End(FAILED, 0, None, failure))


def test_of_a_chain_the_first_exception_is_told_too() -> None:
    """What was raised last often says only that something failed."""
    assert failed("epoch failed") == "failed with RuntimeError: epoch failed"
    assert failed("epoch failed", "ValueError: step", "KeyError: 'lr'") == (
        "failed with RuntimeError: epoch failed (after KeyError: 'lr')"
    )


def test_a_long_text_is_cut_in_the_middle() -> None:
    """The answer may stand at its end."""
    told = failed("tensor of " + "x" * 300 + " is not on the mesh")
    assert "tensor of xxx" in told
    assert told.endswith("is not on the mesh")
    assert len(told) < 150


def test_an_end_without_a_word_may_have_been_any_signal() -> None:
    """Time limits, and whoever ends it by SIGTERM, end it as silently as SIGKILL does."""
    told = ended(End(SILENT, 0, None, None))
    assert all(name in told for name in ("SIGKILL", "SIGTERM", "SIGXCPU", "SIGALRM", "memory"))
