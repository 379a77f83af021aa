"""What every command of the reading side shares: folders, the choice of a job, how far it is.

Nothing of the viewer is imported before a command runs, so that ``--help`` works without its extra.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disttrace_viewer.api.trace import Trace

EVERY_S = 10.0
"""A line shows so often how far a long command is."""
NARROWEST = 40


@contextmanager
def taken_down() -> Iterator[None]:
    """SIGTERM and SIGHUP leave this by SystemExit, so that no half-written file stays behind."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if main and signal.getsignal(number) is signal.SIG_DFL  # under nohup it stays as it is
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def whole(least: int, what: str) -> Callable[[str], int]:
    """The type of an option: a whole number from ``least`` on."""

    def checked(text: str) -> int:
        fits = text.isascii() and text.isdecimal() and len(text) < 10
        if not fits or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what} of {least} or more")
        return int(text)

    return checked


def seconds(text: str) -> float:
    """A positive number of seconds, at most a billion (thirty years)."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds above 0, up to a billion"
        )
    return value


JOB = (
    "a job's id or its beginning, 'newest' (with jobs of its store), or 'all'; `disttrace jobs`"
    " lists them (default: {})"
)
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dirs": {
        "nargs": "*",
        "metavar": "DIR",
        "help": "folder, searched recursively, or archive (default: DISTTRACE_DIR, disttrace-out)",
    },
    "--job": {"metavar": "ID", "help": JOB.format("newest")},
    "--engine": {
        "metavar": "ADDRESS",
        "help": "read journals on a cluster: dask://HOST:PORT (default: this machine)",
    },
    "--stall": {
        "type": seconds,
        "metavar": "SECONDS",
        "help": "in a running job, a wait this long is a fault (default: DISTTRACE_STALL, or 10)",
    },
    "--width": {
        "type": whole(NARROWEST, "number of columns"),
        "metavar": "COLUMNS",
        "help": "default: the terminal's",
    },
    "--no-color": {
        "dest": "color",
        "action": "store_const",
        "const": False,  # else the stream and the environment decide
        "help": "like NO_COLOR=1 (FORCE_COLOR=1: also into a pipe)",
    },
}
"""Those that several commands take."""


def add(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Some of ``OPTIONS``."""
    for name in names:
        parser.add_argument(name, **{**OPTIONS[name], **changes})


def add_look(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """How to show it."""
    look = parser.add_argument_group("how to show it")
    add(look, "--width", "--no-color")
    return look


def read(args: argparse.Namespace) -> Trace:
    """The trace that the options ask for. Raises ``ViewerError`` with exit code 2."""
    from disttrace_viewer.api.trace import load

    report = progress("bytes of journals")
    return load(list(args.dirs), args.job, engine=args.engine, progress=report)


def write(data: bytes) -> None:
    """Onto standard output; a terminal gets what it would obey as JSON's ``\\u0085``."""
    if sys.stdout.isatty():
        signs = (s if s.isprintable() or s == "\n" else json.dumps(s)[1:-1] for s in data.decode())
        data = "".join(signs).encode()
    try:
        sys.stdout.flush()  # text that is before it, of this program or another one
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter would flush once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(values: Mapping[str, Any]) -> None:
    """An object onto standard output, as a person may read it, too."""
    import orjson

    write(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")


def progress(noun: str = "journals") -> Callable[[int, int], None]:
    """What says every ten seconds on standard error how much is done, where it takes long."""
    due = time.monotonic() + EVERY_S

    def report(done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + EVERY_S
            sys.stderr.write(f"disttrace: {done:,} of {total:,} {noun}\n")
            sys.stderr.flush()

    return report
