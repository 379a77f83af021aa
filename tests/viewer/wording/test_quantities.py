"""Numbers, filters and names as the terminal report shows them."""

from __future__ import annotations

import pytest

from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.views.terminal.plan import parse_ranks, parse_time
from disttrace_viewer.views.terminal.sequence_rows import common
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
from disttrace_viewer.wording.sentences import ranks


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (1_000, "1.00 µs"),
        (47_200, "47.2 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (1_234_000_000, "1.23 s"),
        (99_000_000_000, "99.0 s"),
        (245_000_000_000, "4 min 05 s"),
        (7_380_000_000_000, "2 h 03 min"),
        (-5_000_000, "-5.00 ms"),
    ],
)
def test_durations_have_three_digits(ns: int, text: str) -> None:
    """A duration says its size at a glance."""
    assert duration(ns) == text


def test_small_words() -> None:
    """Offsets, sizes, counts, runs of ranks and tensors."""
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


def test_common_words_mark_where_they_differ() -> None:
    """What ranks say alike stays, what they say differently becomes a star."""
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
    """All three ways of writing a time mean the same instant."""
    start = 1_700_000_000_000_000_000
    assert parse_time("+12.3s", start) == start + 12_300_000_000
    assert parse_time("+1500", start) == start + 1_500_000_000_000
    assert parse_time("+2ms", start) == start + 2_000_000
    assert parse_time("1700000000.5", start) == start + 500_000_000
    assert parse_time("2023-11-14T22:13:20Z", 0) == start
    assert parse_time("2023-11-14T22:13:20.000250+00:00", 0) == start + 250_000


def test_wrong_filters_say_what_to_write() -> None:
    """A mistake becomes a sentence with an example, not a traceback."""
    with pytest.raises(ViewerError, match=r"'tomorrow' is no time; write an offset \(\+12\.3s\)"):
        parse_time("tomorrow", 0)
    with pytest.raises(ViewerError, match=r"'one' is no list of ranks; write --rank 0,3-5"):
        parse_ranks("one")
    assert parse_ranks("0, 3-5") == {0, 3, 4, 5}
