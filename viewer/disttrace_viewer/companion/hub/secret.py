"""The secret of a job, by which companions know each other, and what is proved with it.

It comes from the environment (``DISTTRACE_SECRET``), to which the user or the launcher of the job
hands it; it is never written, never sent, and in no store. Whoever connects and whoever listens
prove by turns that they have it, over numbers that both have drawn, and each message after that
carries its own proof: nobody in between can put one in, leave one out or say one again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

from disttrace_viewer.companion.hub.message import TAG_BYTES

VARIABLE = "DISTTRACE_SECRET"
CALLER, LISTENER = b"caller", b"listener"


def of_job() -> bytes | None:
    """The job's secret; None where there is none."""
    text = os.environ.get(VARIABLE, "")
    return os.fsencode(text) if text.strip() else None


def drawn() -> str:
    """A number that nobody can foretell."""
    return os.urandom(16).hex()


def proof(secret: bytes | None, role: bytes, words: tuple[str, ...]) -> str:
    """That ``role`` has the secret; empty where there is none."""
    return "" if secret is None else _mac(secret, role, words).hex()


def is_proof(given: str, secret: bytes | None, role: bytes, words: tuple[str, ...]) -> bool:
    """Whether what is given proves it; where there is no secret nothing has to be proved."""
    return hmac.compare_digest(given.encode(), proof(secret, role, words).encode())


class Seal:
    """Proves the messages of one direction of one conversation, in their order."""

    def __init__(self, secret: bytes, role: bytes, words: tuple[str, ...]) -> None:
        self._key = _mac(secret, b"messages of the " + role, words)
        self._number = 0

    def tag(self, data: bytes) -> bytes:
        """What follows the next message."""
        number = struct.pack("!Q", self._number)
        self._number += 1
        return hmac.digest(self._key, number + data, "sha256")[:TAG_BYTES]

    def fits(self, data: bytes, tag: bytes) -> bool:
        """Whether that is the next message."""
        return hmac.compare_digest(self.tag(data), tag)


def _mac(secret: bytes, role: bytes, words: tuple[str, ...]) -> bytes:
    text = b"\0".join([b"disttrace", role, *(word.encode() for word in words)])
    return hmac.new(secret, text, hashlib.sha256).digest()
