"""Whether what came over a network is a state: all of it is checked, as records of journals are.

A state made by another host may be from any program. Whatever is wrong with one is one exception,
and costs only that one; texts are made harmless for a terminal as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from disttrace_viewer.load.definitions import LISTED
from disttrace_viewer.load.schema import Checker, Wrong
from disttrace_viewer.states.state import OpRow, State, StateError, checked

_MOST_ROWS = 4_096
_TIMES = ("modified_ns", "head_t", "segment", "read", "size", "count", "last_t")
_NUMBERED = ("thread", "store", "group", "call")


def sound(value: object) -> State:
    """A state whose every value is as it should be. Raises StateError."""
    state = checked(value)
    try:
        return _Sound(Checker()).state(state)
    except (Wrong, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise StateError(f"is no state of a process ({type(error).__name__}: {error})") from error
    except RecursionError as error:
        raise StateError("is no state of a process (too deep)") from error


class _Sound:
    def __init__(self, checker: Checker) -> None:
        self._checker = checker

    def state(self, state: State) -> State:
        process = self._checker.fields("process", _table(state.process))
        # What a newer version tells of a process's identity is compared and never used otherwise.
        extra = {k: v for k, v in state.process.items() if type(v) is int and k not in process}
        if process.get("process", state.id) != state.id:
            raise Wrong("a process with two ids")
        numbered = _table(state.numbered)
        built = _table(orjson.loads(self._text("text_of_json", state.built)))
        rebuilt = {
            "ops": [self._row(row) for row in _rows(built["ops"])],
            "call": self._records(built, "call"),
            "store": self._records(built, "store"),
        }
        history = state.history
        times: dict[str, Any] = {name: self._number(getattr(state, name)) for name in _TIMES}
        return State(
            **times,
            format=state.format if type(state.format) is int else None,
            id=self._text("id", state.id),
            base=self._text("text", state.base),
            named={k: self._text("name", v) for k, v in _table(state.named).items()},
            process={**extra, **process},
            identity=self._record("identity", state.identity),
            versions=self._record("versions", state.versions),
            listed={
                kind: [self._record(kind, one) for one in _rows(found)]
                for kind, found in _table(state.listed).items()
                if kind in LISTED
            },
            numbered={
                "string": self._numbered(numbered, "string", lambda v: self._text("text", v)),
                "stack": self._numbered(numbered, "stack", self._frames),
                **{kind: self._records(numbered, kind) for kind in _NUMBERED},
            },
            ops=[self._row(row) for row in _rows(state.ops)],
            built=orjson.dumps(rebuilt, option=orjson.OPT_NON_STR_KEYS).decode(),
            unsettled=state.unsettled is True,
            made=self._number(state.made, -(1 << 63)),
            longest=[self._numbers(row, 2) for row in _rows(state.longest)],
            active=[self._numbers(row, 2) for row in _rows(state.active)],
            queues=[self._queue(row) for row in _rows(state.queues)],
            courses=[self._course(row) for row in _rows(state.courses)],
            met=[self._meeting(row) for row in _rows(state.met)],
            beat=None if state.beat is None else self._number(state.beat),
            stands=[self._numbers(row, len(_rows(row)[3:]) + 3) for row in _rows(state.stands)],
            history=None if history is None else [self._history(row) for row in _rows(history)],
            problems=[],
        )

    def _record(self, kind: str, value: Any) -> dict[str, Any]:
        found = self._checker.record(kind, _table(value))
        if found is None:
            raise Wrong(kind)
        return found

    def _records(self, tables: dict[str, Any], kind: str) -> dict[int, Any]:
        def record(value: Any, number: int) -> dict[str, Any]:
            found = self._record(kind, {**_table(value), "n": number})
            del found["n"]
            if kind == "group" and found.get("ranks") is not None:
                found["ranks"] = ranges(value["ranks"])  # a hundred thousand may be
            return found

        rows = _rows([*_table(tables.get(kind, {})).items()])
        return {(n := self._index(number)): record(value, n) for number, value in rows}

    def _numbered(
        self, tables: dict[str, Any], kind: str, check: Callable[[Any], Any]
    ) -> dict[int, Any]:
        rows = _rows([*_table(tables.get(kind, {})).items()])
        return {self._index(number): check(value) for number, value in rows}

    def _index(self, text: Any) -> int:
        return self._number(int(text) if type(text) is str and len(text) < 12 else text)

    def _frames(self, value: Any) -> list[list[Any]]:
        return [
            [self._text("text", file), self._number(line), self._text("name", name)]
            for file, line, name in _rows(value)
        ]

    def _row(self, value: Any) -> list[Any]:
        row = list(_rows(value))
        if not OpRow.T < len(row) <= OpRow.COUNT:
            raise Wrong("a row")
        for place, one in enumerate(row):
            if place == OpRow.KEY and one is not None:
                row[place] = self._checker.value("keys", one)
            elif one is not None or place <= OpRow.T:
                row[place] = self._number(one, -(1 << 31))
        return row

    def _queue(self, row: Any) -> list[Any]:
        store, key, pushes, pops = row
        return [self._number(store), self._text("key", key), *self._numbers([pushes, pops], 2)]

    def _course(self, row: Any) -> list[Any]:
        group, backend, *course = row
        name = None if backend is None else self._text("name", backend)
        return [self._number(group), name, *self._numbers(course, 3)]

    def _meeting(self, row: Any) -> list[Any]:
        side, group, of, tag, exchanges = row
        if side not in (None, "send", "recv"):
            raise Wrong("a side of a message")
        return [
            side,
            self._number(group),
            self._text("name", of) if type(of) is str else self._optional(of),
            self._optional(tag),
            [self._numbers(one, 3) for one in _rows(exchanges)],
        ]

    def _optional(self, value: Any) -> int | None:
        return None if value is None else self._number(value, -(1 << 63))

    def _history(self, row: Any) -> list[Any]:
        group, backend, text, *first = row
        name = None if backend is None else self._text("name", backend)
        if text is not None and type(text) is not str:
            raise Wrong("a history")
        return [self._number(group), name, text, *self._numbers(first, min(1, len(first)))]

    def _numbers(self, row: Any, count: int) -> list[int]:
        if len(_rows(row)) != count:
            raise Wrong("numbers")
        return [self._number(one) for one in row]

    def _number(self, value: Any, least: int = 0) -> int:
        if type(value) is not int or not least <= value < 1 << 63:
            raise Wrong("a number")
        return value

    def _text(self, kind: str, value: Any) -> str:
        if kind == "text_of_json":
            if type(value) is not str:
                raise Wrong(kind)
            return value
        found: str = self._checker.value(kind, value)
        return found


def ranges(value: Iterable[Any]) -> list[Any]:
    """Numbers and ranges that were checked, without what else these hold."""
    return [
        {"from": one["from"], "to": one["to"], "step": one.get("step", 1)}
        if type(one) is dict
        else one
        for one in value
    ]


def _table(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Wrong("a table")
    return value


def _rows(value: Any) -> list[Any]:
    if type(value) is not list or len(value) > _MOST_ROWS:
        raise Wrong("a list")
    return value
