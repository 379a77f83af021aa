"""``disttrace export``: a trace in the form that another tool reads."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator

from disttrace_viewer.commands import common
from disttrace_viewer.otlp import export
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.views import jsonl
from disttrace_viewer.views.timeline import html, perfetto

FORMATS: dict[str, Callable[[Trace], Iterator[bytes]]] = {
    "html": html.lines,
    "jsonl": jsonl.lines,
    "otlp": export.lines,
    "perfetto": perfetto.lines,
}
"""Writers by name: each gives the output in pieces."""
SENDERS: dict[str, Callable[[Trace], int]] = {
    "otlp": export.send,
}
"""Formats that go to a server where no output is named: each gives the exit code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add_arguments(parser, whole_folders=True)
    parser.add_argument(
        "--format",
        choices=sorted(FORMATS),
        default="jsonl",
        metavar="F",
        help=f"one of: {', '.join(sorted(FORMATS))} (default: jsonl)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write (default: -, stdout; otlp: to the collector of the OTEL_* variables)",
    )


def execute(args: argparse.Namespace) -> int:
    """Write the export; a file appears only when it is complete."""
    trace = common.read(args)
    for problem in trace.problems:
        sys.stderr.write(problem.sentence + "\n")
    if args.output is None and args.format in SENDERS:
        return SENDERS[args.format](trace)
    pieces = FORMATS[args.format](trace)
    if args.output in (None, "-"):
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return 0
    try:
        _write(args.output, pieces)
    except OSError as error:
        raise ViewerError(f"cannot write {args.output}: {error.strerror}.") from error
    return 0


def _write(path: str, pieces: Iterator[bytes]) -> None:
    """Beside the target first, then in its place: nobody finds half a file."""
    if os.path.exists(path) and not os.path.isfile(path):
        # A pipe or a device cannot be replaced.
        with open(path, "wb") as file:
            file.writelines(pieces)
        return
    handle, beside = tempfile.mkstemp(
        dir=os.path.dirname(path) or ".", prefix=f".{os.path.basename(path)}."
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
