"""The one line of an exception that is told says something, and keeps both ends."""

from __future__ import annotations

import pytest

from disttrace.errors import first_line, further_lines

CALLS = "Traceback (most recent call last)"


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
        (ValueError(f"{CALLS}:\n  File\nKeyError: 3"), "ValueError: KeyError: 3"),
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


def test_what_stands_below_the_first_line_is_kept_from_the_end() -> None:
    """As DDP does, and checkpoints, and validators; frames of C++ are left out."""
    ddp = "Expected to have finished reduction.\n see 1\n\nParameter indices: 2 3\n In addition"
    assert further_lines(RuntimeError(ddp)) == ["see 1", "Parameter indices: 2 3", "In addition"]
    native = "\nException raised from wait at x.cpp:7 (most recent call first):\nframe #0: f + 0x88"
    assert further_lines(RuntimeError(f"first\nport: 1{native}")) == ["port: 1"]
    assert further_lines(RuntimeError("one line")) == []
    long = further_lines(RuntimeError("first\n" + "\n".join(f"{i}: {'x' * 90}" for i in range(99))))
    assert (len(long), long[-1][:4], sum(map(len, long)) <= 700) == (7, "98: ", True)
    whole = further_lines(RuntimeError("first\nindices: " + "7, " * 500 + "8"))
    assert [len(line) for line in whole] == [700]
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----"
    assert "MIIE" not in " ".join(further_lines(RuntimeError(f"cannot read\n{key}")))
