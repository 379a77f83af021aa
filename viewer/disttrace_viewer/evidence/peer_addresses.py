"""Whose address an error names: ``ip:port`` in echoes, shown as a rank where that is certain.

Two things are certain. A store's address is that of its server. And gloo's error in an operation
of a group of two, or in a message with a given peer, names the other end, for no other connection
is part of that operation.
"""

from __future__ import annotations

import re
from dataclasses import replace

from disttrace_viewer.analysis.process_ends import End
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.merge.store_servers import is_loopback
from disttrace_viewer.trace.operation import Op, is_connection_error
from disttrace_viewer.trace.plain_text import whole

_ADDRESS = re.compile(
    r"\[(?P<a>[^\]\s]{1,255})\]:(?P<a_port>\d+)"
    r"|\((?P<b>[^\s,()]+), (?P<b_port>\d+)\)"
    r"|(?<![\w.\[/:])(?P<c>\d+\.\d+\.\d+\.\d+|localhost):(?P<c_port>\d+)"
)
"""``[host]:port``, ``(host, port)`` and ``ip:port``, as gloo, c10d and Python write them."""


def end_of(evidence: Evidence, process: int) -> End:
    """How a process ended, with the addresses in a connection error shown as ranks."""
    end = evidence.ends[process]
    if end.failure is not None and is_connection_error(end.failure.text):
        text = translated(evidence, process, end.failure.text)
        return replace(end, failure=replace(end.failure, text=text))
    return end


def translated(evidence: Evidence, process: int, text: str) -> str:
    """The text with ``(rank N)`` behind each address of which it is certain whose it is."""
    peer = _peer(evidence, process, text)

    def reported(found: re.Match[str]) -> str:
        host = found["a"] or found["b"] or found["c"]
        port = whole(found["a_port"] or found["b_port"] or found["c_port"])
        server = None if port is None else _server(evidence, process, host, port)
        if server is not None:
            return f"{found[0]} (the store of {server})"
        if peer is not None and found["a"]:
            return f"{found[0]} ({peer})"
        return found[0]

    return _ADDRESS.sub(reported, text)


def _server(evidence: Evidence, process: int, host: str, port: int) -> str | None:
    """Who listens at an address that this very process connected to."""
    trace = evidence.trace
    mine = trace.processes[process]
    for store in trace.stores:
        if store.process != process or store.base not in (None, store.index) or not store.address:
            continue
        ip, _, number = store.address.rpartition(":")
        if number != str(port) or not (_same_host(host, ip) or _same_host(host, store.host)):
            continue
        listeners = {
            s.process
            for s in trace.stores
            if s.server and s.port == port and trace.processes[s.process].job == mine.job
        }
        place = trace.place_by_id.get(store.place)
        if place is None or place.server is None or listeners != {place.server}:
            return None  # not traced, or one after another at one port
        there = trace.processes[place.server]
        if is_loopback(ip) and there.boot_id != mine.boot_id:
            return None
        return there.label
    return None


def _same_host(host: str, other: str | None) -> bool:
    plain, known = host.strip("[]").lower(), (other or "").strip("[]").lower()
    return known == plain or bool(known and is_loopback(known) and is_loopback(plain))


def _peer(evidence: Evidence, process: int, text: str) -> str | None:
    """The only process at the other end of the gloo operation that raised this very text."""
    op = evidence.raised.get(process)
    if op is None or op.call.backend != "gloo" or op.call.group is None or op.error is None:
        return None
    if text.partition("\n")[0] not in op.error or len(_ADDRESS.findall(text)) != 1:
        return None
    rank = _other(evidence, process, op)
    if rank is None:
        return None
    other = evidence.process_of(op.call.group, rank)
    if other is not None:
        return evidence.trace.processes[other].label
    known = evidence.trace.groups[op.call.group].global_rank(rank)
    return None if known is None else f"rank {known}"


def _other(evidence: Evidence, process: int, op: Op) -> int | None:
    """Group rank of the other end."""
    assert op.call.group is not None
    if op.call.kind == "message":
        return op.call.peer
    group = evidence.trace.groups[op.call.group]
    mine = {m.rank for m in group.members if m.process == process}
    others = set(range(group.size or 0)) - mine
    return others.pop() if group.size == 2 and len(others) == 1 else None
