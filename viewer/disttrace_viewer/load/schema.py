"""The types of a journal's records, checked once, where records come in: what follows can rely on
them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import orjson

import disttrace.journal.format as fmt
from disttrace_viewer.load.problems import plural
from disttrace_viewer.trace.plain_text import plain, shortened

Record = dict[str, Any]
T = TypeVar("T")
Check = Callable[["Checker", Any], Any]

LONGEST_ODD = 1 << 20
"""Bytes of a line that is worth a second look."""
MOST_RANKS = 1 << 22
"""Ranks that the ranges of one journal stand for, all together."""
DEEPEST = 8
"""Levels of a value that may hold any JSON."""

_SPAN = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.IGNORECASE)


class Wrong(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """A value is not what the format has."""


class Checker:
    """Checks the records of one journal, and counts what had to be left out or cut."""

    def __init__(self) -> None:
        self.wrong = self.cut = self.members = 0
        self.first_wrong = self.first_cut = ""
        self._where = ""

    def record(self, kind: str, record: Mapping[str, Any]) -> Record | None:
        """The known fields of a record of that kind (or first key); None if one is wrong."""
        before = self.wrong
        found = self.fields(kind, record, strict=True)
        if self.wrong > before:
            return None
        for key in fmt.NEEDED.get(kind, ()):
            if key not in found:
                self._where = key
                self._count_wrong(kind)
                return None
        return found

    def fields(self, kind: str, record: Mapping[str, Any], *, strict: bool = False) -> Record:
        """As ``record``, but only wrong fields are left out; ``strict``: and all after the first
        one."""
        found: Record = {}
        fields = _FIELDS[kind]
        for key, value in record.items():
            check = fields.get(key)
            if check is not None and value is not None:
                self._where = key
                try:
                    found[key] = check(self, value)
                except Wrong:
                    self._count_wrong(kind)
                    if strict:
                        break
        return found

    def value(self, type_: str, value: object) -> Any:
        """One value of a type of the format. Raises Wrong."""
        self._where = type_
        return _CHECKS[type_](self, value)

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Kind and text of the journal's problems."""
        if self.wrong:
            what = f"{plural(self.wrong, 'record')} with values that the format does not allow"
            yield "wrong values", f"{what} (first: {self.first_wrong}); the others were used."
        if self.cut:
            what = f"{plural(self.cut, 'value')} too long or too large (first: {self.first_cut})"
            yield "cut values", f"{what}; read shortened, or as unknown."

    def _count_wrong(self, kind: str) -> None:
        self.wrong += 1
        named = f"a {kind}" if kind in fmt.FIELDS and len(kind) > 3 else f'a "{kind}"'
        self.first_wrong = self.first_wrong or f"{self._where} of {named} record"

    def limited(self, what: str) -> None:
        """Count a value that was cut."""
        self.cut += 1
        self.first_cut = self.first_cut or f"{self._where}, {what}"


