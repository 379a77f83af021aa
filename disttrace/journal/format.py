"""Names of the journal's files and records, as documented in ``docs/journal.md``.

The recorder writes these, the viewer and the exporter read them; nothing else is shared.
"""

from __future__ import annotations

import hashlib

FORMAT = 1

DEFS_SUFFIX = ".defs.jsonl"
OPS_SUFFIX = ".ops.jsonl"

# First keys of the records in segments.
BEGIN = "b"
ISSUED = "i"
WAIT = "w"
COMPLETE = "c"
END = "e"
LOST = "l"
ASKED = "o"
SEGMENT = "seg"
HEARTBEAT = "hb"
STANDS_AT = "at"

# Values of ``def`` in the definitions file.
DEF = "def"
DEFINITIONS = (
    "process",
    "identity",
    "versions",
    "clock",
    "string",
    "stack",
    "thread",
    "store",
    "group",
    "call",
    "worker",
    "rendezvous",
    "failure",
    "exit",
    "note",
    "dropped",
)

# Kinds of calls.
COLLECTIVE = "collective"
MESSAGE = "message"
STORE = "store"
CONSTRUCTOR = "constructor"
COMPOSED = "composed"

# Backends of devices: a call returns before the device has done anything, and messages are matched
# in order only, so the tag does not tell streams apart.
ON_DEVICE = frozenset({"nccl", "xccl", "hccl"})

UNKNOWN_PREFIX = "?"

HEARTBEAT_NS = 2_000_000_000


def segment_name(base: str, number: int) -> str:
    """Name of segment ``number`` (from 1) of the journal ``base``."""
    return f"{base}.{number:06d}{OPS_SUFFIX}"


def definitions_name(base: str) -> str:
    """Name of the definitions file of the journal ``base``."""
    return base + DEFS_SUFFIX


def derived_id(length: int, *parts: object) -> str:
    """``length`` bytes of a hash of ``parts`` in hexadecimal, never all zeros.

    The recorder, and every reader on every host, derive the ids of OpenTelemetry's traces and
    spans with it: equal parts are equal ids, without talking.
    """
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    found = hashlib.blake2b(text, digest_size=length).hexdigest()
    return found if found.strip("0") else found[:-1] + "1"


def job_trace_id(job: str) -> str:
    """The trace of a job that runs under no TRACEPARENT: the same for all attempts and ranks."""
    return derived_id(16, "disttrace", job)


def process_span_id(trace: str, process: str) -> str:
    """The root span of a process in ``trace``."""
    return derived_id(8, trace, "process", process)
