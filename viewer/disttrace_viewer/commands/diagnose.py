"""``disttrace diagnose``: what is wrong, who waits for whom, and what to do next."""

from __future__ import annotations

import argparse
import sys

import orjson

from disttrace_viewer.analysis.evidence import STALL_NS
from disttrace_viewer.commands import common
from disttrace_viewer.diagnosis.diagnose import diagnose
from disttrace_viewer.diagnosis.report import healthy, report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument(
        "--stall",
        type=float,
        default=STALL_NS / 1e9,
        metavar="SECONDS",
        help="while processes live, waiting is a fault from here on (default: %(default)g)",
    )


def execute(args: argparse.Namespace) -> int:
    """Print the report; 0 healthy, 1 an error or a warning, 2 (raised) nothing to read."""
    trace = common.read(args)
    case, findings = diagnose(trace, stall_ns=round(args.stall * 1e9))
    if args.json:
        data = orjson.dumps(report(case, findings), option=orjson.OPT_INDENT_2)
        sys.stdout.buffer.write(data + b"\n")
    else:
        from disttrace_viewer.views.terminal.diagnosis import lines

        sys.stdout.write("\n".join(lines(case, findings)) + "\n")
    return 0 if healthy(findings) else 1
