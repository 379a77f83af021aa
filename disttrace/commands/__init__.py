"""The commands: each a module with `add_arguments(parser)` and `execute(arguments) -> code`."""

from __future__ import annotations


class CommandError(Exception):
    """A user's mistake or a circumstance: its text goes to stderr, its code to the shell.

    Commands that live outside this package raise any exception with an int `exit_code` instead.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
