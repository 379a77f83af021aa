"""What the background thread opens for a while, in a program that closes all it did not open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disttrace.journal import format as fmt


def test_it_is_closed_afterwards(tmp_path: Path) -> None:
    """Also when what was done with it failed."""
    with fmt.opened_own(str(tmp_path / "ours"), os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"ours")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with (
        pytest.raises(ZeroDivisionError),
        fmt.opened_own(str(tmp_path / "ours"), os.O_RDONLY) as fd,
    ):
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("taken", [True, False])
def test_what_the_program_did_with_the_number_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """While the thread reads: the number is another file's, or nobody's."""
    (tmp_path / "ours").write_text("ours")
    (tmp_path / "theirs").write_text("theirs")
    theirs: list[int] = []
    read = os.pread

    def read_slowly(fd: int, length: int, offset: int) -> bytes:
        data = read(fd, length, offset)
        os.close(fd)
        if taken:
            opened = os.open(tmp_path / "theirs", os.O_RDONLY)
            theirs.append(os.dup2(opened, fd))
            os.close(opened)
        return data

    monkeypatch.setattr(os, "pread", read_slowly)
    try:
        with fmt.opened_own(str(tmp_path / "ours"), os.O_RDONLY) as fd:
            assert os.pread(fd, 6, 0) == b"ours"
        monkeypatch.undo()
        assert [os.pread(fd, 6, 0) for fd in theirs] == [b"theirs"] * taken
    finally:
        for fd in theirs:
            os.close(fd)
