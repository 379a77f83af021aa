"""`disttrace run -- COMMAND`: trace a command where the start-up file of the package does not run.

A `.pth` file counts only in site-packages, not in `--target` folders, zip files or checkouts. Here
PYTHONPATH leads every interpreter below COMMAND to a `sitecustomize` of ours, but not those that
are started with -S, -I or -E.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import site
import sys
from collections.abc import Mapping, Sequence

from disttrace import project
from disttrace.commands import CommandError
from disttrace.config import SETTINGS, resolve, to_environ, to_text

SHELL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shell")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One option per setting, then the command."""
    parser.usage = "disttrace run [options] -- COMMAND [ARGUMENT ...]"
    for row in SETTINGS:
        parser.add_argument(
            "--" + row.keyword.replace("_", "-"),
            metavar=row.name,
            help=f"{row.help} ({row.kind.allowed}; default {to_text(row.default) or 'none'})",
        )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")


def execute(arguments: argparse.Namespace) -> int:
    """Become the command, with its exit code, signals and terminal. Raises CommandError: 127 where
    there is none, 126 where it cannot be executed, 2 for a wrong option."""
    command = list(arguments.command)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise CommandError("nothing to run; usage: disttrace run [options] -- COMMAND ...")
    given = {row.keyword: getattr(arguments, row.keyword) for row in SETTINGS}
    environ = environment(given, os.environ)
    for sentence in unreachable(command):
        sys.stderr.write(f"disttrace: {sentence}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    for name in ("SIGPIPE", "SIGXFSZ"):  # ignored by the interpreter for itself
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        code = _NOT_FOUND if missing else _NOT_EXECUTABLE
        hint = f"; did you mean `python {command[0]}`?" if command[0].endswith(".py") else ""
        what = f"cannot run {command[0]!r}: {error.strerror or error}{hint}"
        raise CommandError(what, code) from None


def environment(given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """`environ`, changed so that every Python process started with it is traced."""
    config, complaints = resolve(given, environ, project.read())
    for sentence in complaints:
        if sentence.startswith("The argument "):
            raise CommandError(sentence)
        sys.stderr.write(f"disttrace: {sentence}\n")
    earlier = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [SHELL, *(entry for entry in earlier if entry != SHELL)]
    if not _installed() and ROOT not in path:
        path.append(ROOT)  # last, so that it shadows nothing of the user's
    return {**environ, **to_environ(config, environ), "PYTHONPATH": os.pathsep.join(path)}


def unreachable(command: Sequence[str]) -> list[str]:
    """A sentence for each flag of a Python command that keeps our start-up away."""
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        return []
    flags = set()
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        flags |= set(re.split("[cmWX]", word[1:])[0])
        if re.search("[cm]", word):
            break
    if "S" in flags:
        return ["python -S reads no start-up files: call disttrace.install() in the program."]
    if flags & {"I", "E"}:
        return ["python -I and -E ignore PYTHONPATH: only a disttrace installed there can trace."]
    return []


def _installed() -> bool:
    """Whether other processes of this Python find the package (editable installs count too)."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(os.path.exists(os.path.join(folder, "disttrace.pth")) for folder in folders)
