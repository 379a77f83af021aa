"""``disttrace attach``: whom a job waits for that hangs without disttrace, by its stacks."""

from __future__ import annotations

import argparse
import sys

from disttrace_viewer.commands import common

NOTHING = 2
"""Exit code where no rank was found, or none may be looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "pids",
        metavar="PID",
        type=int,
        nargs="*",
        help="a launcher or a rank, with its child processes (default: the newest job here)",
    )
    parser.add_argument(
        "--job", metavar="ID", help="run id of torchrun, job id of Slurm, or MASTER_PORT"
    )
    parser.add_argument(
        "--stacks",
        metavar="FILE",
        nargs="+",
        help="stacks written elsewhere: by py-spy dump (text or --json), faulthandler, pystack,"
        " gdb's py-bt, Python 3.15's profiling.sampling dump; a file holds one process or several",
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="also request each rank's Flight Recorder, through torch's worker server"
        " (docs/hang.md: what that may cost)",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON (docs/json.md)")
    common.add_look(parser)


def execute(args: argparse.Namespace) -> int:
    """0: no stall seen, 1: one was found, 2: no rank was found, or none may be looked at, or one
    that runs could not be and the others show no stall."""
    from disttrace_viewer.api.attached import attached, from_files

    report = from_files(args.stacks) if args.stacks else attached(args.pids, args.job, ask=args.ask)
    for sentence in report.troubles:
        sys.stderr.write(f"disttrace: {sentence}\n")
    if report.report is None:
        return NOTHING
    if args.json:
        common.write_json(report.report.to_dict(full=True))
    else:
        report.report.print(width=args.width, color=args.color)
    if not report.report.healthy:
        return 1
    undecided = not report.whole or (args.stacks and report.report.incomplete)
    return NOTHING if undecided else 0
