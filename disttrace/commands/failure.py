"""A failure of our own as one sentence, with the dependency that is too old, if one is.

A traceback and the exit code of a fault would let CI take a broken viewer for a hang.
"""

from __future__ import annotations

import errno
import re
from importlib.metadata import PackageNotFoundError, requires, version

from disttrace import errors

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h: disttrace itself failed, and nothing is known about the job."""

_REFUSED = {
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPERM,
    errno.EROFS, errno.ESTALE,
}  # fmt: skip
"""What the machine refuses, which no report to us would put right."""

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,100})(?:\[[^]]{0,200}\])?\s*\(?>=\s*(?P<least>[\d.]+)"
)


def sentence(error: BaseException) -> str:
    """What failed, where of ours, and what may put it right."""
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f"{errors.plain(str(error.filename))}: " if error.filename else ""
        return f"cannot go on: {where}{error.strerror}."
    place = _place(error)
    old = [remedy(name, have, least) for name, have, least in too_old()]
    return f"failed here: {errors.plain(errors.first_line(error))}{place}; " + (
        "; ".join(old) or "please report it, with the command and the output of `disttrace info`"
    )


def too_old() -> list[tuple[str, str, str]]:
    """Dependencies below the bounds of our metadata: name, version here, lowest that works."""
    found = []
    for name, least in bounds().items():
        have = installed(name)
        if have is not None and _numbers(have) < _numbers(least):
            found.append((name, have, least))
    return found


def bounds() -> dict[str, str]:
    """Lowest versions by package, of what a user installs; empty where nothing is installed."""
    try:
        known = requires("disttrace") or []
    except PackageNotFoundError:  # a checkout on PYTHONPATH
        return {}
    rows = [_REQUIREMENT.match(line) for line in known if not re.search(r"extra == .dev", line)]
    return {row["name"]: row["least"] for row in rows if row is not None}


def installed(package: str) -> str | None:
    """The version that is installed, None where none is."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def remedy(name: str, have: str, least: str) -> str:
    """What to do about a dependency that is too old."""
    return f"{name} {have} is too old: pip install -U '{name}>={least}'"


def _numbers(text: str) -> list[int]:
    """``1.42.0+cpu`` as numbers without zeros at the end; what is no number ends it."""
    release = re.match(r"\d{1,9}(?:\.\d{1,9})*", text, re.ASCII)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


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
