"""One operation in words, from a row of the operations table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from disttrace_viewer.trace.model import Call, Trace
from disttrace_viewer.wording.names import Names
from disttrace_viewer.wording.quantities import few, spans

_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def shortened(key: str) -> str:
    """A key with the beginnings of its UUIDs: run ids take half a line otherwise."""
    return _UUID.sub(r"\1…", key)


ERROR = 110
"""Letters of an error's text that are shown; all of it is in the export and in ``diagnose``."""
_SOURCE = re.compile(r"\[/[^\[\]]{0,250}\] ")


def brief(error: str) -> str:
    """The first line of an error, without the source line of the C++ library, not too long."""
    line = _SOURCE.sub("", error.split("\n")[0]).strip()
    first = line.find(". ")
    if 30 < first < ERROR:
        line = line[:first]
    return line if len(line) <= ERROR else line[: ERROR - 1] + "…"


@dataclass(frozen=True, slots=True)
class Describer:
    """Words for operations of one trace."""

    trace: Trace
    names: Names

    def title(self, row: Mapping[str, Any]) -> str:
        """``all_reduce #4 in default group``, ``recv from rank 0``, ``store.get step/3``."""
        call = self.trace.call(row["call"])
        seq = f" #{row['seq']}" if row["seq"] is not None else ""
        if call.kind == "collective" and call.group is not None:
            return f"{call.op}{seq} in {self.names.group(call.group)}"
        if call.kind == "message" and call.group is not None:
            peer = call.peer if call.peer is not None else row["source"]
            who = "any rank" if peer is None else self.names.member(call.group, peer)
            toward = "to" if call.op == "send" else "from"
            return f"{call.op}{seq} {toward} {who} in {self.names.group(call.group)}"
        what = self.what(call, row)
        return f"{call.op} {what}".rstrip()

    def what(self, call: Call, row: Mapping[str, Any]) -> str:
        """What tells a step from others of its name: a key, an address, arguments."""
        key = self.trace.full_key(row["call"], row["key"])
        if key is not None:
            return shortened(key if isinstance(key, str) else few(key, 3))
        if call.kind == "constructor":
            return self._constructed(call)
        if call.op == "init_process_group":
            return str(call.args.get("init_method") or "env://")
        if call.op == "rendezvous":
            return str(call.args.get("url") or "")
        ranks = call.args.get("ranks")
        if call.kind == "composed" and isinstance(ranks, list):
            return f"of ranks {spans(ranks)}" if len(ranks) <= 64 else f"of {len(ranks)} ranks"
        return call.name or ""

    def _constructed(self, call: Call) -> str:
        store = self.trace.stores[call.store] if call.store is not None else None
        if store is None:
            return ""
        if call.op.startswith("ProcessGroup"):
            rank, count = call.args.get("rank"), call.args.get("size")
            return "" if rank is None else f"as {rank} of {count}"
        base = self.trace.stores[store.base] if store.base is not None else store
        if base.server:
            return f"listens on {base.host or '*'}:{base.port}"
        place = self.trace.place_by_id.get(store.place)
        if base.type == "TCPStore":
            return f"connects to {base.host}:{base.port}"
        return place.name if place is not None else ""

    def root(self, call: Call) -> str | None:
        """The root's name, for operations that have one."""
        if call.root is None or call.group is None:
            return None
        return self.names.member(call.group, call.root)
