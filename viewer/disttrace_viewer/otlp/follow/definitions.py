"""What one process defined: merged records by kind and number, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disttrace_viewer.load import ids

Record = dict[str, Any]


class Definitions:
    """The definitions of one journal so far. A repeated number completes the earlier record."""

    def __init__(self) -> None:
        self.process: Record = {}
        self.identity: Record = {}
        self.exit: Record | None = None
        self.failures: list[Record] = []
        self.dropped: list[Record] = []
        self._numbered: dict[str, dict[int, Record]] = {}
        self._groups: dict[int, str] = {}

    def add(self, record: Record) -> None:
        """Take one record; unknown kinds are kept and do no harm."""
        kind = record.get("def")
        if kind == "process":
            self.process.update(record)
        elif kind == "identity":
            self.identity.update(record)
        elif kind == "exit":
            self.exit = record
        elif kind == "failure":
            self.failures.append(record)
        elif kind == "dropped":
            self.dropped.append(record)
        elif isinstance(record.get("n"), int):
            table = self._numbered.setdefault(str(kind), {})
            table.setdefault(record["n"], {}).update(record)
            if kind in ("group", "store"):
                self._groups.clear()

    def get(self, kind: str, number: object) -> Record | None:
        """The definition of that kind and number."""
        return self._numbered.get(kind, {}).get(number) if isinstance(number, int) else None

    def numbers(self, kind: str) -> list[int]:
        """All numbers of a kind."""
        return list(self._numbered.get(kind, ()))

    def string(self, number: object) -> str | None:
        """An interned string."""
        found = self.get("string", number)
        return None if found is None else str(found.get("v"))

    def frames(self, number: object) -> list[tuple[str, int, str]]:
        """(file, line, function) of a stack, innermost first."""
        found = self.get("stack", number) or {}
        return [
            (self.string(file) or "?", line, self.string(function) or "?")
            for file, line, function in found.get("frames", ())
        ]

    def group_id(self, number: int) -> str | None:
        """The id of a group, the same in all of its members."""
        found = self._groups.get(number)
        group = self.get("group", number)
        if found is not None or group is None:
            return found
        store = self.get("store", group.get("store"))
        base = self.get("store", (store or {}).get("base"))
        table = self._numbered["group"]
        like_named = sum(
            1 for n in table if n <= number and table[n].get("name") == group.get("name")
        )
        self._groups[number] = found = ids.group_id(
            group,
            store,
            base,
            process=self.id,
            attempt=self.attempt,
            like_named=like_named,
        )
        return found

    def full_key(self, store: object, key: str | list[str] | None) -> str | list[str] | None:
        """A key with every prefix, ``?`` for an unknown one."""
        prefix = (self.get("store", store) or {}).get("prefix") or ()
        lead = "".join(f"{'?' if part is None else part}/" for part in prefix)
        return [lead + k for k in key] if isinstance(key, list) else key and lead + key

    @property
    def id(self) -> str:
        """The identity of the process."""
        return str(self.process.get("process", ""))

    @property
    def env(self) -> Mapping[str, str]:
        """Rank variables, and TRACEPARENT, as they were at the start."""
        env = self.process.get("env")
        return env if isinstance(env, dict) else {}

    @property
    def role(self) -> str:
        """``agent``, ``worker``, ``child`` or ``main``."""
        return str(self.identity.get("role") or self.process.get("role") or "main")

    @property
    def rank(self) -> int | None:
        """The rank under which it joined or was launched; never one merely inherited."""
        return self._label("rank", "RANK")

    @property
    def local_rank(self) -> int | None:
        """Its rank on this host."""
        return self._label("local_rank", "LOCAL_RANK")

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job."""
        return self._label("world_size", "WORLD_SIZE")

    @property
    def attempt(self) -> int | None:
        """The launcher's restart count."""
        found = self.identity.get("attempt", self.process.get("attempt"))
        return found if isinstance(found, int) else None

    @property
    def run(self) -> str | None:
        """The launcher's run id."""
        found = self.identity.get("run") or self.process.get("run")
        return None if found is None else str(found)

    def _label(self, key: str, variable: str) -> int | None:
        found = self.identity.get(key)
        if isinstance(found, int):
            return found
        text = self.env.get(variable, "") if self.role == "worker" else ""
        return int(text) if text.isdigit() else None
