"""How it is said that a job would hang elsewhere, which ended well here."""

from __future__ import annotations

import re
from collections.abc import Set

_ROOTED = ("broadcast", "reduce", "gather", "scatter", "gather_into_tensor")

_LASTING = re.compile(r",? for \d[\d.]* (?:ms|s|min|h)(?: \d+ (?:s|min|h))?\b")
"""In a replay nobody waits for any time."""


def summary(what: str) -> str:
    """The sentence of the rule that judged the replay."""
    return f"Would hang: {_LASTING.sub('', what)}"


def hint(ops: Set[tuple[str, str | None]], *, on_device: bool) -> str:
    """Why it went well; ``ops`` are those that somebody stands in, with their backends."""
    names = {op for op, _ in ops}
    backend = next((name for _, name in sorted(ops, key=repr) if name), "the backend")
    rooted = sorted(names & {*_ROOTED})
    if rooted:
        return f"{backend} let it pass since in {rooted[0]} not everybody waits for everybody."
    if on_device:
        return "It may go well as long as messages are small: a device runs them one by one."
    if "send" in names:
        return f"{backend} let it pass since the message was small, or nobody waited for it."
    return f"{backend} let it pass."
