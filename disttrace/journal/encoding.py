"""Values as JSON, in one line.

By Python itself: where memory ends it raises MemoryError, and no module that the program may have
put in a library's place is loaded. The standard library's encoder turns integers into text inside
of C, where a signal's handler may raise: since Python 3.14 it writes a note into that exception,
which is the program's and need not take one.
"""

from __future__ import annotations

import json.encoder
from typing import Any

from disttrace import foreign

_encoder: Any = json.encoder
_quote = _encoder.encode_basestring  # C's alone
_WORDS = {None: "null", True: "true", False: "false"}


def _text(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, str):
        return str(_quote(value))
    if value is None or kind is bool:
        return _WORDS[value]
    if issubclass(kind, int):
        return int.__repr__(value)
    if issubclass(kind, float):
        text = float.__repr__(value)
        return "null" if "n" in text else text  # NaN, infinities
    if issubclass(kind, dict):
        pairs = [
            f"{_quote(k if type(k) is str else _text(k))}:{_text(v)}" for k, v in value.items()
        ]
        return "{" + ",".join(pairs) + "}"
    if issubclass(kind, (list, tuple)):
        return "[" + ",".join([_text(item) for item in value]) + "]"
    return str(_quote(foreign.type_name(value)))  # a date and the like


def encode(value: Any) -> bytes:
    """``value`` as one line of JSON; of what JSON has no form for the name of its class."""
    return _text(value).encode("utf-8", "backslashreplace")  # lone surrogates: as JSON has them


def json_text(text: Any) -> bytes:
    """``text`` as a JSON value for the ``extra`` of a begin record, without lone surrogates."""
    return _text(text).encode("utf-8", "replace")
