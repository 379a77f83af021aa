"""The transport of a job: TCP sockets on a thread, which goes on while another one judges."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from disttrace_viewer.companion.endpoint import Endpoint
from disttrace_viewer.companion.protocol import Address

TICK_S = 0.1
BACKLOG = 1024
MOST_WAITING = 20 << 20
"""Bytes for one that does not read them: more than the longest message."""
STUCK_S = 15.0
"""One that reads nothing for so long is cut off."""
GONE_MS = 8_000
"""So long the kernel tries to reach another host before its stream is closed."""
_PIECE = 1 << 18


class _Socket:
    def __init__(self, own: socket.socket, *, connecting: bool) -> None:
        self.socket = own
        self.connecting = connecting
        self.waiting = bytearray()
        self.moved = time.monotonic()


class Sockets:
    """A transport as ``endpoint.py`` asks for it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, _Socket] = {}
        self._number = 0
        self._server: socket.socket | None = None
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell, self._rope = socket.socketpair()
        for end in (self._bell, self._rope):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, -1)
        self._endpoint: Endpoint
        self._over = False
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread still runs: what goes wrong in it ends it, and nothing else."""
        return self._thread.is_alive()

    def start(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._thread.start()

    def call(self, do: Callable[[], None]) -> None:
        """Run a function on the thread."""
        self._todo.put(do)
        with suppress(OSError):
            self._rope.send(b"!")

    def stop(self) -> None:
        def over() -> None:
            self._over = True

        self.call(over)
        self._thread.join(5.0)

    # -- as endpoint.py has it -----------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def connect(self, address: Address) -> int:
        """Call an address: a number, also where that fails, which is reported as closed."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        own: socket.socket | None = None
        try:
            own = socket.socket(family, socket.SOCK_STREAM)
            self._prepare(own)
            own.connect_ex(address)
        except OSError:
            pass
        self._number += 1
        number = self._number
        if own is None:
            self.call(lambda: self._endpoint.closed(number))
        else:
            self._add(number, _Socket(own, connecting=True))
        return number

    def listen(self, address: Address) -> bool:
        """Take calls at an address of ours; an empty host stands for all of them."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server = None
        try:
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen(BACKLOG)
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ, 0)
        except (OSError, OverflowError):
            if server is not None:
                server.close()
            return False
        self._server = server
        return True

    def unlisten(self) -> None:
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None

    def send(self, stream: int, data: bytes) -> None:
        one = self._streams.get(stream)
        if one is None:
            return
        if not one.waiting:
            one.moved = time.monotonic()
        one.waiting += data
        if len(one.waiting) > MOST_WAITING:
            self._fail(stream)
        elif not one.connecting:
            self._flush(stream, one)

    def close(self, stream: int) -> None:
        one = self._streams.pop(stream, None)
        if one is not None:
            self._selector.unregister(one.socket)
            one.socket.close()

    def peer(self, stream: int) -> str:
        one = self._streams.get(stream)
        try:
            return "" if one is None else str(one.socket.getpeername()[0])
        except OSError:
            return ""

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        due = 0.0
        while not self._over:
            for key, events in self._selector.select(max(0.0, due - time.monotonic())):
                self._happened(key.data, events)
            while not self._todo.empty():
                self._todo.get()()
            if time.monotonic() >= due:
                due = time.monotonic() + TICK_S
                self._cut_off()
                self._endpoint.tick()
        for stream in [*self._streams]:
            self.close(stream)
        self.unlisten()
        self._selector.close()
        self._bell.close()
        self._rope.close()

    def _happened(self, number: int, events: int) -> None:
        if number == -1:
            with suppress(OSError):
                self._bell.recv(4096)
        elif number == 0:
            self._accept()
        elif (one := self._streams.get(number)) is not None:
            if one.connecting:
                self._connected(number, one)
                return
            if events & selectors.EVENT_WRITE:
                self._flush(number, one)
            if events & selectors.EVENT_READ and number in self._streams:
                self._read(number, one)

    def _accept(self) -> None:
        assert self._server is not None
        try:
            own, _ = self._server.accept()
        except OSError:
            time.sleep(0.01)  # no descriptor is left: a peer may go
            return
        self._number += 1
        number = self._number
        try:
            self._prepare(own)
            self._add(number, _Socket(own, connecting=False))
        except OSError:
            own.close()
            return
        self._endpoint.accepted(number)

    def _connected(self, number: int, one: _Socket) -> None:
        if one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(number)
            return
        one.connecting = False
        self._watch(number, one)

    def _read(self, number: int, one: _Socket) -> None:
        try:
            data = one.socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            try:
                self._endpoint.received(number, data)
                return
            except Exception:
                pass  # whatever it was, it costs its sender
        self._fail(number)

    def _flush(self, number: int, one: _Socket) -> None:
        try:
            sent = one.socket.send(memoryview(one.waiting)[:_PIECE])
            one.moved = time.monotonic()
            del one.waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.call(lambda: self._fail(number))
            return
        self._watch(number, one)

    def _watch(self, number: int, one: _Socket) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.waiting else 0)
        if self._selector.get_key(one.socket).events != events:
            self._selector.modify(one.socket, events, number)

    def _add(self, number: int, one: _Socket) -> None:
        self._streams[number] = one
        events = selectors.EVENT_WRITE if one.connecting else selectors.EVENT_READ
        self._selector.register(one.socket, events, number)

    def _cut_off(self) -> None:
        now = time.monotonic()
        for number in [
            n
            for n, one in self._streams.items()
            if one.waiting and not one.connecting and now - one.moved > STUCK_S
        ]:
            self._fail(number)

    def _fail(self, number: int) -> None:
        if number in self._streams:
            self.close(number)
            self._endpoint.closed(number)

    def _prepare(self, own: socket.socket) -> None:
        own.setblocking(False)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
