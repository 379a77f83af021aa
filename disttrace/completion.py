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
    commands = {
        row.name: [one for one in parser_of(row)._actions if one.option_strings] for row in COMMANDS
    }
    script = "\n".join(_fish(commands)) + "\n" if arguments.shell == "fish" else _bash(commands)
    if arguments.shell == "zsh":  # through its own emulation of bash
        script = f"autoload -U +X bashcompinit && bashcompinit\n{script}"
    sys.stdout.write(script)
    return 0


_BASH = """\
_disttrace() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="@COMMANDS --help --version"
  else
    case "${COMP_WORDS[1]} $before" in
@CHOICES
      *)
        case "${COMP_WORDS[1]}" in
@OPTIONS
        esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _disttrace disttrace
"""


def _bash(commands: Mapping[str, Sequence[argparse.Action]]) -> str:
    choices, options = [], []
    for name, actions in commands.items():
        words = [spelled for one in actions for spelled in one.option_strings]
        words += SHELLS if name == "completion" else ()
        options.append(f'          {name}) words="{" ".join(words)}" ;;')
        choices += [
            f'      "{name} {spelled}") words="{" ".join(map(str, one.choices))}" ;;'
            for one in actions
            if one.choices
            for spelled in one.option_strings
        ]
    script = _BASH.replace("@COMMANDS", " ".join(commands))
    return script.replace("@CHOICES", "\n".join(choices)).replace("@OPTIONS", "\n".join(options))


def _fish(commands: Mapping[str, Sequence[argparse.Action]]) -> Iterator[str]:
    begin = "complete -c disttrace -n"
    for row in COMMANDS:
        yield f"{begin} __fish_use_subcommand -a {row.name} -d '{row.help}'"
    for name, actions in commands.items():
        for one in actions:
            spelled = " ".join(
                f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in one.option_strings
            )
            choices = f" -x -a '{' '.join(map(str, one.choices))}'" if one.choices else ""
            told = (one.help or "").split(" (")[0].replace("'", "")
            yield f"{begin} '__fish_seen_subcommand_from {name}' {spelled}{choices} -d '{told}'"
    yield f"{begin} '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'"
