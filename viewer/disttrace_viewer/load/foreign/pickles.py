"""Reads a pickle of plain values, of which nothing is run.

torch's pickles hold dictionaries, lists, pairs, numbers and strings. Python's own reader is given
the opcodes for these and no other, so GLOBAL, REDUCE, BUILD, ... are refused before anything of
them is looked at. It is the reader in Python: the one in C allocates what ten bytes ask for (68 GB
by LONG_BINPUT), and reads ahead. A file that ends too early keeps what was complete by then.
"""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

_BROKEN = (pickle.PickleError, ValueError, LookupError, TypeError, AttributeError, struct.error)
MOST_TEXT = 64 << 10
"""Bytes of a string."""
MOST_VALUES = 4 << 20
"""Values that a reader comes to, beside as many as the file has bytes."""
MOST_READS = 4 * MOST_VALUES
"""Each opcode is one, and what it has with it another one or two."""
MOST_DEEP = 32
"""Values within one another, in whatever way they are put there."""
_LONG_TEXT = 8
"""Bits of the length of a text that counts as one value; of a longer one each such piece does."""
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_PLAIN = (
    "PROTO STOP MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 BINPUT MEMOIZE"
    " LONG_BINPUT BINGET LONG_BINGET BININT BININT1 BININT2 LONG1 BINFLOAT NEWTRUE NEWFALSE NONE"
    " APPEND APPENDS"
)


class Refused(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """What a pickle of plain values never holds; the text names it."""


class Torn(ValueError):  # noqa: N818
    """It ends too early."""


class _Bytes(io.BytesIO):
    """Those of a pickle: so many reads, each of so many bytes, bound what is made of them."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MOST_READS:
            raise Refused("holds more values than any dump")
        if size is None or not 0 <= size <= MOST_TEXT:
            raise Refused(f"holds a string of {size:,} bytes")
        data = super().read(size)
        if len(data) < size:
            raise Torn
        return data


class _Steps(dict[int, Callable[..., None]]):
    """What is done for each opcode."""

    def __missing__(self, code: int) -> NoReturn:
        raise Refused(f"asks for {_NAMES.get(code, 'an unknown opcode')}")


class _PlainUnpickler(pickle._Unpickler):
    """Python's own reader, with fewer opcodes."""

    stack: list[Any]
    metastack: list[list[Any]]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]
    dispatch: ClassVar[dict[int, Callable[..., None]]] = _Steps(
        (code, step)
        for code, step in pickle._Unpickler.dispatch.items()
        if _NAMES[code] in _PLAIN.split()
    )

    def value(self) -> Any:
        """The value. Raises Refused, and Torn where the data end before it does."""
        try:
            return self.load()
        except (Refused, Torn):
            raise
        except _BROKEN as error:
            raise Refused("is no pickle") from error

    def find_class(self, module: str, name: str) -> NoReturn:
        """Nothing is looked up by a name, whatever the opcodes above let through."""
        raise Refused(f"asks for {module}.{name}")

    def _text(self, layout: str) -> None:
        (count,) = struct.unpack(layout, self.read(struct.calcsize(layout)))
        self.stack.append(self.read(count).decode("utf-8", "replace"))

    def _set(self, items: list[Any]) -> None:
        if any(type(key) is not str for key in items[::2]):
            raise Refused("has keys that are no strings")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _set_one(self) -> None:
        value = self.stack.pop()
        self._set([self.stack.pop(), value])

    dispatch |= {
        pickle.FRAME[0]: lambda self: self.read(8),
        pickle.SHORT_BINUNICODE[0]: lambda self: self._text("<B"),
        pickle.BINUNICODE[0]: lambda self: self._text("<I"),
        pickle.SETITEM[0]: _set_one,
        pickle.SETITEMS[0]: lambda self: self._set(self.pop_mark()),
    }


def loads(data: bytes) -> Any:
    """The value of a pickle of plain values. Raises Refused or Torn."""
    return _spread(_PlainUnpickler(_Bytes(data)).value(), len(data))


def _spread(value: Any, size: int) -> Any:
    """``value``, unless it is too much where each part counts as often as something refers to it:
    of a list that a thousand others hold there is one here, and a thousand with whoever reads it.
    A value that is referred to once takes a byte of the file. Raises Refused."""
    left, within = size + MOST_VALUES, [iter((value,))]
    while within:
        for one in within[-1]:
            left -= 1
            if type(one) is str:
                left -= len(one) >> _LONG_TEXT
            elif type(one) in (dict, list, tuple):
                within.append(iter(one.values() if type(one) is dict else one))
                break
        else:
            within.pop()
        if left < 0:
            raise Refused("holds more values than any dump")
        if len(within) > MOST_DEEP:
            raise Refused(f"is nested more than {MOST_DEEP} levels deep")
    return value


def salvaged(data: bytes) -> dict[str, Any]:
    """What a torn pickle of a dictionary held, as far as it was complete, with the complete
    dictionaries of the list under ``entries``. Raises Refused.
    """
    reader = _PlainUnpickler(_Bytes(data))
    try:
        value = _spread(reader.value(), len(data))
        return value if isinstance(value, dict) else {}
    except Torn:
        stack = [*itertools.chain.from_iterable(reader.metastack), *reader.stack]
    if not stack or type(stack[0]) is not dict:
        return {}
    found = dict(stack[0])
    place = 1
    while place < len(stack) and type(stack[place]) is str:
        key = stack[place]
        value = stack[place + 1] if place + 1 < len(stack) else None
        if key == "entries":
            of_list = value if type(value) is list else []
            rest = [one for one in stack[place + 2 :] if type(one) is dict and one]
            found["entries"] = [*of_list, *rest]
            break
        if value is not None and place + 2 < len(stack):
            found[key] = value
        place += 2
    return _spread(found, len(data))  # type: ignore[no-any-return]
