"""The manual page `disttrace(1)`, from the parsers of the commands and the table of settings.

A build calls it (`hatch_build.py`); as a program it prints the page. argparse-manpage writes it;
where that is not at hand, a wheel has no manual page, and nothing else is missing.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
EXIT_STATUS = (
    ("0", "Nothing is wrong."),
    ("1", "An error or a warning was found (diagnose, check, attach)."),
    ("2", "Nothing could be read, or the command line was wrong."),
    ("70", "disttrace itself failed."),
)


def page() -> str | None:
    """The page in roff, or None without argparse-manpage."""
    try:
        manpage = importlib.import_module("argparse_manpage.manpage")
    except ImportError:
        return None
    for folder in (str(ROOT), str(ROOT / "viewer")):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    from disttrace._version import __version__
    from disttrace.cli import COMMANDS, parser_of
    from disttrace.config import SETTINGS

    parser = argparse.ArgumentParser(
        prog="disttrace",
        description="Tells what every rank of a torch.distributed program did, in what order, and"
        " who waits for whom. Tracing is switched on by DISTTRACE=1 in the program's environment.",
        add_help=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for row in COMMANDS:
        own = parser_of(row)
        commands.add_parser(
            row.name,
            parents=[own],
            add_help=False,
            help=f"{row.help[0].upper()}{row.help[1:]}.",
            usage=own.usage,
            formatter_class=_unwrapped,
        )
    data: dict[str, Any] = {
        "project_name": "disttrace",
        "version": __version__,
        "description": "tracing for torch.distributed",
        "manual_title": "disttrace",
        "url": "https://github.com/disttrace/disttrace",
    }
    manual = manpage.Manpage(parser, _data=data, format="single-commands-section")
    manual.add_section("environment", ">", _list((row.variable, row.help) for row in SETTINGS))
    manual.add_section("exit status", ">", _list(EXIT_STATUS))
    return str(manual)


def _unwrapped(prog: str) -> argparse.HelpFormatter:
    """Lines as long as they are: man wraps them."""
    return argparse.HelpFormatter(prog, width=10_000)


def _list(rows: Any) -> str:
    return "\n".join(f".TP\n.B {_plain(name)}\n{_plain(text)}" for name, text in rows)


def _plain(text: str) -> str:
    """Text of which roff takes nothing for its own."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").lstrip(".'")


if __name__ == "__main__":
    sys.stdout.write(page() or sys.exit("argparse-manpage is not installed"))
