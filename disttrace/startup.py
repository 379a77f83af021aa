"""Activation by DISTTRACE=1: called once by every interpreter that starts with the variable set.

The callers are `disttrace.pth` (one line, which imports nothing of disttrace unless the variable
says so), `disttrace.start` (the same for Python 3.15 and later, which resolves the function before
it can ask: hence nothing at the top of this module that the interpreter has not loaded already)
and the `sitecustomize` of `disttrace run`. The interpreter reads `.pth` files twice in a virtual
environment, and several callers may come together: only the first call counts.
"""

from __future__ import annotations

import os
import sys

_OFF = frozenset({"", "0", "off", "false", "no"})
_ON = frozenset({"1", "on", "true", "yes"})
_called = False


def main() -> None:
    """Start tracing if DISTTRACE says so; whatever fails is one sentence, never an exception."""
    global _called
    if _called:
        return
    _called = True
    switch = os.environ.get("DISTTRACE", "").strip().lower()
    if switch in _OFF:
        return
    if switch not in _ON:
        _say(f"DISTTRACE is {switch!r}; allowed is 1 or 0; not tracing.")
        return
    try:
        from disttrace import install

        install()
    except (Exception, SystemExit) as error:
        _say(f"tracing is off, starting it failed: {type(error).__name__}: {error}")


def _say(sentence: str) -> None:
    try:
        sys.stderr.write(f"disttrace: {sentence}\n")
    except (OSError, ValueError, AttributeError):
        pass  # stderr is closed or absent: there is nobody to tell
