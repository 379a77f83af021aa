"""What jobs that were killed left at the meeting place of this host: nobody else takes it away.

A process that ends by itself removes what it shows and, as the last of its job, the roll. One that
is killed removes nothing, and a host that runs for months would gather some hundred kB of each.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from disttrace.journal.format import CALLS_SUFFIX, ROLL_SUFFIX, is_plain_name, opened_own
from disttrace.journal.proc import entries
from disttrace.lifecycle.meeting.place import namespace

SETTLED_S = 60.0
"""A roll to which somebody has added since is left alone: a job may just begin."""
_MOST, _MOST_BYTES = 1000, 1 << 20
"""Rolls that are looked at in one go."""


def sweep(folder: str) -> int:
    """Take away the rolls of this pid namespace none of whose processes lives, with the pages of
    their processes; how many. Of what cannot be read or removed nothing is said.
    """
    removed = 0
    own = f"-{namespace()}{ROLL_SUFFIX}"
    try:
        names = [name for name in os.listdir(folder) if name.endswith(own)][:_MOST]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(folder, name)
        with suppress(OSError):
            found = os.lstat(path)
            if time.time() - found.st_mtime < SETTLED_S or not stat.S_ISREG(found.st_mode):
                continue
            with opened_own(path, os.O_RDONLY) as fd:
                writers = [*entries(os.pread(fd, _MOST_BYTES, 0))]
            if any(one.lives for one in writers):
                continue
            journals = name.partition("-")[0]
            for base in {one.base for one in writers if is_plain_name(one.base)}:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, f"{journals}-{base}{CALLS_SUFFIX}"))
            os.unlink(path)
            removed += 1
    return removed
