"""``disttrace diagnose``: what is wrong, which rank waits for which, and what to do next."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shutil
import sys

from disttrace_viewer.commands import common

FORMATS = ("text", "json", "github", "junit")
INCOMPLETE = 2
"""Exit code where nothing wrong was found, but not everything could be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.epilog = _FORMS
    common.add(parser, "dirs", "--engine")
    common.add(parser, "--job", help=common.JOB.format("newest, and jobs that overlap it"))
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="text; json (docs/json.md); github: annotations; junit: XML (docs/ci.md)",
    )
    parser.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="with --json: list every process, even if many do the same",
    )
    common.add(parser, "--stall")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also report what would hang if every send waited for its receive (docs/strict.md)",
    )
    parser.add_argument(
        "--on-device",
        action="store_true",
        help="like --strict, with each group a stream, as on a GPU",
    )
    look = common.add_look(parser)
    look.add_argument(
        "--stacks", action="store_true", help="add the recorded frames of the ranks that are stuck"
    )


_FORMS = """Instead of journals, DIR may be evidence of other tools: Flight Recorder dumps; output
of ncclras; a folder of torchrun's --log-dir; a log (- for a pipe), with any rank prefix. Lines
that are understood: heartbeat monitors and watchdogs, TORCH_DISTRIBUTED_DEBUG=DETAIL, monitored and
store barriers, gloo's time-outs, NCCL_DEBUG=INFO, tracebacks, stacks, exits reported by launchers
(torchrun, srun, mpirun, mpiexec, jsrun, DeepSpeed, Ray) or shells, OOM kills, disttrace's own. What
each can prove: docs/compare.md."""


def _standard_input() -> str:
    """The path under which a log that comes through a pipe is held."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="disttrace-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "stdin.log")
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def execute(args: argparse.Namespace) -> int:
    """Print the report; 0 healthy, 1 an error or a warning, 2 journals are missing that it
    needs."""
    from disttrace_viewer.api import ViewerError
    from disttrace_viewer.api.verdict import diagnose

    piped = args.dirs == ["-"]
    if piped:
        args.dirs = [_standard_input()]
    try:
        report = diagnose(
            args.dirs,
            args.job,
            stall_s=args.stall,
            engine=args.engine,
            strict=args.strict,
            on_device=args.on_device,
            progress=common.progress(),
        )
    except ViewerError:
        if piped:  # under a name without meaning
            what = "the standard input has no line of a watchdog, and no exception."
            raise ViewerError(what) from None
        raise
    gc.freeze()  # it is used to the end: a search for garbage among it costs seconds
    looks = args.stacks or args.width or args.color or sys.stdout.isatty()
    # The environment may ask for lines that are wrapped or coloured, also in a file.
    looks = looks or not {"COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"}.isdisjoint(os.environ)
    if args.format == "text" and sys.stdout.encoding == "utf-8" and not looks:
        common.write(f"{report}\n".encode())  # without rich, which takes a while to import
    elif args.format == "text":
        report.print(stacks=args.stacks, width=args.width, color=args.color)
    else:
        from disttrace_viewer.api.report import encoded

        values = [report.to_dict(full=args.full)] if args.format == "json" else report.each()
        common.write(encoded(values, args.format))
    if any(one.kind == "newer format" for one in report.case.trace.problems):
        return INCOMPLETE  # what it means by its records is not known
    if not report.healthy:
        return 1
    return INCOMPLETE if report.incomplete else 0
