"""Journals in one file that can be sent, and such files of several hosts in one folder again.

What comes from elsewhere is not trusted: nothing is written but regular files with the names of
journals, directly in the folder, and no more than what an archive of that size and the free disk
make plausible.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import IO, Any

from disttrace.journal.format import DEFS_SUFFIX, OPS_SUFFIX, VERDICTS_SUFFIX
from disttrace_viewer.load.files import MOST_BYTES, open_regular, read, size
from disttrace_viewer.load.problems import ViewerError
from disttrace_viewer.trace.plain_text import plain
from disttrace_viewer.trace.values import dataclass, field

SUFFIXES = (".tar.gz", ".tgz")
MOST_FILES = 1 << 20
"""Of all archives that are unpacked together."""
MOST_TIMES = 20
"""What an archive may hold, by its own size: journals shrink to a quarter, what fills a disk to a
thousandth. Zeros (of reserved blocks) do not count."""
MOST_BESIDES = 64 << 20
"""Bytes that all archives may hold beyond that."""
MOST_OF_DISK = 0.5
"""The part of the free disk that one archive may take."""
_PART = r"[A-Za-z0-9._]{1,60}"
_NAME = re.compile(
    rf"{_PART}-{_PART}-[0-9]{{1,20}}-[0-9a-f]{{12}}"
    rf"({re.escape(DEFS_SUFFIX)}|\.[0-9]{{1,12}}{re.escape(OPS_SUFFIX)})"
    rf"|{_PART}{re.escape(VERDICTS_SUFFIX)}"
)
"""Job, host, pid and process, as ``disttrace/identity.py`` puts them together; a job alone."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
_OURS = "disttrace"  # as the user, of files that were compressed each by itself
_MOST_ZEROS = 16  # times what may be written
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
        self.left_out += 1
        if len(self.why) < _NAMED:
            self.why.append(f"{plain(name)} {reason}")


def is_archive(path: str) -> bool:
    """Whether it is named like one of ours."""
    return path.endswith(SUFFIXES) and not os.path.isdir(path)


def pack(paths: Iterable[str], target: str) -> int:
    """Write the files into ``target``, which appears when it is complete; how many there were.

    A file that is dropped meanwhile is left out, one that grows is cut off where it was. Each is
    compressed by itself, with a checksum. Raises OSError.
    """
    count = 0
    folder = os.path.dirname(target) or "."
    with tempfile.TemporaryDirectory(dir=folder, prefix=".collect.") as hidden:
        beside = os.path.join(hidden, "packed")
        with _new(beside) as file:
            for path in paths:
                try:
                    descriptor = open_regular(path, follow=False)
                except FileNotFoundError:
                    continue  # the oldest segments are dropped while it runs
                with open(descriptor, "rb") as source, _compressed(file) as packed:
                    data = source.read(MOST_BYTES).rstrip(b"\0")
                    member = tarfile.TarInfo(os.path.basename(path))
                    member.size = len(data)
                    member.mtime = int(os.fstat(descriptor).st_mtime)
                    member.mode = 0o600
                    member.uname = _OURS
                    packed.write(member.tobuf())
                    packed.write(data)
                    packed.write(bytes(-len(data) % tarfile.BLOCKSIZE))
                count += 1
            with _compressed(file) as packed:
                packed.write(_END)
        os.replace(beside, target)
    return count


