"""``disttrace replay DIR``: what a job called, called again here, so that it hangs here too."""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile

from disttrace.journal.proc import end_with
from disttrace_viewer.commands import common

SAME, OTHER = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    common.add_arguments(parser)
    parser.add_argument(
        "--shrink", action="store_true", help="only the calls that it takes to stand as it did"
    )
    parser.add_argument(
        "--speed", type=common.seconds, metavar="X", help="with pauses, X times as fast as recorded"
    )
    parser.add_argument("-o", metavar="FILE", help="write the program there, and run nothing")


def execute(args: argparse.Namespace) -> int:
    """0: it ends as the job did, 1: otherwise, 2 (raised): there is nothing to replay."""
    from disttrace_viewer.api.replayed import replayed

    name = os.path.basename(args.o) if args.o else "repro.py"
    made = replayed(args.dirs, args.job, shrink=args.shrink, speed=args.speed, name=name)
    about = made.about
    sys.stderr.writelines(f"Incomplete: {sentence}\n" for sentence in made.incomplete)
    if args.o:
        made.write(args.o)
        sys.stderr.write(f"disttrace: {args.o}: {about}\n")
        return SAME
    with tempfile.TemporaryDirectory(prefix="disttrace-replay-") as folder:
        path = os.path.join(folder, name)
        made.write(path)
        command = [sys.executable, "-m", "disttrace", "check", "-n", str(made.ranks)]
        keep = ["--keep", os.path.join(folder, "kept"), "--device", "keep", "--format", "json"]
        done = subprocess.run(
            [*command, *keep, "--", path],
            capture_output=True,
            check=False,
            cwd=folder,
            preexec_fn=functools.partial(end_with, os.getpid()),
        )
    if done.returncode not in (0, 1):
        said = done.stderr.decode("utf-8", "replace").splitlines(keepends=True)
        sys.stderr.writelines(line for line in said if folder not in line)  # it is gone by now
    return _compare(done, made.kind, about)


def _compare(done: subprocess.CompletedProcess[bytes], kind: str | None, about: str) -> int:
    import orjson

    found = orjson.loads(done.stdout) if done.stdout else {"findings": []}
    errors = [one for one in found["findings"] if one["severity"] == "error"]
    kinds = [one["kind"] for one in errors]
    for one in errors[:1]:
        sys.stdout.write(f"{one['kind']}: {one['summary']}\n")
    same = kind in kinds if kind is not None else not kinds
    what = f"as recorded ({kind or 'no fault'})" if same else f"recorded was {kind or 'no fault'}"
    sys.stdout.write(f"Replayed {about}: {what}.\n")
    return SAME if same else OTHER
