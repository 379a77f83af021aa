"""The one line of an exception that is told says something, and keeps both ends."""

from __future__ import annotations

import pytest

from disttrace.errors import first_line


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad batch\nsecond"), "ValueError: bad batch"),
        (ValueError("\n  \n=====\n bad batch \nmore"), "ValueError: bad batch"),
        (ValueError(""), "ValueError"),
        (ValueError("\n---\n"), "ValueError"),
        (
            IndexError(
                "Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent"
                " call last):\n  File 'fetch.py', line 54\nIndexError: corrupt record 5\n"
            ),
            (
                "IndexError: Caught IndexError in DataLoader worker process 0. IndexError: corrupt"
                " record 5"
            ),
        ),
        (
            ValueError("Traceback (most recent call last):\n  File\nKeyError: 3"),
            "ValueError: KeyError: 3",
        ),
        (
            RuntimeError(
                "CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last):"
                " (RANK 2)\n  File 'disk.py', line 9\nOSError: [Errno 28] No space left\n"
            ),
            (
                "RuntimeError: CheckpointException ranks:dict_keys([2]) OSError: [Errno 28] No"
                " space left"
            ),
        ),
        (
            RuntimeError(
                "TimeoutError: On WorkerInfo(id=0, name=ps):\nTimeoutError('busy')\nTraceback (most"
                " recent call last):\n  File 'ps.py', line 9\nTimeoutError: busy\n\n\nAt:\n "
                " rpc/internal.py(236): _handle_exception\n"
            ),
            "RuntimeError: TimeoutError: On WorkerInfo(id=0, name=ps): TimeoutError: busy",
        ),
        (HostileError(), "HostileError"),
    ],
)
def test_the_first_line_that_says_something(error: Exception, text: str) -> None:
    assert first_line(error) == text


def test_a_long_text_keeps_its_end() -> None:
    """Where a path or a list comes first, what was wrong stands last."""
    told = first_line(ValueError("a" * 1000 + " is not on the mesh"))
    assert len(told) == 300
    assert told.startswith("ValueError: aaaa")
    assert told.endswith("aaaa is not on the mesh")
