"""How runs of faults are compared: noise is none, and a real difference is told by its name."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.sdk")

from benchmarks.otlp.bench_otlp import PAGE, Case, cases, found, nobody
from benchmarks.report import replaced
from reliability.outcomes import differences, exceptions, normal

STDERR = """\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "/a/b.py", line 3, in step
[rank0]:   File "/a/b.py", line 4, in step
[rank1]: ValueError: the loss is not a number
[rank1]: of two lines
[rank0]: RuntimeError: [/w/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:53658: {}
Traceback (most recent call last):
torch.distributed.DistNetworkError: The client socket has timed out (localhost, {})
terminate called after throwing an instance of 'gloo::EnforceNotMet'
"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connect to [127.0.0.1]:40121", "connect to [::1]:51234"),
        ("at 0x7f00ab", "at 0x55"),
        ("process 4711 of /tmp/x/out", "process 12 of /tmp/y"),
        ("Timed out after 9 seconds", "Timed out after 12.5 seconds"),
        (
            "[/w/gloo/pair.cc:537] Read error [::1]:5: Connection reset by peer",
            "[/w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:45965. This is",
        ),
    ],
)
def test_what_names_a_run_does_not_count(one: str, other: str) -> None:
    """Ports, addresses, pids, places and times."""
    assert normal(one) == normal(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1/2 clients joined", "2/2 clients joined"),
        ("ValueError: x", "TypeError: x"),
        ("2732 vs 684", "2732 vs 685"),
        ("rank 1 failed", "rank 2 failed"),
    ],
)
def test_what_is_said_counts(one: str, other: str) -> None:
    """Numbers that mean something stay."""
    assert normal(one) != normal(other)


def test_exceptions_are_told_apart_by_rank() -> None:
    """Interleaved tracebacks give one first line each, aborts of C++ are among them."""
    text = STDERR.format("Connection reset by peer", 29500)
    assert exceptions(text) == {
        "1": {"ValueError: the loss is not a number"},
        "0": {"RuntimeError: the connection to a peer was lost"},
        "": {
            "torch.distributed.DistNetworkError: The client socket has timed out (ADDRESS)",
            "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        },
    }


def test_a_difference_is_what_no_plain_run_shows() -> None:
    """A program that ends in two ways is compared with both; a new way is told."""
    plain = [{"exit code": "1", "stdout": "a"}, {"exit code": "134", "stdout": "a"}]
    assert differences({"exit code": "134", "stdout": "a"}, plain[:1]) == ["exit code: 1 -> 134"]
    assert differences({"exit code": "134", "stdout": "a"}, plain) == []
    assert differences({"exit code": "0", "stdout": "a", "exceptions": "X"}, plain) == [
        "exceptions:  -> X",
        "exit code: 1 or 134 -> 0",
    ]


def test_exits_are_compared_with_journals_alone() -> None:
    """The latest median of all collectors is held to the goal."""
    plain = Case("json alone", "json", nobody, call_us=[10.0], exit_s=[0.5])
    late = Case("grpc, dead", "json,otlp", nobody, call_us=[11.0], exit_s=[0.6, 0.8, 2.0])
    report = found([plain, late])
    assert report.tables[0].rows[1] == ("grpc, dead", "11.00", "1.10", "+0.300", "+1.500")
    assert report.verdicts[0].met is False
    assert {case.protocol for case in cases()} == {"grpc", "http/protobuf"}


def test_the_page_has_its_marks() -> None:
    """What the script writes has its place."""
    text = PAGE.read_text()
    assert replaced(text, "x", "cost") != text
