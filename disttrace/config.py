"""Settings: a field of `Config` each, and the one function that decides which value holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from disttrace import project, redact
from disttrace.foreign import ours
from disttrace.project import Table

PREFIX = "DISTTRACE_"
PRIVATE = ("DISTTRACE_PARENT",)
"""Variables of our own making, handed from a traced process to its children."""
UNRECORDED = ("DISTTRACE_SECRET",)
"""Variables that are no settings, for settings are recorded: by what companions know each other."""

_NO_TABLE = Table()
_NAMES = re.compile(r"[a-z0-9_]+")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError
    return value


def _path(value: object) -> str:
    text = _text(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return os.path.abspath(os.path.expanduser(text))


def _items(value: object) -> list[str]:
    if isinstance(value, str):
        parts = value.split(",")
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [item for item in value if isinstance(item, str)]
        if len(parts) != len(value):
            raise ValueError
    else:
        raise TypeError
    return [part.strip().lower() for part in parts if part.strip()]


def _exports(value: object) -> frozenset[str]:
    chosen = frozenset(_items(value))
    if not chosen or not chosen <= frozenset(("json", "otlp")):
        raise ValueError
    return chosen


def _backends(value: object) -> frozenset[str]:
    items = _items(value)
    if items in ([], ["none"]):
        return frozenset()
    if "none" in items or not all(_NAMES.fullmatch(item) for item in items):
        raise ValueError
    return frozenset(items)


class Kind(NamedTuple):
    """What a setting may be. ``parse`` takes text or a Python value and raises TypeError,
    ValueError, OverflowError or OSError for a wrong one; ``allowed`` completes "allowed is ...".
    """

    allowed: str
    parse: Callable[[object], object]


def _number(allowed: str, kind: type[float], lowest: float, highest: float) -> Kind:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, kind, str)):
            raise TypeError
        number = kind(value)
        if not lowest <= number <= highest:
            raise ValueError
        return number

    return Kind(allowed, parse)


def _whole(lowest: int, highest: int) -> Kind:
    return _number(f"a whole number from {lowest} to {highest}", int, lowest, highest)


def _seconds(lowest: float) -> Kind:
    # Thirty years, which nanoseconds of 64 bits hold.
    return _number(f"a number of seconds from {lowest:g} to a billion", float, lowest, 1e9)


def _file_mode(value: object) -> str:
    """Octal digits; a number is taken as Python wrote it (``0o640``)."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError
    mode = int(value, 8) if isinstance(value, str) else value
    if mode & 0o600 != 0o600 or mode & ~0o666:
        raise ValueError
    return f"{mode:o}"


def _patterns(value: object) -> str:
    text = "\n".join(value) if isinstance(value, (list, tuple)) else value
    if not isinstance(text, str):
        raise TypeError
    try:
        redact.Masker(redact.split(text))
    except ours(re.error):
        raise ValueError from None
    return text


def _one_of(*words: str) -> Kind:
    def parse(value: object) -> str:
        word = _text(value).lower()
        if word not in words:
            raise ValueError
        return word

    return Kind(" or ".join(words), parse)


def _label(value: object) -> str:
    if not _text(value).isprintable():
        raise ValueError
    return _text(value).strip()


_SWITCH = Kind("on or off", lambda v: v if isinstance(v, bool) else project.read_switch(str(v)))


class Setting(NamedTuple):
    """One setting: the variable `DISTTRACE_<name>` and the keyword `<name in lower case>`."""

    name: str
    default: object
    kind: Kind
    help: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    @property
    def keyword(self) -> str:
        return self.name.lower()


