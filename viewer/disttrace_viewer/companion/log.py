"""What the companion tells people: in a file, since the program's own output is not its own."""

from __future__ import annotations

import os

from disttrace_viewer.otlp.target import without_secrets


class Log:
    """Sentences for people, each once, in a file that is removed where it stayed empty."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Append a sentence; a full disk is no reason to stop."""
        sentence = without_secrets(sentence)
        if sentence not in self._said:
            self._said.add(sentence)
            try:
                os.write(self._fd, f"{sentence}\n".encode("utf-8", "replace"))
            except OSError:
                pass
