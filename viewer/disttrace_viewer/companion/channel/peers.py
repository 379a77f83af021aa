"""Whose process is at the other end of a connection within this host, as the kernel has it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

from disttrace_viewer.companion.channel.places import is_here


def is_ours(own: socket.socket) -> bool:
    """Whether the other end is in this network namespace and belongs to our user.

    False where that cannot be seen: on another host, or without Linux's ``/proc/net``.
    """
    try:
        host, port = own.getsockname()[:2]
        other, other_port = own.getpeername()[:2]
    except OSError:
        return False
    if not is_here(other):
        return False
    ends = {(_packed(other), other_port), (_packed(host), port)}
    for local, remote, user in _connections():
        if {local, remote} == ends and local == (_packed(other), other_port):
            return user == os.getuid()
    return False


def _connections() -> Iterator[tuple[tuple[bytes, int], tuple[bytes, int], int]]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{name}", encoding="ascii") as file:
            next(file, None)
            for line in file:
                words = line.split()
                with suppress(ValueError, IndexError):
                    yield _end(words[1]), _end(words[2]), int(words[7])


def _end(text: str) -> tuple[bytes, int]:
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    words = struct.iter_unpack("=I", raw)
    packed = b"".join(struct.pack("!I", word) for (word,) in words)
    return _mapped(packed), int(port, 16)


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return _mapped(socket.inet_pton(family, address.partition("%")[0]))
    except OSError:
        return b""


def _mapped(packed: bytes) -> bytes:
    """IPv4 as such, also where IPv6 carries it."""
    return packed[12:] if packed[:12] == bytes(10) + b"\xff\xff" else packed
