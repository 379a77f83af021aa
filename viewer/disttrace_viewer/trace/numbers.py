"""Numbers in text of unknown origin: addresses, variables, keys, errors."""

from __future__ import annotations

_MOST_DIGITS = 18
"""Less than 64 bits; ``int`` itself refuses texts of some thousands of digits."""


def whole(text: str) -> int | None:
    """The number that a text of ASCII digits is; None for every other text, and for huge ones.

    ``int`` takes digits of other scripts too; others than decimal ones it refuses.
    """
    is_one = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_one else None
