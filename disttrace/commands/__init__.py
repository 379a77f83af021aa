"""The commands: each a module with `add_arguments(parser)` and `execute(arguments) -> code`."""

from __future__ import annotations


class CommandError(Exception):
    """A user's mistake: text for stderr, and a code. Commands elsewhere raise any ``exit_code``."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
