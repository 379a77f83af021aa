"""Messages between companions: a short head of JSON and a body of bytes, behind their lengths.

What arrives may be anybody's. Lengths are looked at before anything is kept, and whatever is wrong
is one exception, by which one conversation ends and no more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

MOST_HEAD = 12 << 10
_LENGTHS = struct.Struct("!II")


class Garbled(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """Bytes of somebody who does not speak as we do; the text completes a sentence."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one says to another."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def number(self, name: str) -> int:
        """A whole number from 0 to 2**53. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 53:
            raise Garbled(f"{name} is no number")
        return value

    def text(self, name: str, most: int = 256) -> str:
        """A text of at most so many characters. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise Garbled(f"{name} is no text")
        return value

    def flag(self, name: str) -> bool:
        """True where it is there and true."""
        return self.fields.get(name) is True

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most so many values. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise Garbled(f"{name} is no list")
        return value


def to_bytes(message: Message) -> bytes:
    """A message as it travels."""
    head = orjson.dumps({"is": message.kind, **message.fields})
    return _LENGTHS.pack(len(head), len(message.body)) + head + message.body


def length(data: bytes | bytearray, most_body: int) -> int | None:
    """Bytes of the message with which ``data`` begins; None: too few to tell. Raises Garbled."""
    if len(data) < _LENGTHS.size:
        return None
    head, body = _LENGTHS.unpack_from(data)
    if head > MOST_HEAD or body > most_body:
        raise Garbled(f"a message of {head} and {body} bytes is too long")
    return int(_LENGTHS.size + head + body)


def from_bytes(data: bytes) -> Message:
    """The message of all these bytes. Raises Garbled."""
    size, _ = _LENGTHS.unpack_from(data)
    at = _LENGTHS.size + size
    try:
        head = orjson.loads(data[_LENGTHS.size : at])
    except orjson.JSONDecodeError as error:
        raise Garbled("no JSON") from error
    kind = head.pop("is", None) if isinstance(head, dict) else None
    if not isinstance(kind, str):
        raise Garbled("a message without a kind")
    return Message(kind, head, data[at:])