def number(low: int = 0, high: int = (1 << 63) - 1) -> Check:
    """A whole number within these bounds."""

    def check(_checker: Checker, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Wrong
        return value

    return check


def _text(most: int) -> Check:
    def check(checker: Checker, value: Any) -> str:
        if type(value) is not str:
            raise Wrong
        if len(value) > most:
            checker.limited(f"{len(value):,} characters")
            value = shortened(value, most)
        return value if value.isprintable() else plain(value)

    return check


def typed(kind: type[T], value: Any) -> T:
    """A value of this type, none of a class below it. Raises Wrong."""
    if type(value) is not kind:
        raise Wrong
    return value


def one_of(*values: Any) -> Check:
    """One of these."""

    def check(_checker: Checker, value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            raise Wrong
        return value

    return check


def _word(_checker: Checker, value: Any) -> str:
    """Of dtypes and reductions: whatever a torch calls them, it is no text."""
    if type(value) is not str or len(value) > 64 or not value.isascii() or not value.isidentifier():
        raise Wrong
    return value


def _size(checker: Checker, value: Any) -> int | None:
    if type(value) is not int or value < 0:
        raise Wrong
    if value > fmt.MOST_MEMBERS:
        checker.limited(f"{value:,} members" if value < 1 << 64 else "a number of many digits")
        return None
    return value


def list_of(inner: Check, most: int = sys.maxsize) -> Check:
    """At most so many of these."""

    def check(checker: Checker, value: Any) -> list[Any]:
        if type(value) is not list or len(value) > most:
            raise Wrong
        return [inner(checker, item) for item in value]

    return check


def maybe(inner: Check) -> Check:
    """That, or nothing."""
    return lambda checker, value: None if value is None else inner(checker, value)


def _ranks(checker: Checker, value: Any) -> tuple[int, ...] | None:
    """The ranks that numbers and ranges stand for; equal lists are one object."""
    if type(value) is list:
        checker.members += sum(_length(part) for part in value if type(part) is dict)
        if checker.members > MOST_RANKS:
            checker.limited(f"ranges of more than {MOST_RANKS:,} ranks in one journal")
            return None
    ranks = fmt.ranks_of(value)
    if ranks is None:
        raise Wrong
    return ranks


def numbers(low: int, high: int, most: int = sys.maxsize) -> Check:
    """At most so many whole numbers within these bounds."""

    def check(_checker: Checker, value: Any) -> list[int]:
        found: list[int] = typed(list, value)
        if len(found) > most or not set(map(type, found)) <= {int}:
            raise Wrong
        if found and not low <= min(found) <= max(found) <= high:
            raise Wrong
        return found

    return check


_numbers = numbers(*fmt.BOUNDS["integer"])


def _length(part: dict[str, Any]) -> int:
    """About how many ranks a range stands for: sixty bytes may mean a million."""
    first: Any = part.get("from")
    last: Any = part.get("to")
    step: Any = part.get("step", 1)
    if not type(first) is type(last) is type(step) is int:
        raise Wrong
    return abs(last - first) // max(1, abs(step))


def _map(checker: Checker, value: Any) -> dict[str, str]:
    name, text = _CHECKS["name"], _CHECKS["text"]
    # A backend without a version is null.
    return {
        name(checker, k): text(checker, v) for k, v in typed(dict, value).items() if v is not None
    }


def _frames(checker: Checker, value: Any) -> list[list[int]]:
    frames: list[list[int]] = typed(list, value)
    for frame in frames:
        _numbers(checker, frame)
        if len(frame) != 3 or not 0 <= frame[1] < 1 << 31:
            raise Wrong
    return frames


def _json(checker: Checker, value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise Wrong
    if isinstance(value, str):
        return _CHECKS["text"](checker, value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        checker.limited("a number beyond 64 bits")
        return None
    if isinstance(value, list):
        return [_json(checker, item, depth + 1) for item in value]
    if isinstance(value, dict):
        name = _CHECKS["name"]
        return {name(checker, k): _json(checker, v, depth + 1) for k, v in value.items()}
    return value


def _object(checker: Checker, value: Any) -> dict[str, Any]:
    return _json(checker, typed(dict, value))  # type: ignore[no-any-return]


def _keys(checker: Checker, value: Any) -> str | list[str]:
    key = _CHECKS["key"]
    found: str | list[str] = (
        [key(checker, item) for item in value] if type(value) is list else key(checker, value)
    )
    return found


def _call(checker: Checker, value: Any) -> Record:
    fields = _FIELDS["call"]
    return {
        key: fields[key](checker, item)
        for key, item in typed(dict, value).items()
        if key in fields and item is not None
    }


def _span(_checker: Checker, value: Any) -> str:
    if type(value) is not str or _SPAN.fullmatch(value) is None:
        raise Wrong
    return value


_CHECKS: dict[str, Check] = {
    **{name: number(*bounds) for name, bounds in fmt.BOUNDS.items()},
    **{name: _text(most) for name, most in fmt.LONGEST.items()},
    **{name: one_of(*words) for name, words in fmt.CLOSED.items()},
    "flag": one_of(True, False), "word": _word, "words": list_of(_word), "size": _size,
    "names": list_of(_text(fmt.LONGEST["name"])), "texts": list_of(_text(fmt.LONGEST["text"])),
    "prefixes": list_of(maybe(_text(fmt.LONGEST["key"]))), "keys": _keys, "map": _map,
    "ranks": _ranks, "shapes": list_of(_numbers), "frames": _frames, "json": _json,
    "object": _object, "call": _call, "span": _span,
}  # fmt: skip
_FIELDS: dict[str, dict[str, Check]] = {
    kind: {key: _CHECKS[type_] for key, type_ in fields.items()}
    for kind, fields in fmt.FIELDS.items()
}


def json_object(line: bytes | str) -> dict[str, Any] | None:
    """The object in a line; None for what is none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = _odd_json(line)
    return value if isinstance(value, dict) else None


def _odd_json(line: bytes | str) -> object:
    """JSON that orjson refuses: huge numbers, halves of surrogate pairs of odd file names."""
    if len(line) > LONGEST_ODD:
        return None
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value
