"""Ids of traces and spans, derived so that processes which never talk agree on them.

Everything is a hash of what the recorder knows: the trace, the meeting place of a group (port or
path, never a host name, which members may spell differently), its full prefix, the n-th creation,
its members, a sequence number, a group rank. Live export and export afterwards give the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from disttrace.journal.format import derived_id, job_trace_id, process_span_id

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_OWN_PLACE = "HashStore"


class Context(NamedTuple):
    """A span: ids in hexadecimal. ``sampled`` None: as the trace's sampler decides."""

    trace: str
    span: str
    sampled: bool | None = None


def parse_traceparent(text: str | None) -> Context | None:
    """The W3C header's span, or None for what is no valid one."""
    match = _TRACEPARENT.fullmatch((text or "").strip().lower())
    if match is None or text is None or text.startswith("ff"):
        return None
    trace, span, flags = match.groups()
    if not int(trace, 16) or not int(span, 16):
        return None
    return Context(trace, span, bool(int(flags, 16) & 1))


def trace_of(job: str, environ: Mapping[str, str]) -> tuple[str, Context | None]:
    """The trace of a process, and the span outside of the job under which it runs."""
    outer = parse_traceparent(environ.get("TRACEPARENT"))
    return (job_trace_id(job), None) if outer is None else (outer.trace, outer)


def root_of(trace: str, process: str) -> str:
    """The root span of a process."""
    return process_span_id(trace, process)


def group_id(
    group: Mapping[str, Any], store: Mapping[str, Any] | None, base: Mapping[str, Any] | None, *,
    process: str, attempt: int | None, like_named: int,
) -> str:  # fmt: skip
    """One id for a group in all of its members, in ``diagnose``, ``jsonl`` and OTLP.

    ``like_named`` counts the groups of that name in this process up to this one: it stands in
    where the meeting place or a prefix is unknown.
    """
    members: Hashable = tuple(group.get("ranks") or ()) or group.get("size")
    prefix = (store or {}).get("prefix") or ()
    if store is None or None in prefix:
        parts: tuple[Hashable, ...] = ("named", group.get("name"), like_named)
    else:
        parts = ("met", _place(base or store, process), *prefix, group.get("nth"))
    return derived_id(8, "group", attempt or 0, *parts, members)


def member_span(trace: str, group: str, backend: str | None, seq: int, rank: int) -> str:
    """What one member of a group does in its ``seq``-th collective."""
    return derived_id(8, trace, "member", group, backend, seq, rank)


def message_span(
    trace: str, group: str, op: str, sender: int, receiver: int, tag: int | None, seq: int
) -> str:
    """One end (``op`` is send or recv) of the ``seq``-th message of a stream."""
    return derived_id(8, trace, op, group, sender, receiver, tag, seq)


def other_span(trace: str, what: str, *parts: Hashable) -> str:
    """Spans of disttrace's own making (``pending``, ``end``); ``operation``: of no exchange."""
    return derived_id(8, trace, what, *parts)


def _place(base: Mapping[str, Any], process: str) -> Hashable:
    if base.get("port") is not None:
        return f"tcp:{base['port']}"
    if base.get("path") is not None:
        return f"file:{base['path']}"
    return f"hash:{process}" if base.get("type") == _OWN_PLACE else str(base.get("name"))
