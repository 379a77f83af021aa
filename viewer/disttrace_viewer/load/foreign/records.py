"""Writes the records of a process that recorded none itself: strings, stacks and calls once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from disttrace.journal.format import FORMAT, derived_id, with_ranges
from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files

T0 = 1_000_000_000
"""Reading of the steady clock at which such a journal begins; where times are wall clock times,
one clock serves all processes that were read together.
"""
COUNTS_LACK = (
    *("arguments", "ends", "messages", "older", "position", "reduce_op", "root", "stack"),
    "store",
)
"""What numbers of collectives do not tell."""
_PUBLIC = {
    "_all_gather_base": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "all_reduce_barrier": "barrier",
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "_alltoall_base": "all_to_all_single",
}  # fmt: skip
"""torch's names of kernels, and of operation types, as those of its public functions."""
Frames = Sequence[tuple[str, int, str]]
"""(file, line, function), innermost first."""


def public_name(name: str) -> str:
    """The public function of what torch calls a kernel, or a type of operations."""
    return _PUBLIC.get(name, name)


class Records:
    """The journal of one rank, by ``path`` (of which a job and a clock have their names, unless
    these are given). Those of one clock begin at ``base_ns`` (unix) together.
    """

    def __init__(
        self, kind: str, path: str, rank: int | None, *, world: int, base_ns: int,
        lacks: Iterable[str], job: str = "", clock: Sequence[str] = (), **source: Any,
    ) -> None:  # fmt: skip
        self._rank, self._base_ns = rank, base_ns
        process = derived_id(16, kind, path, rank)
        self._definitions: list[bytes] = []
        self._lines: list[bytes] = []
        self._strings: dict[str, int] = {}
        self._stacks: dict[tuple[tuple[str, int, str], ...], int] = {}
        self._calls: dict[bytes, int] = {}
        self._number = 0
        self.define(
            "process", format=FORMAT, process=process, job=job or os.path.basename(path) or kind,
            job_source=kind, boot_id=derived_id(16, kind, *(clock or (path,))),
            role="main" if rank is None else "worker",
            start_ns=base_ns, t0=T0, unix_ns=base_ns, error_ns=0,
        )  # fmt: skip
        self.define("source", kind=kind, lacks=sorted({*lacks}), **source)
        if rank is not None:
            self.define("identity", t=0, rank=rank, world_size=world, role="worker")
        self._line({"seg": 1, "process": process, "format": FORMAT, "t": 0})

    def define(self, what: str, /, **fields: Any) -> None:
        """One definition; what is None is left out."""
        self._definitions.append(orjson.dumps(with_ranges({"def": what, **_given(fields)})))

    def group(
        self, number: int, name: str, ranks: Sequence[int], *, desc: str = "",
        backends: Mapping[str, str] | None = None, default: bool = False, partial: bool = False,
    ) -> None:  # fmt: skip
        """A group with this rank in it; ``partial``: it may have more members than ``ranks``."""
        whole = isinstance(ranks, range) and len(ranks) > 2
        self.define(
            "group", n=number, name=name, desc=desc or None, backends=backends,
            ranks=[{"from": ranks[0], "to": ranks[-1]}] if whole else list(ranks) or None,
            rank=ranks.index(self._rank) if ranks and self._rank is not None else None,
            default=default or None, partial=partial or None,
        )  # fmt: skip

    def t(self, at_ns: int) -> int:
        """A unix time as the journal counts it."""
        return max(0, at_ns - self._base_ns)

    def stack(self, frames: Frames) -> int | None:
        """The number of a stack; None for an empty one."""
        if not (key := tuple(frames)):
            return None
        if key not in self._stacks:
            rows = [[self.string(file), line, self.string(name)] for file, line, name in key]
            self._stacks[key] = number = len(self._stacks) + 1
            self.define("stack", n=number, frames=rows)
        return self._stacks[key]

    def string(self, text: str) -> int:
        """The number of a string."""
        if text not in self._strings:
            self._strings[text] = number = len(self._strings) + 1
            self.define("string", n=number, v=text)
        return self._strings[text]

    def call(self, **fields: Any) -> int:
        """The number of a call with these fields."""
        given = _given(fields)
        key = orjson.dumps(given)
        if key not in self._calls:
            self._calls[key] = number = len(self._calls) + 1
            self.define("call", n=number, **given)
        return self._calls[key]

    def collective(self, op: str, group: int | None, **more: Any) -> int:
        """The number of a call of a collective on NCCL."""
        nccl = {"kind": "collective", "backend": "nccl", "device": "cuda"}
        return self.call(op=op, group=group, **nccl, **more)

    def begin(self, call: int, at_ns: int, **fields: Any) -> int:
        """A begin; its number."""
        self._number += 1
        self._line({"b": self._number, "t": self.t(at_ns), "s": call, **_given(fields)})
        return self._number

    def after(self, key: str, number: int, d: int, **fields: Any) -> None:
        """A record of an operation that was begun: ``i``, ``w``, ``c`` or ``e``."""
        self._line({key: number, "d": max(0, d), **_given(fields)})

    def enqueued(self, call: int, at_ns: int, q: int | None, *, over: bool) -> None:
        """A call that was given to a device, and whether that is through with it."""
        begun = self.begin(call, at_ns, q=q)
        self.after("i", begun, 0)
        if over:
            self.after("c", begun, 0)

    def stands(self, at_ns: int, stack: int | None) -> None:
        """Where its main thread stands."""
        self._line({"at": self.t(at_ns), "h": 0, "k": stack or 0})

    def done(self, path: str, last_ns: int) -> Files:
        """The journal as read from ``path``, held in memory for whatever reads journals."""
        self._line({"hb": self.t(last_ns)})
        found = Files(path, f"{path}#definitions", {1: f"{path}#operations"})
        for name, lines in zip(found.paths, (self._definitions, self._lines), strict=True):
            files.hold(name, b"\n".join((*lines, b"")), files.modified_ns(path))
        return found

    def _line(self, record: Mapping[str, Any]) -> None:
        self._lines.append(orjson.dumps(record))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
