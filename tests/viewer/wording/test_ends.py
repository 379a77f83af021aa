"""How a process ended, in words."""

from __future__ import annotations

from disttrace_viewer.analysis.process_ends import FAILED, SILENT, End
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording.sentences import ended


def failed(text: str, *causes: str) -> str:
    failure = Failure(t_ns=0, type="RuntimeError", text=text, stack=(), thread=0, causes=causes)
    return ended(End(FAILED, 0, None, failure))


def test_of_a_chain_the_first_exception_is_told_too() -> None:
    """What was raised last often says only that something failed."""
    assert failed("epoch failed") == "failed with RuntimeError: epoch failed"
    assert failed("epoch failed", "ValueError: step", "KeyError: 'lr'") == (
        "failed with RuntimeError: epoch failed (after KeyError: 'lr')"
    )


def test_no_text_loses_its_middle() -> None:
    """There stands a port, for example."""
    text = "The server socket has failed to listen. port: 29500, useIpv6: false, code: -98, name: X"
    assert failed(f"{text}, message: address in use") == (
        f"failed with RuntimeError: {text}, message: address in use"
    )


def test_further_lines_that_number_something_are_told() -> None:
    """Parameters, shapes; not what a library advises to set."""
    lines = ("Compile with X=1", "Parameter indices for rank 1: 2 3", "In addition, you can")
    failure = Failure(
        t_ns=0, type="E", text="not reduced. This means", stack=(), thread=0, lines=lines
    )
    told = ended(End(FAILED, 0, None, failure))
    assert told == "failed with E: not reduced; Parameter indices for rank 1: 2 3"


def test_an_end_without_a_word_may_have_been_any_signal() -> None:
    """Time limits, and whoever ends it by SIGTERM, end it as silently as SIGKILL does."""
    told = ended(End(SILENT, 0, None, None))
    assert all(
        name in told for name in ("SIGKILL", "SIGTERM", "SIGXCPU", "SIGALRM", "SIGPIPE", "memory")
    )
