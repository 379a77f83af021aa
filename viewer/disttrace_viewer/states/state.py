"""The state of a process: what its journal says of where it stands, as JSON of a schema of its own.

A state is a dictionary, so that it can be sent, stored and merged without anything but orjson:

* ``state``: version of this schema; ``format``: of the journal
* ``id``, ``base`` (the journal's name and path), ``named`` (job, host, pid from it),
  ``modified_ns``, ``head_t``; ``read`` and ``size``: bytes of its segments that were read and that
  there are; ``segment``: the newest one
* ``process``, ``identity``, ``versions``, ``listed``, ``numbered``: definitions, those only to
  which something kept refers; ranks of groups as ranges
* ``ops``: kept operations, each ``ROW`` without trailing nulls; times as in the journal
* ``count``: operations begun; ``longest`` [call, ns], ``active`` [thread, t], ``queues``
  [store, key, pushes, finished pops], ``courses`` [group, backend, newest number, hash of the call
  sites of all collectives up to it, and up to the one before], ``beat``, ``last_t``, ``stands``
  [thread, t, stack]
* ``problems``: [path, kind, sentence]

Which operations are kept is said in ``disttrace_viewer.states.reduce``.
"""

from __future__ import annotations

import zlib
from typing import Any

import orjson

VERSION = 1
State = dict[str, Any]

ROW = (
    "number",
    "call",
    "t",
    "end",
    "thread",
    "parent",
    "seq",
    "key",
    "issued",
    "wait",
    "complete",
    "source",
    "error",
    "refused",
    "lost",
)
"""``issued``, ``wait``, ``complete`` and ``end`` in ns after ``t``; ``error`` a string's number;
``seq`` of one that was refused is the number that it would have taken.
"""


class StateError(ValueError):
    """Bytes that are no state of this version; the message completes a sentence."""


def pack(state: State) -> bytes:
    """A state as bytes, about a kilobyte."""
    return zlib.compress(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS), 6)


def unpack(data: bytes) -> State:
    """A state from its bytes. Raises StateError."""
    try:
        return checked(orjson.loads(zlib.decompress(data)))
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise StateError(f"is no state of a process ({error})") from error


def checked(value: object) -> State:
    """A state of a version that is known. Raises StateError."""
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise StateError("is no state of a process")
    if value.get("state") != VERSION:
        raise StateError(
            f"is a state of version {value.get('state')}, this disttrace knows {VERSION}"
        )
    return value
