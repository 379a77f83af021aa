"""A conversation with one other companion: greeting and proof first, messages then, all bounded.

Whoever listens speaks first, so that nothing is ever said to another program that happens to listen
there. ``disttrace`` (version and a number drawn) is answered by ``hello`` (job, a number drawn and
a proof), and that by ``hello`` (a proof). No clock, no socket: bytes in, messages and bytes out.
"""

from __future__ import annotations

from disttrace_viewer.companion.hub import secret as proofs
from disttrace_viewer.companion.hub.message import (
    TAG_BYTES,
    Garbled,
    Message,
    from_bytes,
    length,
    to_bytes,
)

VERSION = 1
GREETING_S = 3.0
"""So long a greeting may take in all."""
MESSAGE_S = 10.0
"""So long a message may take from its first byte to its last one."""
MOST_GREETING = 1 << 10


class Conversation:
    """Our side of it; ``listens`` where the other one called."""

    def __init__(self, job: str, secret: bytes | None, *, listens: bool, now: float) -> None:
        self._job = job
        self._secret = secret
        self._listens = listens
        self._began = now
        self._since: float | None = None
        """When the first byte of a message came that is not whole yet."""
        self._ours, self._theirs = proofs.drawn(), ""
        self._data = bytearray()
        self._seal: proofs.Seal | None = None
        self._their_seal: proofs.Seal | None = None
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

    def said(self, message: Message) -> bytes:
        """A message as bytes for the other one."""
        data = to_bytes(message)
        return data if self._seal is None else data + self._seal.tag(data)

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
        tag = 0 if self._their_seal is None else TAG_BYTES
        if size is None or len(self._data) < size + tag:
            return None
        data = bytes(self._data[:size])
        if self._their_seal is not None and not self._their_seal.fits(
            data, bytes(self._data[size : size + tag])
        ):
            raise Garbled("a message that proves nothing")
        del self._data[: size + tag]
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
            proof = proofs.proof(self._secret, proofs.CALLER, self._words)
            fields = {"job": self._job, "drawn": self._ours, "proof": proof}
            return to_bytes(Message("hello", fields))
        if message.kind != "hello" or not proofs.is_proof(
            message.text("proof"), self._secret, proofs.LISTENER, self._words
        ):
            raise Garbled("a companion with another secret")
        self._begin(proofs.CALLER, proofs.LISTENER)
        return b""

    def _called(self, message: Message) -> bytes:
        if message.kind != "hello" or message.text("job") != self._job:
            raise Garbled("a companion of another job")
        self._theirs = message.text("drawn")
        if not proofs.is_proof(message.text("proof"), self._secret, proofs.CALLER, self._words):
            raise Garbled("a companion with another secret")
        proof = proofs.proof(self._secret, proofs.LISTENER, self._words)
        answer = to_bytes(Message("hello", {"proof": proof}))
        self._begin(proofs.LISTENER, proofs.CALLER)
        return answer

    @property
    def _words(self) -> tuple[str, ...]:
        drawn = (self._ours, self._theirs)
        return (self._job, *(drawn if self._listens else reversed(drawn)))

    def _begin(self, ours: bytes, theirs: bytes) -> None:
        self.ready = True
        if self._secret is not None:
            self._seal = proofs.Seal(self._secret, ours, self._words)
            self._their_seal = proofs.Seal(self._secret, theirs, self._words)
