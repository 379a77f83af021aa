"""Masks what looks like a secret, before it is written."""

from __future__ import annotations

import re

_SECRET = re.compile(r"token|key|secret|passw", re.IGNORECASE)


def masked(argv: list[str]) -> list[str]:
    """``argv`` with the values of arguments that look like secrets replaced by ``***``."""
    result: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            result.append("***")
            hide_next = False
            continue
        secret = argument.startswith("-") and bool(_SECRET.search(name))
        secret = secret or (bool(equals) and bool(_SECRET.search(name)))
        result.append(f"{name}=***" if secret and equals else argument)
        hide_next = secret and not equals
    return result
