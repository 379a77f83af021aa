"""How runs of faults are compared: noise is none, and a real difference is told by its name."""

from __future__ import annotations

import pytest

from reliability.outcomes import normal


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
