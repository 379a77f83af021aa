"""A journal again, with as much of its definitions as a state has of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from disttrace.journal.format import ranks_of
from disttrace_viewer.load.definitions import LISTED, NUMBERED, Definitions
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.journals import Journal
from disttrace_viewer.states.form.state import State


def journal_of(state: State, kinds: Collection[str] = NUMBERED) -> Journal:
    """A journal with as much of its definitions as the state has, of some kinds."""
    definitions = _Known(state.base)
    definitions.process = state.process
    definitions.identity = state.identity
    definitions.versions = state.versions
    definitions.source = state.source
    definitions.last_t = state.last_t
    definitions.listed = {**_NONE_LISTED, **state.listed} if state.listed else _NONE_LISTED
    numbered = definitions.numbered
    for kind in kinds:
        table, record = state.numbered.get(kind, {}), _RECORDS.get(kind)
        numbered[kind] = table if record is None else {n: record(v) for n, v in table.items()}
    return Journal(
        id=sys.intern(state.id),
        files=Files(state.base, state.base),
        definitions=definitions,
        from_name=state.named,
        modified_ns=state.modified_ns,
        head_t=state.head_t,
    )


_NONE_LISTED: dict[str, list[Any]] = {kind: [] for kind in LISTED}


class _Known(Definitions):
    """Definitions whose stacks bear names already."""

    __slots__ = ()

    def frames(self, number: int | None) -> list[tuple[str, int, str]]:
        """The frames of a stack."""
        found = self.get("stack", number)
        return [] if found is None else [(file, line, name) for file, line, name in found["frames"]]


def _group(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "ranks": ranks_of(value["ranks"])} if "ranks" in value else value


_RECORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "string": lambda value: {"v": value},
    "stack": lambda value: {"frames": value},
    "group": _group,
}
