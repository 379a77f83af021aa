"""``disttrace collect``: a job's journals into one file to send; files of hosts into one folder.

It needs no extra, so that it works where the job ran.
"""

from __future__ import annotations

import argparse
import os
import sys

from disttrace_viewer.commands import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add(parser, "dirs", "--job")
    parser.usage = (
        "disttrace collect [DIR ...] [--job ID] [-o FILE.tar.gz]\n"
        "       disttrace collect FILE.tar.gz ... [-o DIR]"
    )
    parser.description = (
        "Pack the journals of a job into one file; or, given such files of several hosts, put them"
        " into one folder, for all other commands to read."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="file to pack into (default: JOB-HOST.tar.gz) or folder to unpack into (default:"
        " disttrace-collected)",
    )


def execute(args: argparse.Namespace) -> int:
    """Print what was written; 0, 1 where something was left out, 2 (raised) where nothing was."""
    from disttrace_viewer import collect
    from disttrace_viewer.collect import ViewerError

    archives = [path for path in args.dirs if collect.is_archive(path)]
    if archives and len(archives) < len(args.dirs):
        raise ViewerError("give either directories, to pack, or .tar.gz files, to unpack.")
    if not archives:
        with common.taken_down():
            packed = collect.pack(args.dirs, job=args.job, output=args.output)
        size = os.path.getsize(packed.path)
        sys.stdout.write(
            f"{packed.path}: {packed.journals:,} journals of job {packed.job},"
            f" {size / 1e3:,.0f} kB\n"
            "Bring those of all hosts to one place; there: disttrace collect *.tar.gz -o DIR\n"
        )
        return 0
    folder = args.output or "disttrace-collected"
    found = collect.unpack(archives, folder)
    known = f", {found.known:,} were there already" if found.known else ""
    sys.stdout.write(f"{folder}: {found.files:,} files of {len(archives):,} archives{known}\n")
    if not found.left_out:
        return 0
    more = found.left_out - len(found.why)
    others = f"; and {more:,} more" if more else ""
    sys.stderr.write(f"disttrace: not taken from the archives: {'; '.join(found.why)}{others}.\n")
    return 1
