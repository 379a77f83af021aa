"""The command line: a table of small commands, of which only the chosen one is imported."""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from disttrace import project
from disttrace._version import __version__
from disttrace.commands import CommandError

INTERRUPTED = 130
FAILED = 70
"""EX_SOFTWARE of sysexits.h: disttrace itself failed, and nothing is known about the job."""

_REFUSED = {
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EPERM,
    errno.EROFS, errno.ESTALE,
}  # fmt: skip
"""What the machine refuses, which no report to us would put right."""
DOCUMENTATION = "https://disttrace.github.io/disttrace"


@dataclass(frozen=True, slots=True)
class Command:
    """A row: the name, the module that does it, and one line of help."""

    name: str
    module: str
    help: str


GROUPS: Mapping[str, tuple[Command, ...]] = {
    "read a run, finished or not": (
        Command("view", "disttrace_viewer.commands.view", "what happened, in order, across ranks"),
        Command("diagnose", "disttrace_viewer.commands.diagnose", "what is wrong, and where"),
        Command("stats", "disttrace_viewer.commands.stats", "where the time goes"),
        Command("diff", "disttrace_viewer.commands.diff", "what differs between two runs"),
        Command("export", "disttrace_viewer.commands.export", "a web page, Perfetto, JSON, tables"),
        Command("jobs", "disttrace_viewer.commands.jobs", "list the jobs in a folder"),
    ),
    "watch a job that runs": (
        Command("top", "disttrace_viewer.commands.top", "where the ranks are now"),
        Command("serve", "disttrace_viewer.commands.serve", "metrics of this host's jobs"),
        Command("attach", "disttrace_viewer.commands.attach", "a hanging job that is not traced"),
    ),
    "several hosts": (
        Command("collect", "disttrace_viewer.commands.collect", "pack journals into one file"),
        Command("reduce", "disttrace_viewer.commands.reduce", "shrink journals to small states"),
    ),
    "before a job runs": (
        Command("check", "disttrace.commands.check", "rehearse a program on this CPU"),
    ),
    "disttrace itself": (
        Command("run", "disttrace.commands.run", "run a command and trace it"),
        Command("info", "disttrace.commands.info", "versions, settings, what can be captured"),
        Command("mcp", "disttrace_viewer.commands.mcp", "an MCP server for agents, on stdio"),
        Command("completion", "disttrace.completion", "shell completion"),
    ),
}
COMMANDS: tuple[Command, ...] = tuple(row for rows in GROUPS.values() for row in rows)

# Settings that commands read, too.
_READ = ("DIR", "STALL")

