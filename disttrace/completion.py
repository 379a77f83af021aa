"""`disttrace completion SHELL`: a script that completes commands, options and folders.

The script holds all names, so that pressing the tab key starts no interpreter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

from disttrace.cli import COMMANDS, parser_of

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.epilog = (
        'bash, zsh: put `eval "$(disttrace completion SHELL)"` into ~/.bashrc or ~/.zshrc. '
        "fish: `disttrace completion fish > ~/.config/fish/completions/disttrace.fish`."
    )


def execute(arguments: argparse.Namespace) -> int:
    """Write the script to stdout; always 0."""
    options = {
        row.name: [_Option(action) for action in parser_of(row)._actions if action.option_strings]
        for row in COMMANDS
    }
    lines = _fish(options) if arguments.shell == "fish" else _bash(options, arguments.shell)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


class _Option:
    """An option with what may follow it."""

    def __init__(self, action: argparse.Action) -> None:
        self.names = action.option_strings
        self.help = (action.help or "").split(" (")[0].replace("'", "")
        self.choices = [str(choice) for choice in action.choices or ()]


def _bash(commands: Mapping[str, Sequence[_Option]], shell: str) -> Iterator[str]:
    """For bash, and for zsh through its own emulation."""
    if shell == "zsh":
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_disttrace() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'    words="{" ".join(commands)} --help --version"'
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $before" in'
    for name, options in commands.items():
        for option in options:
            for spelled in option.names:
                if option.choices:
                    yield f'      "{name} {spelled}") words="{" ".join(option.choices)}" ;;'
    yield "      *)"
    yield '        case "${COMP_WORDS[1]}" in'
    for name, options in commands.items():
        words = [spelled for option in options for spelled in option.names]
        if name == "completion":
            words += SHELLS
        yield f'          {name}) words="{" ".join(words)}" ;;'
    yield "        esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _disttrace disttrace"


def _fish(commands: Mapping[str, Sequence[_Option]]) -> Iterator[str]:
    for row in COMMANDS:
        yield f"complete -c disttrace -n __fish_use_subcommand -a {row.name} -d '{row.help}'"
    for name, options in commands.items():
        for option in options:
            spelled = " ".join(
                f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names
            )
            choices = f" -x -a '{' '.join(option.choices)}'" if option.choices else ""
            yield (
                f"complete -c disttrace -n '__fish_seen_subcommand_from {name}' {spelled}{choices}"
                f" -d '{option.help}'"
            )
    yield (
        "complete -c disttrace -n '__fish_seen_subcommand_from completion'"
        f" -f -a '{' '.join(SHELLS)}'"
    )
