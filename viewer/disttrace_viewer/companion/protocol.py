"""How companions of a job find each other and talk: addresses, messages, greeting and proof.

They meet on the host that serves the job's store, at ports that follow from it, so nothing of ours
lies in that store. The kernel lets one process have a port, so one companion listens there. A
message is a short head of JSON and a body of bytes behind their lengths, which are looked at before
anything is kept. The listener speaks first, so that nothing is ever sent to another program that
happens to listen there: ``disttrace`` (version and a number drawn) is answered by ``hello`` (job, a
number drawn and a proof), and that by ``hello`` (a proof). No clock, no socket: bytes in, messages
and bytes out.

The proof is of the job's secret, which comes from the environment (``DISTTRACE_SECRET``), to which
the user or the launcher hands it: it is never written, never sent, and in no store. It is a door:
what is sent behind it is what anyone may know.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from disttrace_viewer.trace.plain_text import whole

Address = tuple[str, int]

PORTS = 4
"""Of which the first one is taken that no other program has."""
_LOWEST, _HIGHEST = 10_240, 32_767
"""Above what services have, below what Linux hands out by itself (32,768 and up)."""


def job_of(store_port: int, about: str = "") -> str:
    """What companions of one job have in common: their names of it may differ."""
    return hashlib.sha256(b"disttrace job at %d%b" % (store_port, about.encode())).hexdigest()[:16]


def ports(store_port: int, about: str = "") -> list[int]:
    """The ports at which companions of the job with its store at ``store_port`` meet; what they
    meet ``about`` has ports of its own."""
    found: list[int] = []
    number = 0
    while len(found) < PORTS:
        words = b"disttrace port %d of %d%b" % (number, store_port, about.encode())
        digest = hashlib.sha256(words).digest()
        port = _LOWEST + int.from_bytes(digest[:4], "big") % (_HIGHEST - _LOWEST + 1)
        if port != store_port and port not in found:
            found.append(port)
        number += 1
    return found


def resolved(host: str) -> list[str]:
    """Numeric addresses of a host, as many as anybody needs; none where it is not known."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(one[4][0]) for one in found))[:4]


def is_here(address: str) -> bool:
    """Whether an address is of this host: the kernel would speak to it from that same one, or, as
    to the second address of an interface, from another one, but takes what comes to it.
    """
    family, version = (socket.AF_INET6, "6") if ":" in address else (socket.AF_INET, "4")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            if probe.getsockname()[0] == address:
                return True
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return not ipaddress.ip_address(address).is_unspecified and _only_own(version)
    except (OSError, ValueError):
        return False


def _only_own(version: str) -> bool:
    """Whether the kernel refuses addresses that are not of this host."""
    try:
        with open(f"/proc/sys/net/ipv{version}/ip_nonlocal_bind", encoding="ascii") as file:
            return file.read().strip() == "0"
    except OSError:
        return False


def to_listen_at(host: str, numeric: Sequence[str]) -> str | None:
    """The address of ours at which ``host`` is reached from everywhere; None: it is another host.

    A host's own name may stand for 127.0.1.1 on itself, and for another address elsewhere.
    """
    here = [address for address in numeric if is_here(address)]
    outside = [address for address in here if not ipaddress.ip_address(address).is_loopback]
    if outside:
        return outside[0]
    if not here:
        return None
    return here[0] if host == "localhost" or host in here else ""


Tables = Mapping[str, Mapping[Any, Mapping[str, Any]]]
"""Numbered definitions by kind and number."""


def stores(processes: Iterable[tuple[Tables, Mapping[str, str], bool]]) -> list[Address]:
    """TCPStores of processes, of which come definitions, environment, and whether it is an agent;
    in an order on which all hosts agree, or they would wait apart.

    That of the default group is the job's own; where no group is there yet it is the one that
    workers expect, and before there are workers that of the launchers' rendezvous.
    """
    found: dict[Address, None] = {}
    rows = list(processes)
    for numbered, _, _ in rows:
        known = numbered.get("store", {})
        groups = numbered.get("group", {}).values()
        _offer(found, [_base(known, g.get("store")) for g in groups if g.get("default")])
    for _, env, is_agent in rows:
        host, port = env.get("MASTER_ADDR"), whole(env.get("MASTER_PORT", ""))
        if host and port is not None and not is_agent:
            found.setdefault((host, port))
    for numbered, _, _ in rows:
        _offer(found, numbered.get("store", {}).values())
    return list(found)[:4]


def _offer(found: dict[Address, None], known: Iterable[Mapping[str, Any] | None]) -> None:
    for store in known:
        if store and store.get("base") is None and store.get("host") and store.get("port"):
            found.setdefault((str(store["host"]), int(store["port"])))


def _base(known: Mapping[Any, Mapping[str, Any]], number: Any) -> Mapping[str, Any] | None:
    for _ in range(8):
        store = known.get(number)
        if store is None or store.get("base") is None:
            return store
        number = store["base"]
    return None


MOST_HEAD = 12 << 10
_LENGTHS = struct.Struct("!II")


class Garbled(ValueError):  # noqa: N818 - a finding about input, no error of ours
    """Bytes that are none of this protocol; the text completes a sentence."""


@dataclass(frozen=True, slots=True)
class Message:
    """A kind, fields and a body."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""

    def number(self, name: str) -> int:
        """A whole number from 0 to 2**53. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 53:
            raise Garbled(f"{name} is no number")
        return value

    def text(self, name: str, most: int = 256) -> str:
        """A text of at most so many characters. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise Garbled(f"{name} is no text")
        return value

    def flag(self, name: str) -> bool:
        return self.fields.get(name) is True

    def items(self, name: str, most: int) -> list[Any]:
        """A list of at most so many values. Raises Garbled."""
        value = self.fields.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise Garbled(f"{name} is no list")
        return value


def to_bytes(message: Message) -> bytes:
    """A message as it travels."""
    head = orjson.dumps({"is": message.kind, **message.fields})
    return _LENGTHS.pack(len(head), len(message.body)) + head + message.body


def length(data: bytes | bytearray, most_body: int) -> int | None:
    """Bytes of the message with which ``data`` begins; None: too few to tell. Raises Garbled."""
    if len(data) < _LENGTHS.size:
        return None
    head, body = _LENGTHS.unpack_from(data)
    if head > MOST_HEAD or body > most_body:
        raise Garbled(f"a message of {head} and {body} bytes is too long")
    return int(_LENGTHS.size + head + body)


def from_bytes(data: bytes) -> Message:
    """The message of all these bytes. Raises Garbled."""
    size, _ = _LENGTHS.unpack_from(data)
    at = _LENGTHS.size + size
    try:
        head = orjson.loads(data[_LENGTHS.size : at])
    except orjson.JSONDecodeError as error:
        raise Garbled("no JSON") from error
    kind = head.pop("is", None) if isinstance(head, dict) else None
    if not isinstance(kind, str):
        raise Garbled("a message without a kind")
    return Message(kind, head, data[at:])


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
        return len(self._data)

    def greeting(self) -> bytes:
        """The first message of the listener."""
        fields = {"v": VERSION, "drawn": self._ours, "secret": self._secret is not None}
        return to_bytes(Message("disttrace", fields)) if self._listens else b""

    def overdue(self, now: float) -> bool:
        if not self.ready and now - self._began > GREETING_S:
            return True
        return self._since is not None and now - self._since > MESSAGE_S

    def heard(self, data: bytes, now: float) -> tuple[list[Message], bytes]:
        """Messages in what came, and the answer to a greeting. Raises Garbled."""
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
