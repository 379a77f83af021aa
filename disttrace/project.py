"""The settings of a folder (``[tool.disttrace]`` of ``pyproject.toml`` where a program starts),
and the reading of the switch.

A user that can write that file decides what ``on_stall`` runs, so another user's is not read.
Start-up asks here, so nothing is imported that the bare interpreter has not loaded, unless such a
table is there.
"""

import os
import stat

SWITCH = "DISTTRACE"
"""The variable that switches tracing on."""

ON = frozenset({"1", "on", "true", "yes"})
OFF = frozenset({"0", "off", "false", "no"})

_LONGEST = 80


def read_switch(word: str) -> bool:
    """Whether ``word`` means on; ValueError where it means neither on nor off."""
    word = word.strip().lower()
    if word not in ON | OFF:
        raise ValueError
    return word in ON


def is_on(value: str | None) -> bool:
    """Whether DISTTRACE is on; unset is off. ValueError, with a sentence, for other words."""
    if value is None or not value.strip():
        return False
    try:
        return read_switch(value)
    except ValueError:
        raise ValueError(f"{SWITCH} is {quoted(value)}; allowed is 1 or 0; not tracing.") from None


def quoted(value: object) -> str:
    """A value as a sentence quotes it: of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def nearest(word: str, known: "Sequence[str]") -> str | None:
    """Which of the ``known`` words may have been meant."""
    import difflib  # only for a mistake: start-up should not pay for it

    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def absolute(path: str) -> str:
    """``path`` from the root on, where there still is a working directory."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

FILE = "pyproject.toml"
_MOST = 1 << 20
"""A longer file is none that people write."""


class Table:
    """Its values by keyword, as TOML has them, and what was wrong with the file."""

    __slots__ = ("complaints", "values")

    def __init__(
        self, values: "Mapping[str, Any] | None" = None, complaints: "tuple[str, ...]" = ()
    ) -> None:
        self.values: Mapping[str, Any] = values or {}
        self.complaints = complaints


_known: "dict[str, Table]" = {}


def read(folder: "str | None" = None) -> Table:
    """The table in ``folder`` (default: here), read once: later it may be the program's own."""
    try:
        path = os.path.join(os.getcwd() if folder is None else folder, FILE)
    except OSError:
        return Table()  # the directory is gone
    if path not in _known:
        _known[path] = _read(path)
    return _known[path]


def found_none(folder: str) -> None:
    """There was none in ``folder`` when the program started: one that is there now is not read."""
    _known.setdefault(os.path.join(folder, FILE), Table())


def _read(path: str) -> Table:
    try:
        data, owner = _content(path)
    except (OSError, ValueError):
        return Table()  # there is none that could be read
    if b"tool.disttrace" not in data:
        return Table()
    if owner not in (0, os.geteuid()):
        return _refused("belongs to another user")
    parse = _parser()
    if parse is None:
        return _refused("is read from Python 3.11 on, or where tomli is installed")
    try:
        tool = parse(data.decode()).get("tool")
    except RecursionError:
        return _refused("could not be read: its lists are too deep")
    except ValueError as error:  # neither TOML nor UTF-8
        return _refused(f"could not be read: {str(error).splitlines()[0]}")
    found = tool.get("disttrace") if isinstance(tool, dict) else None
    if found is None:
        return Table()
    return Table(found) if isinstance(found, dict) else _refused("is no table")


def text(keyword: str) -> "str | None":
    """What stands there for a setting that is text; None where that is nothing."""
    found = read().values.get(keyword)
    return found if isinstance(found, str) else None


def _content(path: str) -> "tuple[bytes, int]":
    """The file's content and owner; nothing waits for a FIFO of that name."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST:
            return b"", found.st_uid
        return os.read(fd, _MOST), found.st_uid
    finally:
        os.close(fd)


def _parser() -> "Any":
    """What reads TOML here; None: nothing."""
    for name in ("tomllib", "tomli"):
        try:
            return __import__(name).loads
        except ModuleNotFoundError:
            continue
    return None


def _refused(why: str) -> Table:
    return Table({}, (f"[tool.disttrace] of {FILE} {why}; it is not used.",))
