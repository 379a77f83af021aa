"""``disttrace export``: a trace in the form that another tool reads."""

from __future__ import annotations

import argparse
import sys

from disttrace_viewer.commands import common

FORMATS = ("html", "jsonl", "otlp", "parquet", "perfetto")
"""As ``disttrace_viewer.api.trace.FORMATS``, known without importing what writes them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add(parser, "dirs", "--job", "--engine")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        metavar="F",
        help=f"one of: {', '.join(FORMATS)} (default: by the suffix of -o, else jsonl)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write: .jsonl, .json or .tar (Perfetto), .html, each also with .gz, or a"
        " folder .parquet (default: -, stdout; otlp: to the collector of the OTEL_* variables)",
    )
    parser.add_argument(
        "--with",
        dest="profiles",
        nargs="+",
        default=[],
        metavar="PROFILE",
        help="with -o FILE.tar: files of torch.profiler or VizTracer of the same run, which"
        " Perfetto (58.2 or later) shows on the same timeline, clocks aligned",
    )
    parser.add_argument(
        "--no-source",
        action="store_true",
        help="html: leave out the program's source lines, which are shown beside calls where the"
        " file is on this machine and has not changed since the run",
    )


def execute(args: argparse.Namespace) -> int:
    """Write the export; a file appears only when it is complete."""
    if args.format == "otlp" and args.output is None and not args.profiles:
        from disttrace_viewer.api.verdict import send

        return send(args.dirs, args.job, args.engine, common.progress())
    from disttrace_viewer.api import trace as exporting

    target = None if args.output in (None, "-") else args.output
    chosen = exporting.format_of(target, args.format, args.profiles)  # before anything is read
    trace = common.read(args)
    for problem in trace.problems:
        sys.stderr.write(problem + "\n")
    if target is None:
        for piece in exporting.pieces(trace.model, chosen, source=not args.no_source):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        with common.taken_down():
            trace.export(target, chosen, source=not args.no_source, profiles=args.profiles)
    return 0
