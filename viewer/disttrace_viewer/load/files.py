"""Opens what a folder holds without trusting it: regular files only, and never more than a limit.

Another program, or another user of a shared folder, may have put a pipe, a device or a link there.
"""

from __future__ import annotations

import os
import stat

MOST_BYTES = 512 << 20
"""Of one file; a segment is an eighth of ``DISTTRACE_MAX_MB``."""
MOST_DEFINITIONS = 128 << 20
"""Of a file of definitions."""


def open_regular(path: str, *, follow: bool = True) -> int:
    """A descriptor to read from. Raises OSError, also for what is no regular file.

    ``follow``: also through a link (where it leads was looked at when the file was found).
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold anybody up
    descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(0, "it is no regular file", path)


def read(path: str, most: int = MOST_BYTES) -> tuple[bytes, int]:
    """The file's content up to a limit, and how many bytes are beyond it. Raises OSError."""
    with open(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        parts = []
        left = most
        while left > 0 and (part := file.read(min(left, max(size + 1, 1 << 16)))):
            parts.append(part)
            left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts), max(0, size - most)
