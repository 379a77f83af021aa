"""The forms of what hosts send each other: all of a value is checked, as records of journals are.

It may be from any program. Whatever is wrong with a value is one exception, and costs only its
sender; texts are made harmless for a terminal as everywhere else.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

from disttrace_viewer.load import schema
from disttrace_viewer.load.definitions import LISTED
from disttrace_viewer.load.schema import Check, Checker, Wrong, maybe, number, numbers, one_of
from disttrace_viewer.states.state import MOST_BYTES, OpRow, State, checked, inflated

WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""What reading a stranger's JSON by a form may raise."""
_MOST_ROWS = 4_096
_MOST_NUMBER = (1 << 63) - 1


def packed(value: Any) -> bytes:
    """A value of JSON as it is sent."""
    return zlib.compress(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), 6)


def opened(data: bytes, form: Check) -> Any | None:
    """The value that was sent; None where it is not of its form."""
    try:
        return value_of(inflated(data), form)
    except WRONG:
        return None


def value_of(data: bytes, form: Check) -> Any:
    """The value in some JSON, as its form has it. Raises ``WRONG``."""
    return form(Checker(), orjson.loads(data))


def rows(form: Check, most: int = _MOST_ROWS) -> Check:
    """At most so many of these."""
    return schema.list_of(form, most)


def text(kind: str) -> Check:
    """A text as the journal's format has one of this kind."""
    return lambda checker, value: checker.value(kind, value)


def word(most: int, *, least: int = 0) -> Check:
    """A text of so many characters, as it is."""

    def check(_checker: Checker, value: Any) -> str:
        if type(value) is not str or not least <= len(value) <= most:
            raise Wrong("a word")
        return value

    return check


def row(*forms: Check) -> Check:
    """One of each, in this order."""
    return lambda checker, value: [
        form(checker, one) for form, one in zip(forms, _rows(value, len(forms)), strict=True)
    ]


def table(key: Check, form: Check) -> Check:
    """Values by key."""

    def check(checker: Checker, value: Any) -> dict[Any, Any]:
        pairs = _rows([*schema.typed(dict, value).items()], _MOST_ROWS)
        return {key(checker, name): form(checker, one) for name, one in pairs}

    return check


def fields(**forms: Check) -> Check:
    """A value for each of these names, whatever else there is."""
    return lambda checker, value: {
        name: form(checker, schema.typed(dict, value)[name]) for name, form in forms.items()
    }


def _rows(value: Any, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise Wrong("a list")
    return value


# -- the state of a process --------------------------------------------------------------------


def _record(kind: str) -> Check:
    def check(checker: Checker, value: Any) -> dict[str, Any]:
        found = checker.record(kind, schema.typed(dict, value))
        if found is None:
            raise Wrong(kind)
        return found

    return check


def _numbered(kind: str) -> Check:
    """Definitions by number; ranks of groups as ranges, for a hundred thousand may be."""

    def check(checker: Checker, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = _record(kind)(checker, {**schema.typed(dict, value), "n": 0})
        del found["n"]
        if kind == "group" and found.get("ranks") is not None:
            names = ("from", "to", "step")
            found["ranks"] = [
                {k: one.get(k, 1) for k in names} if type(one) is dict else one
                for one in value["ranks"]
            ]
        return found

    return table(_N, check)


def _listed(checker: Checker, value: Any) -> dict[str, Any]:
    known = {kind: found for kind, found in schema.typed(dict, value).items() if kind in LISTED}
    return {kind: rows(_record(kind))(checker, found) for kind, found in known.items()}


def _op(checker: Checker, value: Any) -> list[Any]:
    if not len(_rows(value, OpRow.COUNT)) > OpRow.T:
        raise Wrong("a row")
    return [form(checker, one) for form, one in zip(_OP, value, strict=False)]


def _process(checker: Checker, value: Any) -> dict[str, Any]:
    found = checker.fields("process", schema.typed(dict, value))
    # What a newer version tells of a process's identity is compared and never used otherwise.
    return {**{k: v for k, v in value.items() if type(v) is int and k not in found}, **found}


def _course(checker: Checker, value: Any) -> list[Any]:
    """Of a stream of collectives: its calls, and the number of the first of them or none."""
    return [
        *row(_N, maybe(_NAME), maybe(word(MOST_BYTES)))(checker, value[:3]),
        *numbers(0, _MOST_NUMBER, 1)(checker, value[3:]),
    ]


_N, _NAME, _ROW, _SIGNED = number(), text("name"), number(-(1 << 31)), number(-(1 << 63))
_OP = [_ROW] * (OpRow.T + 1) + [maybe(_ROW)] * (OpRow.COUNT - OpRow.T - 1)
_OP[OpRow.KEY] = maybe(text("keys"))
_FRAME = row(text("text"), _N, _NAME)
_PAIRS = rows(row(_N, _N))
_STATE: dict[str, Check] = {
    **dict.fromkeys(("modified_ns", "head_t", "read", "size", "count", "last_t"), _N),
    "id": text("id"),
    "base": text("text"),
    "named": table(lambda _, name: name, _NAME),
    "process": _process,
    "identity": _record("identity"),
    "versions": _record("versions"),
    "listed": _listed,
    "ops": rows(_op),
    "longest": _PAIRS,
    "active": _PAIRS,
    "queues": rows(row(_N, text("key"), _N, _N)),
    "courses": rows(row(_N, maybe(_NAME), _N, _N, _N)),
    "met": rows(
        row(
            one_of(None, "send", "recv"),
            _N,
            lambda checker, of: (_NAME if type(of) is str else maybe(_SIGNED))(checker, of),
            maybe(_SIGNED),
            rows(row(_N, _N, _N)),
        )
    ),
    "beat": maybe(_N),
    "stands": rows(numbers(0, _MOST_NUMBER, _MOST_ROWS)),
    "history": maybe(rows(_course)),
}
_DEFINED: dict[str, Check] = {
    "string": table(_N, text("text")),
    "stack": table(_N, rows(_FRAME)),
    **{kind: _numbered(kind) for kind in ("thread", "store", "group", "call")},
}


def state(_checker: Checker, value: Any) -> State:
    """A state whose every value is as it should be; what of it names files is left out."""
    checker = Checker()  # which bounds the ranks of one process's groups together
    found, nothing = checked(value), dict[str, Any]()
    of = {name: form(checker, getattr(found, name)) for name, form in _STATE.items()}
    known = schema.typed(dict, found.numbered)
    of["numbered"] = {
        kind: form(checker, known.get(kind, nothing)) for kind, form in _DEFINED.items()
    }
    if of["process"].get("process", of["id"]) != of["id"] or any(len(s) < 3 for s in of["stands"]):
        raise Wrong("a state")
    return State(**of, problems=[])