def _setting(default: object, kind: Kind, help: str) -> Any:  # noqa: A002 - as in Setting
    """The field of a setting."""
    return field(metadata={"row": (default, kind, help)})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The values that hold, and in `sources` where each came from ("argument", "environment",
    "pyproject.toml", "default"). `dir` is absolute; `slow_write`, `stall`, `pending` in seconds,
    `max_mb` in 2**20 bytes, `file_mode` octal digits, `redact` a list for `redact.split`."""

    dir: str = _setting(
        "disttrace-out",
        Kind("the path of a folder", _path),
        "Folder in which the journals are written.",
    )
    export: frozenset[str] = _setting(
        frozenset({"json"}),
        Kind("a comma list of json and otlp", _exports),
        "Where the records go: journals (json), an OpenTelemetry collector (otlp), or both.",
    )
    max_mb: int = _setting(
        256,
        _whole(1, 1 << 20),
        "Megabytes of operation records kept per process; the oldest are dropped first.",
    )
    slow_write: float = _setting(
        2.0,
        _seconds(0.0),
        "Switch the journal off when one write takes N seconds, or slow writes take 5 N out of "
        "10 N seconds; 0: never.",
    )
    stall: float = _setting(
        10.0, _seconds(0.001), "Seconds after which a waiting operation counts as stalled."
    )
    on_stall: str | None = _setting(
        None,
        Kind("a command, or abort", lambda value: _text(value).strip()),
        "Command to run at each stall, with the finding as JSON on its standard input "
        "(`docs/alerts.md`); `abort`: end the job with exit code 75 if it is still stalled after "
        "another DISTTRACE_STALL, or three seconds after a rank has died.",
    )
    slow: float = _setting(
        0.05,
        _number("a share from 0 to 1", float, 0.0, 1.0),
        "Report a slow rank while the job runs when the others spend at least this share of their "
        "time waiting for it (`docs/foresight.md`); 0: never.",
    )
    digest: int = _setting(
        0,
        _number("a whole number, 0 or more", int, 0, 1 << 30),
        "Compare a checksum of every n-th result that must be equal on all ranks, and report "
        "inputs that are not finite (`docs/foresight.md`); 0: none.",
    )
    quiet: bool = _setting(
        False, _SWITCH, "`1`: at the end of the job print neither folder nor `failed:`."
    )
    log: str = _setting(
        "text",
        _one_of("text", "json"),
        "Form of the lines on stderr; `json`: one object per finding.",
    )
    stack_depth: int = _setting(4, _whole(0, 64), "Python frames recorded per call; 0: none.")
    job: str | None = _setting(
        None,
        Kind("a name in printable characters", _label),
        "Name of the job, in place of the launcher's.",
    )
    store_trace: frozenset[str] = _setting(
        frozenset({"gloo"}),
        Kind("a comma list of backend names, or none", _backends),
        "Backends whose own store traffic (from C++) is traced.",
    )
    device: str = _setting(
        "auto",
        _one_of("auto", "off"),
        "`off`: do not query devices (NCCL and others like it) for when an operation completed.",
    )
    heartbeat: bool = _setting(
        True,
        _SWITCH,
        "Run the background thread that writes heartbeats and the stacks of stalled threads.",
    )
    mask: bool = _setting(
        True,
        _SWITCH,
        "Mask what looks like a secret: command lines, errors, store keys, addresses, names.",
    )
    redact: str | None = _setting(
        None,
        Kind("a comma list of regular expressions", _patterns),
        "More patterns to mask, separated by commas (write a comma of a pattern as `\\,`).",
    )
    file_mode: str = _setting(
        "600",
        Kind("an octal number from 600 to 666 that lets the owner read and write", _file_mode),
        "Permissions of the files; 640 lets a group read them.",
    )
    pending: float = _setting(
        5.0,
        _seconds(0.0),
        "With `otlp`: seconds after which an operation still in flight is sent as a pending span.",
    )
    core: str | None = _setting(
        None,
        _one_of("c", "python"),
        "Recorder to use: `c` or `python`; default: `c` where it was built.",
    )
    sources: Mapping[str, str]


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(one.name.upper(), *one.metadata["row"]) for one in fields(Config) if one.metadata
)


def resolve(
    arguments: Mapping[str, object], environ: Mapping[str, str], table: Table = _NO_TABLE
) -> tuple[Config, list[str]]:
    """The settings by precedence argument > environment > table of the project > default, and what
    was wrong with them: a wrong value, for which the default holds, and a variable or key that is
    no setting. None and an empty variable count as not given. Raises TypeError for an argument that
    is no setting."""
    _refuse_unknown(arguments)
    complaints = [*_unknown_variables(environ), *table.complaints, *_unknown_keys(table)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for row in SETTINGS:
        values[row.keyword], sources[row.keyword], wrong = _choose(row, arguments, environ, table)
        complaints += wrong
    return Config(**values, sources=sources), complaints


def to_environ(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a child resolves to the same: the folder, and all but defaults."""
    variables = {project.SWITCH: "1"}
    for row in SETTINGS:
        value = getattr(config, row.keyword)
        if value is None:
            continue
        if row.name == "DIR" or value != row.default or environ.get(row.variable):
            variables[row.variable] = to_text(value)
    return variables


def to_text(value: object) -> str:
    """A value as one would write it into a variable."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, frozenset):
        return ",".join(sorted(value)) or "none"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def _choose(
    row: Setting, arguments: Mapping[str, object], environ: Mapping[str, str], table: Table
) -> tuple[object, str, list[str]]:
    given = arguments.get(row.keyword)
    source, where = "argument", f"The argument {row.keyword} ({row.variable})"
    if given is None:
        given = environ.get(row.variable) or None
        source, where = "environment", row.variable
    if given is None:
        given = table.values.get(row.keyword)
        source, where = project.FILE, f"{row.keyword} in [tool.disttrace] of {project.FILE}"
    wrong = []
    if given is not None:
        try:
            return row.kind.parse(given), source, []
        except ours(TypeError, ValueError, OverflowError, OSError):
            is_used = f"allowed is {row.kind.allowed}; using {to_text(row.default) or 'no value'}"
            wrong = [f"{where} is {project.quoted(given)}; {is_used}."]
    default = project.absolute(str(row.default)) if row.name == "DIR" else row.default
    return default, "default", wrong


def chosen(config: Config) -> dict[str, str]:
    """Settings that were chosen, as text."""
    rows = (row for row in SETTINGS if config.sources[row.keyword] != "default")
    texts = {row.keyword: to_text(getattr(config, row.keyword)) for row in rows}
    if "redact" in texts:
        texts["redact"] = redact.MASK  # a pattern may be the secret itself
    return texts


def _refuse_unknown(arguments: Mapping[str, object]) -> None:
    known = [row.keyword for row in SETTINGS]
    for keyword in arguments:
        if keyword not in known:
            near = project.nearest(keyword, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise TypeError(f"install() got an unexpected keyword argument {keyword!r}{hint}")


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    known = [*(row.variable for row in SETTINGS), *PRIVATE, *UNRECORDED]
    unknown = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    names = [row.name for row in SETTINGS]
    return [_no_setting(name[len(PREFIX) :], names, before=PREFIX) for name in unknown]


def _unknown_keys(table: Table) -> list[str]:
    known = [row.keyword for row in SETTINGS]
    unknown = [key for key in table.values if key not in known]
    return [_no_setting(key, known, behind=" in [tool.disttrace]") for key in unknown]


def _no_setting(name: str, known: list[str], *, before: str = "", behind: str = "") -> str:
    near = project.nearest(name, known)
    hint = f"did you mean {before}{near}?" if near else "`disttrace info` lists the settings."
    return f"{before}{name}{behind} is no setting of disttrace; {hint}"
