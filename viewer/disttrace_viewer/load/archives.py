"""Journals in one file that can be sent, and such files of several hosts in one folder again.

What comes from elsewhere is not trusted: nothing is written but regular files with the names of
journals, directly in the folder, and no more than a limit of them.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from disttrace.journal.format import DEFS_SUFFIX, OPS_SUFFIX
from disttrace_viewer.load.files import MOST_BYTES, open_regular, read
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.plain_text import plain

SUFFIXES = (".tar.gz", ".tgz")
MOST_FILES = 1 << 20
"""Of all archives that are unpacked together."""
MOST_TOTAL_BYTES = 64 << 30
_PART = r"[A-Za-z0-9._]{1,60}"
_NAME = re.compile(
    rf"{_PART}-{_PART}-\d{{1,20}}-[0-9a-f]{{12}}"
    rf"({re.escape(DEFS_SUFFIX)}|\.\d{{1,12}}{re.escape(OPS_SUFFIX)})"
)
"""Job, host, pid and process, as ``disttrace/identity.py`` puts them together."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_NAMED = 3
_MOST_HEADER = 1 << 16  # of an extended header, which tarfile reads into memory whole


@dataclass(slots=True)
class Unpacked:
    """What became of archives."""

    files: int = 0
    """New, or longer than what was there."""
    known: int = 0
    """There already, as long or longer."""
    left_out: int = 0
    why: list[str] = field(default_factory=list)
    """Of the first few that were left out: which, and what is wrong with it."""

    def leave_out(self, name: str, reason: str) -> None:
        """One more file that is not taken."""
        self.left_out += 1
        if len(self.why) < _NAMED:
            self.why.append(f"{plain(name)} {reason}")


def is_archive(path: str) -> bool:
    """Whether it is named like one of ours."""
    return path.endswith(SUFFIXES) and not os.path.isdir(path)


def pack(paths: Iterable[str], target: str) -> int:
    """Write the files into ``target``, which appears when it is complete; how many there were.

    A job may run meanwhile: a file that was dropped is left out, one that grows is cut off where
    it was, one that is cut (its reserved blocks are given back) is filled with zeros, which is how
    it was before. Raises OSError.
    """
    count = 0
    with _temporary(os.path.dirname(target) or ".") as (file, beside):
        # Level 1: journals shrink to a tenth by any, and a hung node's cores are the program's.
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
            for path in paths:
                try:
                    descriptor = open_regular(path, follow=False)
                except FileNotFoundError:
                    continue  # the oldest segments are dropped while it runs
                with open(descriptor, "rb") as source:
                    status = os.fstat(descriptor)
                    member = tarfile.TarInfo(os.path.basename(path))
                    member.size = status.st_size
                    member.mtime = int(status.st_mtime)
                    member.mode = 0o600
                    archive.addfile(member, _Padded(source, member.size))
                count += 1
        file.close()
        os.replace(beside, target)
    return count


def unpack(archives: Iterable[str], folder: str) -> Unpacked:
    """Put the journals of all archives into ``folder``, which is made where it is missing.

    A file that is there already stays, unless the archive's is the same journal some time later.

    Raises:
        ViewerError: for what is no archive, is damaged, or holds more than the limits.
        OSError: when something cannot be read or written.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = Unpacked()
    left = MOST_TOTAL_BYTES
    for path in archives:
        try:
            with tarfile.open(path, mode="r|gz", tarinfo=_Member) as archive:
                for member in archive:
                    left -= max(member.size, tarfile.BLOCKSIZE)
                    if left < 0 or found.files + found.known + found.left_out >= MOST_FILES:
                        raise ViewerError(
                            f"{plain(path)} holds more than {MOST_FILES:,} files or"
                            f" {MOST_TOTAL_BYTES >> 30} GB unpacked: it was not read on"
                        )
                    _take(archive, member, folder, found)
        except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
            raise ViewerError(
                f"{plain(path)} is no whole .tar.gz of `disttrace collect`: {plain(str(error))}"
            ) from None
    return found


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str, found: Unpacked) -> None:
    target = os.path.join(folder, member.name)
    reason = _refused(member, folder, target)
    source = None if reason else archive.extractfile(member)
    if source is None:
        found.leave_out(member.name, reason or "is no file")
        return
    with _temporary(folder) as (file, beside):
        shutil.copyfileobj(source, file)
        file.close()
        with suppress(OverflowError, ValueError, OSError):  # a time that is none
            os.utime(beside, (member.mtime, member.mtime))
        if not os.path.lexists(target):
            os.replace(beside, target)
            found.files += 1
            return
        old, new = _content(target), _content(beside)
        if len(new) > len(old) and new.startswith(old):
            os.replace(beside, target)
            found.files += 1
        elif old.startswith(new):
            found.known += 1
        else:
            found.leave_out(member.name, "differs from the file of that name which is there")


def _refused(member: tarfile.TarInfo, folder: str, target: str) -> str | None:
    """Why it is no journal's file that may be written where nothing else is; None: it may."""
    if _NAME.fullmatch(member.name) is None:
        return "has no journal's name"
    if os.path.islink(target):
        return "would be written through a link"
    if hasattr(tarfile, "data_filter"):  # Python's own idea of what is safe, besides
        try:
            tarfile.data_filter(member, folder)
        except tarfile.FilterError:
            return "is refused by Python's filter for archives"
    if member.type not in _REGULAR or member.issparse():
        return "is no regular file"
    if member.size > MOST_BYTES:
        return f"is larger than {MOST_BYTES >> 20} MB"
    return None


def _content(path: str) -> bytes:
    """A journal's, without the zeros of blocks that are reserved."""
    return read(path)[0].rstrip(b"\0")


@contextmanager
def _temporary(folder: str) -> Iterator[tuple[IO[bytes], str]]:
    """A file beside its target, for this user only; it is gone afterwards if it is still there."""
    handle, beside = tempfile.mkstemp(dir=folder, prefix=".collect.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file, beside
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)


class _Padded(io.RawIOBase):
    """A file of which ``size`` bytes are read, with zeros where it ends earlier."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")


class _Member(tarfile.TarInfo):
    """Refuses headers that tarfile would read into memory however long they are."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in _REGULAR and member.size > _MOST_HEADER:
            raise tarfile.ReadError("a header is too long")
        return member
