"""How runs of faults are compared: noise is none, and a real difference is told by its name."""

from __future__ import annotations

import pytest

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
    ("one", "other", "same"),
    [
        ("connect to [127.0.0.1]:40121", "connect to [::1]:51234", True),
        ("at 0x7f00ab", "at 0x55", True),
        ("process 4711 of /tmp/x/out", "process 12 of /tmp/y", True),
        ("Timed out after 9 seconds", "Timed out after 12.5 seconds", True),
        (
            "[/w/gloo/pair.cc:537] Read error [::1]:5: Connection reset by peer",
            "[/w/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:45965. This is",
            True,
        ),
        ("1/2 clients joined", "2/2 clients joined", False),
        ("ValueError: x", "TypeError: x", False),
        ("2732 vs 684", "2732 vs 685", False),
        ("rank 1 failed", "rank 2 failed", False),
    ],
)
def test_what_counts(one: str, other: str, *, same: bool) -> None:
    """Not ports, addresses, pids, places and times; numbers that mean something stay."""
    assert (normal(one) == normal(other)) is same


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
