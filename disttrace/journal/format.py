"""Names of the journal's files and records, as documented in ``docs/journal.md``.

The recorder writes these, the viewer and the exporter read them; nothing else is shared.
"""

from __future__ import annotations

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

UNKNOWN_PREFIX = "?"

HEARTBEAT_NS = 2_000_000_000


def segment_name(base: str, number: int) -> str:
    """Name of segment ``number`` (from 1) of the journal ``base``."""
    return f"{base}.{number:06d}{OPS_SUFFIX}"


def definitions_name(base: str) -> str:
    """Name of the definitions file of the journal ``base``."""
    return base + DEFS_SUFFIX
