"""Values as JSON, in one line.

By the standard library's encoder, which is C too: where memory ends it raises MemoryError. orjson
is faster, but crashes the process there or returns in spite of it, so it only gets what the other
has no form for.
"""

from __future__ import annotations

import json.encoder
from typing import Any

from disttrace.foreign import ours
from disttrace.journal.compiled import orjson


def _refuse(value: Any) -> Any:
    raise TypeError


_encoder: Any = json.encoder
# The encoder alone: no function in Python that the program replaces, or dynamo looks at.
_pieces = _encoder.c_make_encoder(
    None, _refuse, _encoder.encode_basestring, None, ":", ",", False, False, False
)


def _text(value: Any) -> str:
    return "".join(_pieces(value, 0))


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
