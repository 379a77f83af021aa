"""Numbers in text of unknown origin: addresses, variables, keys, errors."""

from __future__ import annotations

_MOST_DIGITS = 18
"""Less than 64 bits; ``int`` itself refuses texts of some thousands of digits."""


def whole(text: str) -> int | None:
    """The number that a text of ASCII digits is; None for every other text, and for huge ones.

    ``str.isdigit`` takes signs that ``int`` refuses, such as a superscript two.
    """
    is_one = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return int(text) if is_one else None