# What to install for a module that a command may miss.
BROUGHT_BY = {
    "orjson": "orjson",
    "polars": "disttrace[viewer]",
    "rich": "disttrace[viewer]",
    "opentelemetry": "disttrace[otlp]",
    "torch": "disttrace[torch]",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit code."""
    _open_streams()
    # A tenth of a command's time: imports make what stays. The ranks of `check` are forks of it.
    if argv is None and sys.argv[1:2] != ["check"]:
        gc.set_threshold(1_000_000)
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`| head`) has enough, which is no error
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        package = BROUGHT_BY.get((error.name or "").partition(".")[0])
        if package is None:
            return _failed(error)
        return _fail(f"{error.name} is not installed; get it by pip install '{package}'", 2)
    except SystemExit:  # --help, and SIGTERM while a file is written
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        exit_code = getattr(error, "exit_code", None)
        return _fail(str(error), exit_code) if isinstance(exit_code, int) else _failed(error)
    return code


def _open_streams() -> None:
    """Have something to write to where it was closed for us (``2>&-``): the exit code means
    what was found, not that no process listens. What `run` starts does not inherit it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - to the end
            setattr(sys, name, stream)


def _dispatch(argv: list[str]) -> int:
    if argv[0:1] == ["help"] and len(argv) > 1:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        sys.stdout.write(f"disttrace {__version__}\n")
        return 0
    command = next((row for row in COMMANDS if row.name == argv[0]), None)
    if command is None:
        raise CommandError(_unknown(argv[0]))
    module: Any = importlib.import_module(command.module)
    if not command.module.startswith("disttrace."):
        _take_from_project()
        os.environ.setdefault("POLARS_ENGINE_AFFINITY", "in-memory")  # less CPU, and less memory
    return int(module.execute(parser_of(command).parse_args(argv[1:])))


def _take_from_project() -> None:
    """The folder and the limit of `[tool.disttrace]`, for commands that read what they made."""
    table = project.read()
    for sentence in table.complaints:
        sys.stderr.write(f"disttrace: {sentence}\n")
    if table.values:
        from disttrace.config import SETTINGS, resolve, to_text

        config, _ = resolve({}, os.environ, table)
        for row in SETTINGS:
            if row.name in _READ and config.sources[row.keyword] == project.FILE:
                os.environ[row.variable] = to_text(getattr(config, row.keyword))


def parser_of(command: Command) -> argparse.ArgumentParser:
    """The parser of a command's options; its mistakes are `CommandError`."""
    parser = _Parser(prog=f"disttrace {command.name}", description=command.help)
    importlib.import_module(command.module).add_arguments(parser)
    return parser


class _Parser(argparse.ArgumentParser):
    """Names what is wrong with options in one sentence, and which one may have been meant."""

    def format_help(self) -> str:
        """With addresses of the documentation, which no wheel brings."""
        return re.sub(r"\bdocs/([\w-]+)\.md", rf"{DOCUMENTATION}/\1/", super().format_help())

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            raise CommandError(self._unknown(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """What argparse complains about, without its two lines of usage."""
        option, _, rest = message.removeprefix("argument ").partition(": ")
        rest = re.sub(r", maybe you meant .{0,200}\?", "", rest)  # Python's own, since 3.15
        chosen = re.fullmatch(r"\Ainvalid choice: '?(.{0,200}?)'? \(choose from (.*)\)", rest)
        if chosen is not None:
            allowed = [word.strip().strip("'") for word in chosen[2].split(",")]
            near = project.nearest(chosen[1], allowed)
            hint = f"did you mean {near}?" if near else f"allowed are {', '.join(allowed)}."
            raise CommandError(f"{option} {chosen[1]}: {hint}")
        raise CommandError(
            f"{option}: {rest}." if rest else f"{message}; see `{self.prog} --help`."
        )

    def _unknown(self, word: str) -> str:
        option = word.partition("=")[0]
        known = [name for action in self._actions for name in action.option_strings]
        near = project.nearest(option, known) if option.startswith("-") else None
        hint = f"did you mean {near}?" if near else f"see `{self.prog} --help`."
        return f"`{self.prog}` has no option {option}; {hint}"


def _overview() -> str:
    groups = "\n".join(
        f"{title}:\n" + "".join(f"  {row.name:<10} {row.help}\n" for row in rows)
        for title, rows in GROUPS.items()
    )
    return (
        "usage: disttrace COMMAND ...\n\n"
        "Tracing for torch.distributed: what ranks did, in what order, and what they wait for.\n\n"
        f"{groups}\n"
        "`disttrace COMMAND --help` shows its options. DISTTRACE=1 switches tracing on.\n"
    )


def _unknown(name: str) -> str:
    near = project.nearest(name, [row.name for row in COMMANDS])
    hint = f"did you mean {near!r}?" if near else "`disttrace --help` lists the commands."
    return f"{name!r} is not a command; {hint}"


def _failed(error: BaseException) -> int:
    """A failure of ours is no verdict on a job, and has a code of its own."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # a full disk
        _drop_output()
    return _fail(_sentence(error), FAILED)


def _drop_output() -> None:
    """Have the interpreter's last flush succeed, which would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"disttrace: {message}\n")
    return code


def _sentence(error: BaseException) -> str:
    """What failed, where of ours, and what may put it right."""
    from disttrace import errors

    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f"{errors.plain(str(error.filename))}: " if error.filename else ""
        return f"cannot go on: {where}{error.strerror}."
    what = f"failed here: {errors.plain(errors.first_line(error))}{_place(error)}"
    return f"{what}; please report it, with the command and the output of `disttrace info`"


def _place(error: BaseException) -> str:
    """The innermost line of ours, which a report needs."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        for package in ("disttrace_viewer", "disttrace"):
            _, found, inside = code.co_filename.rpartition(f"/{package}/")
            if found:
                place = f" ({package}/{inside}:{traceback.tb_lineno})"
                break
        traceback = traceback.tb_next
    return place
