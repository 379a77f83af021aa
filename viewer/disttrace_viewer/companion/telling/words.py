"""The words of a state that a program chose: keys, prefixes, names of groups, jobs and files.

Hosts without a common secret tell hashes of them. Whoever has the same word in its own journals
reads the word in place of the hash, so keys and groups still meet; nobody learns one from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import orjson

from disttrace_viewer.states.form.hidden import hidden
from disttrace_viewer.states.form.state import Row, State

Word = Callable[[str], str]


def known_words(states: Iterable[State]) -> dict[str, str]:
    """The words of states by what stands for them."""
    found: dict[str, str] = {}

    def note(word: str) -> str:
        found[hidden(word)] = word
        return word

    for state in states:
        with_words(state, note)
    return found


def with_words(state: State, word: Word) -> State:
    """The state with ``word`` of each of its words in its place."""
    process = {**state.process, **_texts(state.process, ("job", "run"), word)}
    identity = {**state.identity, **_texts(state.identity, ("run",), word)}
    built = orjson.loads(state.built)
    built["ops"] = _rows(built["ops"], word)
    built["store"] = _stores(built["store"], word)
    numbered = state.numbered
    groups = numbered.get("group", {})
    return replace(
        state,
        named={**state.named, **_texts(state.named, ("job",), word)},
        process=process,
        identity=identity,
        numbered={
            **numbered,
            "store": _stores(numbered.get("store", {}), word),
            "group": {
                n: {**group, **_texts(group, ("name", "desc"), word)} for n, group in groups.items()
            },
        },
        ops=_rows(state.ops, word),
        built=orjson.dumps(built, option=orjson.OPT_NON_STR_KEYS).decode(),
        queues=[[store, word(key), *counts] for store, key, *counts in state.queues],
    )


def _texts(record: dict[str, Any], names: Iterable[str], word: Word) -> dict[str, str]:
    return {name: word(record[name]) for name in names if isinstance(record.get(name), str)}


def _stores(stores: dict[Any, dict[str, Any]], word: Word) -> dict[Any, dict[str, Any]]:
    found = {}
    for number, store in stores.items():
        names = ("path",) if store.get("host") else ("path", "name")
        one = {**store, **_texts(store, names, word)}
        if store.get("prefix"):
            one["prefix"] = [p if p is None else word(p) for p in store["prefix"]]
        found[number] = one
    return found


def _rows(rows: list[list[Any]], word: Word) -> list[list[Any]]:
    return [_row(row, word) for row in rows]


def _row(row: list[Any], word: Word) -> list[Any]:
    if len(row) <= Row.KEY or row[Row.KEY] is None:
        return row
    key = row[Row.KEY]
    told = word(key) if isinstance(key, str) else [word(one) for one in key]
    return [*row[: Row.KEY], told, *row[Row.KEY + 1 :]]