def unpack(archives: Iterable[str], folder: str) -> Unpacked:
    """Put the journals of all archives into ``folder``. A file that is there stays, unless this is
    the same one some time later. Raises OSError, and ViewerError, once all others were read,
    for what is no archive, is damaged, or holds more than the limits."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = Unpacked()
    troubles, besides = [], MOST_BESIDES
    for path in archives:
        by_size = MOST_TIMES * size(path)
        free = int(shutil.disk_usage(folder).free * MOST_OF_DISK)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".collect.") as hidden:
            one = _Archive(folder, hidden, min(by_size + besides, free), found)
            try:
                one.take_all(path)
            except (tarfile.TarError, gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
                trouble = f"{plain(path)} was not read to its end: {plain(str(error))}. Files used,"
                trouble += f" whose checksums are right: {one.put():,}."
                by = f"tar xzf {shlex.quote(plain(path))}"
                troubles.append(f"{trouble} If you trust it, extract the rest: {by}")
            else:
                one.put()
        besides -= min(besides, max(0, one.written - by_size))
    if troubles:
        raise ViewerError("; ".join(troubles))
    return found


class _Archive:
    """One archive, whose files are hidden in the folder until a checksum proves them right."""

    def __init__(self, folder: str, hidden: str, most: int, found: Unpacked) -> None:
        self._folder = folder
        self._hidden = hidden
        self._most = most
        self._found = found
        self._ends: dict[str, int] = {}
        """Where each file ends in what is compressed."""
        self._proven = 0
        self.written = 0

    def take_all(self, path: str) -> None:
        """Unpack into the hidden folder. Raises what is wrong with the archive, and OSError."""
        end, found = 0, self._found
        # A pipe by the name of an archive must not hold anybody up.
        with (
            open(open_regular(path), "rb") as packed,
            gzip.GzipFile(fileobj=packed) as source,
            # Block by block: what a longer read had so far is lost where its rest is damaged.
            tarfile.open(
                fileobj=source, mode="r|", bufsize=tarfile.BLOCKSIZE, tarinfo=_Member
            ) as archive,
        ):
            for member in archive:
                if member.uname == _OURS:  # it begins behind the checksum of the one before
                    self._proven = member.offset
                end = member.offset_data + member.size
                self._take(archive, member)
                if found.files + found.known + found.left_out + len(self._ends) > MOST_FILES:
                    raise tarfile.ReadError(f"it holds more than {MOST_FILES:,} files")
            while source.read(_CHUNK):
                pass
            if source.tell() < end + len(_END):
                raise EOFError("its end is missing")
            self._proven = source.tell()

    def put(self) -> int:
        """Into the folder, or to what is there; how many of them are in it now."""
        proven = [name for name, end in self._ends.items() if end <= self._proven]
        return sum(self._put(name, os.path.join(self._hidden, name)) for name in proven)

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = member.name
        reason = "comes twice" if name in self._ends else _refused(member, self._folder)
        self._count(0, member.offset_data)
        source = None if reason else archive.extractfile(member)
        if source is None:
            self._found.leave_out(name, reason or "is no file")
            return
        beside = os.path.join(self._hidden, name)
        with _new(beside) as file:
            at = 0
            while chunk := source.read(_CHUNK):
                if content := chunk.rstrip(b"\0"):
                    file.seek(at)
                    file.write(content)
                at += len(chunk)
                self._count(len(content), member.offset_data + at)
        with suppress(OverflowError, ValueError, OSError):  # a time that is none
            os.utime(beside, (member.mtime, member.mtime))
        self._ends[name] = member.offset_data + member.size

    def _count(self, content: int, at: int) -> None:
        self.written += content
        if self.written > self._most or at > _MOST_ZEROS * self._most:
            raise tarfile.ReadError(
                f"it holds more than {self._most / 1e6:,.0f} MB, which is more than journals of its"
                f" size do ({MOST_TIMES} times it), or than half of the free disk"
            )

    def _put(self, name: str, beside: str) -> bool:
        target = os.path.join(self._folder, name)
        there = os.path.lexists(target)
        old, new = _content(target) if there else b"", _content(beside)
        if there and name.endswith(VERDICTS_SUFFIX):  # each host has what its processes recorded
            both = dict.fromkeys([*old.splitlines(keepends=True), *new.splitlines(keepends=True)])
            new = b"".join(both)
            with open(beside, "wb") as file:
                file.write(new)
        if not there or (len(new) > len(old) and new.startswith(old)):
            os.replace(beside, target)
            self._found.files += 1
        elif old.startswith(new):
            self._found.known += 1
        else:
            self._found.leave_out(name, "differs from the file of that name which is there")
            return False
        return True


def _refused(member: tarfile.TarInfo, folder: str) -> str | None:
    """Why it is no journal's file that may be written where nothing else is; None: it may."""
    if _NAME.fullmatch(member.name) is None:
        return "has no journal's name"
    if os.path.islink(os.path.join(folder, member.name)):
        return "would be written through a link"
    if member.type not in _REGULAR or member.issparse():
        return "is no regular file"
    if member.size > MOST_BYTES:
        return f"is larger than {MOST_BYTES >> 20} MB"
    return None


def _content(path: str) -> bytes:
    """A journal's, without the zeros of blocks that are reserved."""
    return read(path)[0].rstrip(b"\0")


def _new(path: str) -> IO[bytes]:
    """A file for this user only."""
    return open(path, "xb", opener=partial(os.open, mode=0o600))


def _compressed(file: IO[bytes]) -> gzip.GzipFile:
    # Level 1: journals shrink to a tenth by any, and a hung node's cores are the program's.
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file)


class _Member(tarfile.TarInfo):
    """Refuses headers that tarfile would read into memory however long they are."""

    def _proc_member(self, *args: Any) -> tarfile.TarInfo:
        if self.type not in _REGULAR and self.size > _MOST_HEADER:
            raise tarfile.ReadError("a header is too long")
        return super()._proc_member(*args)  # type: ignore[misc,no-any-return]
