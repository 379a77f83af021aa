"""Opens what a folder holds without trusting it: regular files only, and never more than a limit.

Another program, or another user of a shared folder, may have put a pipe, a device or a link there.
A path with a scheme (``s3://bucket/job``) is of a file system that fsspec knows; of an object only
the ranges that are requested are fetched.
"""

from __future__ import annotations

import importlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from disttrace.journal.proc import has_open
from disttrace_viewer.load.problems import ViewerError

MOST_BYTES = 512 << 20
"""Of one file; a segment is an eighth of ``DISTTRACE_MAX_MB``."""
MOST_DEFINITIONS = 128 << 20
"""Of a file of definitions."""


_HELD: dict[str, tuple[bytes, int]] = {}
"""Contents of paths that are no files: what was translated from other formats."""


def hold(path: str, data: bytes, modified_ns: int) -> None:
    """Have a path stand for some bytes from now on, in this process."""
    _HELD[path] = (data, modified_ns)


def is_held(path: str) -> bool:
    """Whether a path stands for bytes in memory."""
    return path in _HELD


def any_held() -> bool:
    """Whether any path stands for bytes in memory."""
    return bool(_HELD)


def open_regular(path: str, *, follow: bool = True) -> int:
    """A descriptor to read from; ``follow`` links. Raises OSError, also for no regular file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold anybody up
    descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(0, "it is no regular file", path)


def is_open(pid: int, path: str) -> bool:
    """Whether a process has a file open: it may have become a program that writes no journal."""
    try:
        return has_open(pid, os.stat(path))
    except OSError:
        return False  # the folder is gone


def read(path: str, most: int = MOST_BYTES) -> tuple[bytes, int]:
    """The file's content up to a limit, and how many bytes are beyond it. Raises OSError."""
    length = size(path)
    return part(path, 0, min(length, most)), max(0, length - most)


def part(path: str, start: int, length: int) -> bytes:
    """So many bytes of a file from a place on, fewer at its end. Raises OSError."""
    found: bytes
    if is_remote(path):
        system, inner = _remote(path)
        with _as_os_errors(path):
            found = system.cat_file(inner, start=start, end=start + length)
        return found
    with opened(path) as file:
        file.seek(start)
        found = file.read(length)
    return found


def size(path: str) -> int:
    """Bytes of a file; 0 for one that is gone."""
    if path in _HELD:
        return len(_HELD[path][0])
    try:
        if is_remote(path):
            return int(_info(path)["size"] or 0)
        return os.path.getsize(path)
    except OSError:
        return 0


def modified_ns(path: str) -> int:
    """When a file was last written to, unix ns; 0 for one that is gone, or where it is unknown."""
    if path in _HELD:
        return _HELD[path][1]
    try:
        if is_remote(path):
            known = _info(path)
            at: Any = next((known[key] for key in _MODIFIED if known.get(key)), 0)
            return int((at if isinstance(at, (int, float)) else at.timestamp()) * 1_000_000_000)
        return os.stat(path).st_mtime_ns
    except (OSError, AttributeError):
        return 0


# -- file systems with a scheme -----------------------------------------------------------------

_MODIFIED = ("LastModified", "mtime", "updated", "last_modified", "created")
"""What file systems of fsspec call it."""


def is_remote(path: str) -> bool:
    """Whether a path is of a file system that fsspec knows, and not of the operating system."""
    return "://" in path


def below(path: str) -> list[str]:
    """The files below a remote folder, sorted. Raises ViewerError where it cannot be listed."""
    system, inner = _remote(path)
    try:
        return [system.unstrip_protocol(name) for name in sorted(system.find(inner))]
    except Exception as error:
        raise ViewerError(f"{path} cannot be listed ({_words(error)}).") from error


def opened(path: str) -> Any:
    """A local or remote file, to read bytes from. Raises OSError."""
    if path in _HELD:
        return io.BytesIO(_HELD[path][0])
    if not is_remote(path):
        return open(open_regular(path), "rb")
    system, inner = _remote(path)
    with _as_os_errors(path):
        return system.open(inner, "rb")


def _remote(path: str) -> tuple[Any, str]:
    scheme = path.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError as error:
        raise ViewerError(f"{path} needs fsspec: pip install 'disttrace[cluster]'.") from error
    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise ViewerError(f"{scheme}:// cannot be read here: {_words(error)}.") from error
    return system, inner


def _info(path: str) -> dict[str, Any]:
    system, inner = _remote(path)
    with _as_os_errors(path):
        found: dict[str, Any] = system.info(inner)
    return found


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Each kind of store has exceptions of its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(0, _words(error), path) from error


def _words(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
