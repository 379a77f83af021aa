"""The one exception for what a user can put right; it carries the exit code."""

from __future__ import annotations


class ViewerError(Exception):
    """A sentence for the user, and the exit code (2: nothing could be read)."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
