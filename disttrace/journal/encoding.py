"""Values as JSON, in one line.

By Python itself: where memory ends it raises MemoryError. orjson is faster, but crashes the process
there or returns in spite of it, so it only gets what has no form here. The standard library's
encoder turns integers into text inside of C, where a signal's handler may raise: since Python 3.14
it writes a note into that exception, which is the program's and need not take one.
"""

from __future__ import annotations

import json.encoder
from typing import Any

from disttrace.foreign import ours
from disttrace.journal.compiled import orjson

_encoder: Any = json.encoder
_quote = _encoder.encode_basestring  # C's alone
_WORDS = {None: "null", True: "true", False: "false"}


def _text(value: Any) -> str:
    """Raises TypeError where there is no form."""
    kind = type(value)
    if issubclass(kind, str):
        return str(_quote(value))
    if value is None or kind is bool:
        return _WORDS[value]
    if issubclass(kind, int):
        return int.__repr__(value)
    if issubclass(kind, float) and value - value == 0:
        return float.__repr__(value)
    if issubclass(kind, dict):
        return "{" + ",".join([f"{_quote(k)}:{_text(v)}" for k, v in value.items()]) + "}"
    if issubclass(kind, (list, tuple)):
        return "[" + ",".join([_text(item) for item in value]) + "]"
    raise TypeError


def encode(value: Any) -> bytes:
    """``value`` as one line of JSON; what JSON has no form for becomes its ``repr``."""
    try:
        return _text(value).encode()
    except ours(TypeError, ValueError):  # dates and the like, NaN, lone surrogates
        pass
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
    except ours(TypeError):  # lone surrogates (undecodable file names), integers beyond 64 bits
        return json.dumps(value, default=repr).encode()


def json_text(text: Any) -> bytes:
    """``text`` as a JSON value for the ``extra`` of a begin record."""
    try:
        return _text(text).encode()
    except ours(TypeError, ValueError):
        pass
    try:
        return orjson.dumps(text)
    except ours(TypeError):  # lone surrogates
        return orjson.dumps(str(text).encode("utf-8", "replace").decode())
