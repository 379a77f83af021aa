"""Journals in one file that can be sent, and such files of several hosts in one folder again.

What comes from elsewhere is not trusted: nothing is written but regular files with the names of
journals, directly in the folder, and no more than a limit of them.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from disttrace.journal.format import DEFS_SUFFIX, MINUTES_SUFFIX, OPS_SUFFIX
from disttrace_viewer.load.files import MOST_BYTES, open_regular, read, size
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.plain_text import plain

SUFFIXES = (".tar.gz", ".tgz")
MOST_FILES = 1 << 20
"""Of all archives that are unpacked together."""
MOST_TOTAL_BYTES = 4 << 30
"""Of all of them, unpacked; more only of archives that are large themselves."""
MOST_TIMES = 20
"""What archives may hold beyond that, by their own size. Journals shrink to a tenth, and what fills
a disk from a file that can be sent by mail shrinks to a thousandth.
"""
_PART = r"[A-Za-z0-9._]{1,60}"
_NAME = re.compile(
    rf"{_PART}-{_PART}-\d{{1,20}}-[0-9a-f]{{12}}"
    rf"({re.escape(DEFS_SUFFIX)}|\.\d{{1,12}}{re.escape(OPS_SUFFIX)}|{re.escape(MINUTES_SUFFIX)})"
)
"""Job, host, pid and process, as ``disttrace/identity.py`` puts them together."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_NAMED = 3
_CHUNK = 1 << 16
_END = bytes(2 * tarfile.BLOCKSIZE)
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
    it was before. Each file is compressed by itself, with a checksum of its own. Raises OSError.
    """
    count = 0
    with _temporary(os.path.dirname(target) or ".") as (file, beside):
        for path in paths:
            try:
                descriptor = open_regular(path, follow=False)
            except FileNotFoundError:
                continue  # the oldest segments are dropped while it runs
            with open(descriptor, "rb") as source, _compressed(file) as packed:
                status = os.fstat(descriptor)
                member = tarfile.TarInfo(os.path.basename(path))
                member.size = status.st_size
                member.mtime = int(status.st_mtime)
                member.mode = 0o600
                packed.write(member.tobuf())
                shutil.copyfileobj(_Padded(source, member.size), packed)
                packed.write(bytes(-member.size % tarfile.BLOCKSIZE))
            count += 1
        with _compressed(file) as packed:
            packed.write(_END)
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
    paths = list(archives)
    most = left = max(MOST_TOTAL_BYTES, MOST_TIMES * sum(map(size, paths)))
    for path in paths:
        # A pipe by the name of an archive must not hold anybody up.
        with open(open_regular(path), "rb") as packed, _Waiting(folder, found) as waiting:
            source = _Checked(packed)
            end = 0
            try:
                with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as archive:
                    for member in archive:
                        left -= max(member.size, tarfile.BLOCKSIZE)
                        if left < 0 or waiting.count >= MOST_FILES:
                            waiting.settle(source.given)
                            raise ViewerError(
                                f"{plain(path)} holds more than {MOST_FILES:,} files or"
                                f" {most / 1e9:.1f} GB unpacked: it was not read on"
                            )
                        end = member.offset_data + member.size
                        waiting.take(archive, member, end)
                        waiting.settle(source.proven)
                source.finish(end + len(_END))
                waiting.settle(source.proven)
            except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
                waiting.settle(source.proven)
                raise ViewerError(
                    f"{plain(path)} is no whole .tar.gz of `disttrace collect`:"
                    f" {plain(str(error))}. Files of it that were used, since a checksum proves"
                    f" them: {waiting.used:,}. For others, unproven: tar xzf {plain(path)}"
                ) from None
    return found


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


class _Waiting:
    """Files of an archive, hidden in the folder until what they were packed in proves right."""

    def __init__(self, folder: str, found: Unpacked) -> None:
        self._folder = folder
        self._found = found
        self._hidden = tempfile.TemporaryDirectory(dir=folder, prefix=".collect.")
        self._files: deque[tuple[str, str, int]] = deque()
        self.used = 0
        """Files of it that came into the folder or were there."""

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._hidden.cleanup()

    @property
    def count(self) -> int:
        """Files of all archives so far."""
        found = self._found
        return found.files + found.known + found.left_out + len(self._files)

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo, end: int) -> None:
        """Unpack a file of which the last byte is number ``end``, or say why not."""
        reason = _refused(member, self._folder, os.path.join(self._folder, member.name))
        source = None if reason else archive.extractfile(member)
        if source is None:
            self._found.leave_out(member.name, reason or "is no file")
            return
        beside = os.path.join(self._hidden.name, str(end))
        with open(beside, "xb", opener=_private) as file:
            shutil.copyfileobj(source, file)
        with suppress(OverflowError, ValueError, OSError):  # a time that is none
            os.utime(beside, (member.mtime, member.mtime))
        self._files.append((member.name, beside, end))

    def settle(self, proven: int) -> None:
        """Put the files that end within so many bytes into the folder."""
        while self._files and self._files[0][2] <= proven:
            name, beside, _ = self._files.popleft()
            self._put(name, beside)

    def _put(self, name: str, beside: str) -> None:
        target = os.path.join(self._folder, name)
        there = os.path.lexists(target)
        old, new = _content(target) if there else b"", _content(beside)
        if not there or (len(new) > len(old) and new.startswith(old)):
            os.replace(beside, target)
            self._found.files += 1
        elif old.startswith(new):
            self._found.known += 1
        else:
            self._found.leave_out(name, "differs from the file of that name which is there")
            return
        self.used += 1


class _Checked(io.RawIOBase):
    """What a file of gzip's format holds, part by part, and how much of it is proven.

    Python's tarfile and its gzip module both give bytes before their checksum was compared.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._part = _part()
        self._packed = b""
        self.given = 0
        """Bytes that were read."""
        self.proven = 0
        """Bytes up to the last checksum that was right."""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; none at the end. Raises EOFError, zlib.error."""
        while True:
            if self._part.eof:
                self.proven = self.given
                self._packed = self._part.unused_data.lstrip(b"\0") or self._file.read(_CHUNK)
                if not self._packed:
                    return b""
                self._part = _part()
            elif not self._packed:
                self._packed = self._file.read(_CHUNK)
                if not self._packed:
                    raise EOFError("it ends in the middle")
            data = self._part.decompress(self._packed, max(size, 0))
            self._packed = self._part.unconsumed_tail
            if data:
                self.given += len(data)
                return data

    def finish(self, least: int) -> None:
        """Read on to the next checksum; EOFError where there are less than ``least`` bytes."""
        while self.proven < self.given and self.read(_CHUNK):
            pass
        if self.given < least:
            raise EOFError("its end is missing")


def _part() -> zlib._Decompress:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)  # gzip's format; its checksum is compared


def _compressed(file: IO[bytes]) -> gzip.GzipFile:
    # Level 1: journals shrink to a tenth by any, and a hung node's cores are the program's.
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
        return _bounded(super().frombuf(buf, encoding, errors))

    @classmethod
    def _frombuf(cls, *args: Any, **named: Any) -> _Member:
        """What tarfile calls in its place since the security releases of 2025."""
        return _bounded(super()._frombuf(*args, **named))  # type: ignore[misc]


def _bounded(member: _Member) -> _Member:
    if member.type not in _REGULAR and member.size > _MOST_HEADER:
        raise tarfile.ReadError("a header is too long")
    return member
