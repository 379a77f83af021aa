"""Sentences of findings from values by hand: no journal, no rule; one subject and many."""

from __future__ import annotations

import pytest

from disttrace_viewer.analysis.process_ends import FAILED, SILENT, End
from disttrace_viewer.findings.rules import process_failed
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.views.terminal.plan import parse_ranks, parse_time
from disttrace_viewer.views.terminal.rows import common
from disttrace_viewer.wording.names import (
    brief,
    duration,
    few,
    first_runs,
    number,
    offset,
    size,
    spans,
    tensors,
)
from disttrace_viewer.wording.sentences import ended, ranks


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (-9, "out-of-memory killer"), (-11, "native code (run with PYTHONFAULTHANDLER=1)"),
        (-15, "who sent it"), (-24, "limit of CPU time"), (-14, "signal.alarm"),
        (-44, "or a crash in native code (run with"), (None, "or a crash in native code (run with"),
    ],
)  # fmt: skip
def test_what_to_look_for_depends_on_the_signal(code: int | None, what: str) -> None:
    """A rank that got SIGTERM did not run out of memory."""
    said = process_failed.hint(End(SILENT, 0, code=code), others=True)
    assert what in said
    assert said.endswith(".")
    assert ("dmesg" in said) is (code in (-9, -44, None))


def failed(text: str, *causes: str) -> str:
    failure = Failure(t_ns=0, type="RuntimeError", text=text, stack=(), thread=0, causes=causes)
    return ended(End(FAILED, 0, None, failure))


def test_what_a_failure_says() -> None:
    """The first exception of a chain too, for the last often says only that something failed; a
    text has its middle, where a port stands; and lines that number parameters are told.
    """
    assert failed("epoch failed") == "failed with RuntimeError: epoch failed"
    told = "failed with RuntimeError: epoch failed (after KeyError: 'lr')"
    assert failed("epoch failed", "ValueError: step", "KeyError: 'lr'") == told
    text = "The server socket has failed to listen. port: 29500, useIpv6: false, code: -98, name: X"
    text += ", message: address in use"
    assert failed(text) == f"failed with RuntimeError: {text}"
    lines = ("Compile with X=1", "Parameter indices for rank 1: 2 3", "In addition, you can")
    failure = Failure(0, "E", "not reduced. This means", (), 0, lines=lines)
    told = ended(End(FAILED, 0, None, failure))
    assert told == "failed with E: not reduced; Parameter indices for rank 1: 2 3"
    told = ended(End(SILENT, 0, None, None))  # it may have been any signal
    names = ("SIGKILL", "SIGTERM", "SIGXCPU", "SIGALRM", "SIGPIPE", "memory")
    assert all(name in told for name in names)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"), (850, "850 ns"), (1_000, "1.00 µs"), (47_200, "47.2 µs"), (999_499, "999 µs"),
        (999_500, "1.00 ms"), (1_234_000_000, "1.23 s"), (99_000_000_000, "99.0 s"),
        (245_000_000_000, "4 min 05 s"), (7_380_000_000_000, "2 h 03 min"),
        (-5_000_000, "-5.00 ms"),
    ],
)  # fmt: skip
def test_durations_have_three_digits(ns: int, text: str) -> None:
    """A duration says its size at a glance."""
    assert duration(ns) == text


def test_small_words() -> None:
    """Offsets, sizes, counts, runs of ranks, tensors, and what words have in common."""
    assert offset(2_872_495_123) == "+2.872495"
    assert [size(n) for n in (16, 4_096, 25_200_000)] == ["16 B", "4.10 kB", "25.2 MB"]
    assert number(1, "worker") == "1 worker"
    assert number(12_000, "child", "children") == "12,000 children"
    assert spans([7, 0, 1, 2, 3, 9, 10]) == "0-3, 7, 9, 10"
    assert few(["a", "b", "c"], 2) == "a, b and 1 more"
    assert first_runs([7, 0, 1, 2, 9, 11, 12, 13, 14], 3) == (["7", "0-2", "9"], 4)
    assert ranks(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    assert tensors(["float32"], [[2, 3]]) == "float32[2,3]"
    assert tensors(["int64", "int64"], [[4], [4]]) == "int64[4] x 2"
    assert tensors(["int64", "int64"], [[4], [5]]) == "2 tensors"
    assert tensors(None, None) == ""
    assert common(["as 0 of 3", "as 1 of 3"]) == "as * of 3"
    assert common(["step/1", "step/1"]) == "step/1"
    assert common(["a", "ab"]) == "a*"


def test_errors_are_brief() -> None:
    """What a C++ library says about its own source and how to report it is left out."""
    assert brief(
        "RuntimeError: [/__w/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
        " [127.0.0.1]:37576. This is typically caused by a remote worker crashing."
    ) == ("RuntimeError: Connection closed by peer [127.0.0.1]:37576")
    assert brief("ValueError: no data\nsecond line") == "ValueError: no data"
    assert len(brief("x" * 500)) == 110


def test_times_are_offsets_unix_seconds_or_iso() -> None:
    """Which mean the same instant; a wrong filter becomes a sentence with an example."""
    start = 1_700_000_000_000_000_000
    assert parse_time("+12.3s", start) == start + 12_300_000_000
    assert parse_time("+1500", start) == start + 1_500_000_000_000
    assert parse_time("+2ms", start) == start + 2_000_000
    assert parse_time("1700000000.5", start) == start + 500_000_000
    assert parse_time("2023-11-14T22:13:20Z", 0) == start
    assert parse_time("2023-11-14T22:13:20.000250+00:00", 0) == start + 250_000
    with pytest.raises(
        ViewerError, match=r"'tomorrow' is not a time; write an offset \(\+12\.3s\)"
    ):
        parse_time("tomorrow", 0)
    with pytest.raises(ViewerError, match=r"'one' is no list of ranks; write --rank 0,3-5"):
        parse_ranks("one")
    assert parse_ranks("0, 3-5") == {0, 3, 4, 5}
