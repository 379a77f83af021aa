"""Ids of traces and spans, derived so that processes which never talk agree on them.

Everything is a hash of what the recorder knows: the trace, the meeting place of a group (port or
path, never a host name, which members may spell differently), its full prefix, the n-th creation,
its members, a sequence number, a group rank. Live export and export afterwards give the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from disttrace.journal.format import derived_id, job_trace_id

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


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


def group_id(
    group: Mapping[str, Any], store: Mapping[str, Any] | None, base: Mapping[str, Any] | None, *,
    process: str, attempt: int | None, like_named: int,
) -> str:  # fmt: skip
    """One id for a group in all of its members, in ``diagnose``, ``jsonl`` and OTLP.
    ``like_named``, the how-manieth of that name here, stands in where the meeting place or a prefix
    is unknown."""
    members: Hashable = tuple(group.get("ranks") or ()) or group.get("size")
    prefix = (store or {}).get("prefix") or ()
    if store is None or None in prefix:
        parts: tuple[Hashable, ...] = ("named", group.get("name"), like_named)
    else:
        parts = ("met", _place(base or store, process), *prefix, group.get("nth"))
    return derived_id(8, "group", attempt or 0, *parts, members)


def span_id(trace: str, what: str, *parts: Hashable) -> str:
    """Of what a ``member`` does in a collective, an end of a message (``send``, ``recv``), an
    ``operation`` of no exchange, and what is of disttrace's own making (``pending``, ``end``).
    """
    return derived_id(8, trace, what, *parts)


def _place(base: Mapping[str, Any], process: str) -> Hashable:
    if base.get("port") is not None:
        return f"tcp:{base['port']}"
    if base.get("path") is not None:
        return f"file:{base['path']}"
    return f"hash:{process}" if base.get("type") == "HashStore" else str(base.get("name"))
