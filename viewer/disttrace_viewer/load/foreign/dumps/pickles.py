"""Reads a pickle of plain values without Python's own machine, which runs whatever a pickle asks.

torch's pickles hold dictionaries, lists, pairs, numbers, strings, and nothing else. So only the
opcodes for these are known here. Every other one (GLOBAL, REDUCE, BUILD, ...) is refused before
anything of it is looked at. A file that ends too early keeps what was complete by then.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MOST_MARKS = 16
"""Levels of lists and dictionaries within one another."""
MOST_TEXT = 64 << 10
"""Bytes of a string."""
MOST_VALUES = 4 << 20
"""Values on the stack at one time, and lists and dictionaries in all."""
_NAMES = {code.code.encode("latin-1"): code.name for code in pickletools.opcodes}


class Refused(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """What a pickle of plain values never holds; the text says what."""


class Torn(ValueError):  # noqa: N818
    """It ends too early."""


@dataclass(slots=True)
class Machine:
    """The stack of a pickle as far as it was read."""

    data: bytes
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    at: int = 0

    def run(self) -> Any:
        """The value. Raises Refused, and Torn where the data end before it does."""
        data, stack, containers = self.data, self.stack, 0
        while True:
            code = data[self.at : self.at + 1]
            if not code:
                raise Torn
            self.at += 1
            if code == b".":
                return self._pop()
            step = _STEPS.get(code)
            if step is None:
                raise Refused(f"asks for {_NAMES.get(code, 'an unknown opcode')}")
            step(self)
            containers += code in b"}]"
            if max(len(stack), containers) > MOST_VALUES:
                raise Refused("holds more values than any dump")

    def take(self, count: int) -> bytes:
        """The next bytes. Raises Torn where there are fewer."""
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise Torn
        self.at += count
        return found

    def number(self, layout: str) -> Any:
        """The next number."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, count: int) -> None:
        """Push the next string."""
        if count > MOST_TEXT:
            raise Refused(f"holds a string of {count:,} bytes")
        self.stack.append(self.take(count).decode("utf-8", "replace"))

    def mark(self) -> None:
        """Begin a sequence of values."""
        if len(self.marks) >= MOST_MARKS:
            raise Refused(f"is nested more than {MOST_MARKS} levels deep")
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """The values since the last mark, off the stack."""
        if not self.marks:
            raise Refused("is no pickle")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def last(self, count: int) -> list[Any]:
        """The last values, off the stack."""
        if len(self.stack) < count:
            raise Refused("is no pickle")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def extend(self, values: list[Any]) -> None:
        """Put values into the list below."""
        if not self.stack or type(self.stack[-1]) is not list:
            raise Refused("is no pickle")
        self.stack[-1].extend(values)

    def update(self, values: list[Any]) -> None:
        """Put keys and values into the dictionary below."""
        if not self.stack or type(self.stack[-1]) is not dict or len(values) % 2:
            raise Refused("is no pickle")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str:
                raise Refused("has keys that are no strings")
            self.stack[-1][key] = value

    def remember(self, place: int) -> None:
        """Keep the value on top under a number."""
        if not self.stack:
            raise Refused("is no pickle")
        self.memo[place] = self.stack[-1]

    def recall(self, place: int) -> None:
        """Push a value that was kept."""
        if place not in self.memo:
            raise Refused("is no pickle")
        self.stack.append(self.memo[place])

    def _pop(self) -> Any:
        return self.last(1)[0]


def _long(machine: Machine) -> None:
    count = machine.number("<B")
    machine.stack.append(int.from_bytes(machine.take(count), "little", signed=True))


_STEPS: dict[bytes, Callable[[Machine], object]] = {
    b"\x80": lambda m: m.take(1) and None,
    b"\x95": lambda m: m.take(8) and None,
    b"}": lambda m: m.stack.append({}),
    b"]": lambda m: m.stack.append([]),
    b")": lambda m: m.stack.append(()),
    b"(": Machine.mark,
    b"q": lambda m: m.remember(m.number("<B")),
    b"r": lambda m: m.remember(m.number("<I")),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"h": lambda m: m.recall(m.number("<B")),
    b"j": lambda m: m.recall(m.number("<I")),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"\x8a": _long,
    b"G": lambda m: m.stack.append(m.number(">d")),
    b"X": lambda m: m.text(m.number("<I")),
    b"\x8c": lambda m: m.text(m.number("<B")),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"N": lambda m: m.stack.append(None),
    b"\x85": lambda m: m.stack.append(tuple(m.last(1))),
    b"\x86": lambda m: m.stack.append(tuple(m.last(2))),
    b"\x87": lambda m: m.stack.append(tuple(m.last(3))),
    b"t": lambda m: m.stack.append(tuple(m.since_mark())),
    b"a": lambda m: m.extend(m.last(1)),
    b"e": lambda m: m.extend(m.since_mark()),
    b"s": lambda m: m.update(m.last(2)),
    b"u": lambda m: m.update(m.since_mark()),
}


def loads(data: bytes) -> Any:
    """The value of a pickle of plain values. Raises Refused or Torn."""
    return Machine(data).run()


def salvaged(data: bytes, inner: str) -> dict[str, Any]:
    """What a torn pickle of a dictionary held, as far as it was complete, with the complete
    dictionaries of the list under ``inner``. Raises Refused.
    """
    machine = Machine(data)
    try:
        value = machine.run()
        return value if isinstance(value, dict) else {}
    except Torn:
        pass
    stack = machine.stack
    if not stack or type(stack[0]) is not dict:
        return {}
    found = dict(stack[0])
    place = 1
    while place < len(stack) and type(stack[place]) is str:
        key = stack[place]
        value = stack[place + 1] if place + 1 < len(stack) else None
        if key == inner:
            of_list = value if type(value) is list else []
            rest = [one for one in stack[place + 2 :] if type(one) is dict and one]
            found[inner] = [*of_list, *rest]
            break
        if value is not None and place + 2 < len(stack):
            found[key] = value
        place += 2
    return found
