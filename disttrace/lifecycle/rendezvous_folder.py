"""Where the processes of one user on this host exchange files: in no shared folder.

Every rank looks for requests several times a second. The folder of the journals may be one that a
thousand hosts share, where each look by path is a question to its server. So what is only for this
host lies in ``/tmp/disttrace-UID``, which is ours alone: made with permissions 0700, no link, and
in a folder in which no other user may rename or remove it. Where it is not, the folder of the
journals has to do.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from typing import Any

from disttrace.foreign import ours
from disttrace.journal import proc
from disttrace.journal.descriptors import attempt

PARENT = "/tmp"


def place(journals: str) -> str:
    """With which paths begin of what processes with that folder of journals share on this host."""
    ours, found = own_folder(), attempt(os.stat, journals)
    if ours is None or found is None:
        return os.path.join(journals, "")
    return os.path.join(ours, f"{found.st_dev:x}.{found.st_ino:x}-")


def own_folder() -> str | None:
    """The folder of this user; None where there is none that is ours alone."""
    path = os.path.join(PARENT, f"disttrace-{os.geteuid()}")
    attempt(os.mkdir, path, 0o700)  # which may be there
    around, found = attempt(os.stat, PARENT), attempt(os.lstat, path)
    if around is None or found is None:
        return None
    others_may_replace = around.st_mode & 0o022 and not around.st_mode & stat.S_ISVTX
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return path if is_ours and not found.st_mode & 0o077 and not others_may_replace else None


def namespace() -> str:
    """Of pids, which mean nothing elsewhere; ``0`` where there is no telling."""
    return str(proc.namespace("pid") or 0)


def records_in(data: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one on each line; other lines are passed over."""
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ours(ValueError):
            continue
        if isinstance(record, dict):
            yield record
