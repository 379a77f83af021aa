"""Text of unknown origin made harmless: it is shown and never obeyed."""

from __future__ import annotations

import hashlib
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
"""Unicode's categories of what cannot be seen: controls, formats, separators, surrogates."""
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class _Shown(dict[int, str]):
    """A table for ``str.translate`` that fills itself."""

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        if unicodedata.category(sign) in _HIDDEN:
            width = "x%02x" if code < 0x100 else "u%04x" if code < 0x10000 else "U%08x"
            shown = _NAMED.get(sign) or "\\" + width % code
        else:
            shown = sign
        self[code] = shown
        return shown


_SHOWN = _Shown()


def plain(text: str) -> str:
    r"""The text with ``\x1b`` and the like in the place of every sign that cannot be seen."""
    return text if text.isprintable() else text.translate(_SHOWN)


def shortened(text: str, most: int) -> str:
    """At most about ``most`` characters; two texts that differ are two texts also when cut."""
    if len(text) <= most:
        return text
    mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    tail = f"... ({len(text):,} characters, {mark})"
    return text[: most - len(tail)] + tail


_MOST_DIGITS = 18
"""Less than 64 bits; ``int`` itself refuses texts of some thousands of digits."""


def whole(text: str) -> int | None:
    """The number that up to 18 ASCII digits are; None for other texts, and other digits."""
    is_one = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_one else None


def numbers(text: str) -> list[int]:
    """The ranks of ``0, 2-4``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal() and len(first) < 8 > len(last):
            found += range(int(first), min(int(last or first), int(first) + 4096) + 1)
    return found
