"""A failure of our own as one sentence.

A traceback and the exit code of a fault would let CI take a broken viewer for a hang.
"""

from __future__ import annotations

import errno
from importlib.metadata import PackageNotFoundError, version

from disttrace import errors

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h: disttrace itself failed, and nothing is known about the job."""

_REFUSED = {
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPERM,
    errno.EROFS, errno.ESTALE,
}  # fmt: skip
"""What the machine refuses, which no report to us would put right."""


def sentence(error: BaseException) -> str:
    """What failed, where of ours, and what may put it right."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f"{errors.plain(str(error.filename))}: " if error.filename else ""
        return f"cannot go on: {where}{error.strerror}."
    what = f"failed here: {errors.plain(errors.first_line(error))}{_place(error)}"
    return f"{what}; please report it, with the command and the output of `disttrace info`"


def installed(package: str) -> str | None:
    """The version that is installed, None where none is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _place(error: BaseException) -> str:
    """The innermost line of ours, which a report needs."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        for package in ("disttrace_viewer", "disttrace"):
            _, found, inside = code.co_filename.rpartition(f"/{package}/")
            if found:
                place = f" ({package}/{inside}:{traceback.tb_lineno})"
                break
        traceback = traceback.tb_next
    return place
