"""A client of PyTorch's TCPStore in a few lines, without torch: one connection of our own.

Keys of programs begin with a slash there, so none of ours, which do not, is ever one of theirs.

The protocol is that of ``torch/csrc/distributed/c10d/TCPStore.cpp``, the same for both of its
servers, unchanged for what is used here since torch 2.1: a byte that names the query, numbers in
the machine's order, texts and values behind their length in eight bytes.

The plain server reads a query and writes an answer on its one thread, and waits for us meanwhile.
So no query and no answer is longer than what the kernel buffers: a companion that is stopped in the
middle of one must not hold up the job's store.
"""

from __future__ import annotations

import socket
import struct

MOST_BYTES = 32 << 10
"""Of a value; longer ones are the caller's to divide."""

_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _CHECK = 0, 1, 2, 3, 4, 5
_DELETE, _APPEND = 8, 9
_READY, _NOT_READY = 0, 1
_MAGIC = 0x3C85F7CE
_BUFFER = 4 * MOST_BYTES


class StoreError(OSError):
    """The store does not answer, or not as a TCPStore does."""


class StoreClient:
    """A connection to the TCPStore at an address."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Connect, and see that a TCPStore answers. Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
            self._send(struct.pack("=BI", _VALIDATE, _MAGIC))
            self._greet()
        except BaseException:
            self._socket.close()
            raise

    def _greet(self) -> None:
        self._send(struct.pack("=BQ", _CHECK, 1), _text("disttrace"))
        if self._number("=B") not in (_READY, _NOT_READY):
            raise StoreError("who listens there is no TCPStore")

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()

    def add(self, key: str, amount: int) -> int:
        """Add to a number (none is 0) and return it."""
        self._send(struct.pack("=B", _ADD), _text(key), struct.pack("=q", amount))
        return self._number("=q")

    def set(self, key: str, value: bytes) -> None:
        """Set a value of at most ``MOST_BYTES``."""
        self._send(struct.pack("=B", _SET), _text(key), _bytes(value))

    def append(self, key: str, value: bytes) -> None:
        """Append to a value, or make it."""
        self._send(struct.pack("=B", _APPEND), _text(key), _bytes(value))

    def get(self, key: str) -> bytes | None:
        """A value; None where there is none: a server of a missing key would close on us."""
        self._send(struct.pack("=BQ", _CHECK, 1), _text(key))
        if self._number("=B") != _READY:
            return None
        self._send(struct.pack("=B", _GET), _text(key))
        return self._value()

    def compare_set(self, key: str, expected: bytes, wanted: bytes) -> bytes:
        """Set ``wanted`` where ``expected`` stands (empty: nothing); what stands there then."""
        self._send(struct.pack("=B", _COMPARE_SET), _text(key), _bytes(expected), _bytes(wanted))
        return self._value()

    def delete(self, key: str) -> bool:
        """Delete a key; whether there was one."""
        self._send(struct.pack("=B", _DELETE), _text(key))
        return self._number("=q") == 1

    def _send(self, *parts: bytes) -> None:
        self._socket.sendall(b"".join(parts))

    def _number(self, form: str) -> int:
        found: int = struct.unpack(form, self._exactly(struct.calcsize(form)))[0]
        return found

    def _value(self) -> bytes:
        size = self._number("=Q")
        if size > 64 << 20:
            raise StoreError("its answer is none of a TCPStore")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(min(size - len(data), 1 << 16))
            if not piece:
                raise StoreError("the store closed the connection")
            data += piece
        return bytes(data)


def _bytes(value: bytes) -> bytes:
    if len(value) > MOST_BYTES:
        raise ValueError(f"a value of {len(value)} bytes is too long")
    return struct.pack("=Q", len(value)) + value


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("=Q", len(data)) + data
