"""What stands for a word that a program chose, where it is to be compared and not read."""

from __future__ import annotations

import hashlib

_MARK = "~"


def hidden(word: str) -> str:
    """What stands for a word; numbers, which tell nothing, stand for themselves."""
    if word.isdecimal() or word.startswith(_MARK) or not word:
        return word
    digest = hashlib.sha256(b"disttrace word\0" + word.encode("utf-8", "replace")).hexdigest()
    return _MARK + digest[:16]
