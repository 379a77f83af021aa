"""A conversation with another companion: greeting and proof first, messages then, all bounded.

Whoever listens speaks first, so that nothing is ever sent to another program that happens to listen
there. ``disttrace`` (version and a number drawn) is answered by ``hello`` (job, a number drawn and
a proof), and that by ``hello`` (a proof). No clock, no socket: bytes in, messages and bytes out.

The proof is of the job's secret, which comes from the environment (``DISTTRACE_SECRET``), to which
the user or the launcher hands it: it is never written, never sent, and in no store. It is a door:
what is sent behind it is what anybody may know.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from disttrace_viewer.companion.hub.message import Garbled, Message, from_bytes, length, to_bytes

VARIABLE = "DISTTRACE_SECRET"
VERSION = 1
GREETING_S = 3.0
"""So long a greeting may take in all."""
MESSAGE_S = 10.0
"""So long a message may take from its first byte to its last one."""
MOST_GREETING = 1 << 10
_CALLER, _LISTENER = b"caller", b"listener"


def secret_of_job() -> bytes | None:
    """The job's secret; None where there is none."""
    text = os.environ.get(VARIABLE, "")
    return os.fsencode(text) if text.strip() else None


class Conversation:
    """Our side of it; ``listens`` where the other one called."""

    def __init__(self, job: str, secret: bytes | None, *, listens: bool, now: float) -> None:
        self._job = job
        self._secret = secret
        self._listens = listens
        self._began = now
        self._since: float | None = None
        """When the first byte of a message came that is not whole yet."""
        self._ours, self._theirs = os.urandom(16).hex(), ""
        self._data = bytearray()
        self.ready = False
        """Whether both have greeted, and proved what was to be proved."""
        self.most_body = 0
        """Bytes that a message may carry from now on."""

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._data)

    def greeting(self) -> bytes:
        """What whoever listens says first."""
        fields = {"v": VERSION, "drawn": self._ours, "secret": self._secret is not None}
        return to_bytes(Message("disttrace", fields)) if self._listens else b""

    def overdue(self, now: float) -> bool:
        """Whether the other one takes too long over its greeting, or over a message."""
        if not self.ready and now - self._began > GREETING_S:
            return True
        return self._since is not None and now - self._since > MESSAGE_S

    def heard(self, data: bytes, now: float) -> tuple[list[Message], bytes]:
        """Messages in what came, and what is to be answered to a greeting. Raises Garbled."""
        self._data += data
        messages: list[Message] = []
        answer = b""
        while (one := self._next()) is not None:
            if self.ready:
                messages.append(one)
            else:
                answer += self._greeted(one)
            self._since = None
        if not self._data:
            self._since = None
        elif self._since is None:
            self._since = now
        if not self.ready and len(self._data) > MOST_GREETING:
            raise Garbled("a greeting that is too long")
        return messages, answer

    def _next(self) -> Message | None:
        size = length(self._data, self.most_body if self.ready else 0)
        if size is None or len(self._data) < size:
            return None
        data = bytes(self._data[:size])
        del self._data[:size]
        return from_bytes(data)

    def _greeted(self, message: Message) -> bytes:
        if self._listens:
            return self._called(message)
        if not self._theirs:
            if message.kind != "disttrace" or message.number("v") != VERSION:
                raise Garbled("no companion of this version")
            self._theirs = message.text("drawn")
            if message.flag("secret") != (self._secret is not None):
                raise Garbled("a companion with another secret")
            fields = {"job": self._job, "drawn": self._ours, "proof": self._proof(_CALLER)}
            return to_bytes(Message("hello", fields))
        if message.kind != "hello":
            raise Garbled("no greeting")
        self._check(message, _LISTENER)
        return b""

    def _called(self, message: Message) -> bytes:
        if message.kind != "hello" or message.text("job") != self._job:
            raise Garbled("a companion of another job")
        self._theirs = message.text("drawn")
        self._check(message, _CALLER)
        return to_bytes(Message("hello", {"proof": self._proof(_LISTENER)}))

    def _proof(self, role: bytes) -> str:
        """That ``role`` has the secret, over what both have drawn; empty where there is none."""
        if self._secret is None:
            return ""
        drawn = (self._ours, self._theirs) if self._listens else (self._theirs, self._ours)
        words = (self._job, *drawn)
        text = b"\0".join([b"disttrace", role, *(word.encode() for word in words)])
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    def _check(self, message: Message, role: bytes) -> None:
        if not hmac.compare_digest(message.text("proof").encode(), self._proof(role).encode()):
            raise Garbled("a companion with another secret")
        self.ready = True
