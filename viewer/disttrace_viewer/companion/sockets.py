"""The transport of a job: asyncio's TCP streams on a thread, which goes on while another judges."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress

from disttrace_viewer.companion.endpoint import Endpoint
from disttrace_viewer.companion.protocol import Address

TICK_S = 0.1
BACKLOG = 1024
MOST_WAITING = 20 << 20
"""Bytes for one that does not read them: more than the longest message."""
GONE_MS = 8_000
"""So long the kernel tries to reach another host before its stream is closed."""


class _Link(asyncio.Protocol):
    def __init__(self, of: Sockets, *, called: bool) -> None:
        self.of, self.called = of, called
        self.number = next(of.numbers)
        self.transport: asyncio.Transport | None = None
        of.streams[self.number] = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.number not in self.of.streams:
            transport.abort()  # closed while it was being made
            return
        own = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
        if self.called:
            self.of.endpoint.accepted(self.number)

    def data_received(self, data: bytes) -> None:
        try:
            self.of.endpoint.received(self.number, data)
        except Exception:
            self.fail()  # whatever it was, it costs its sender

    def connection_lost(self, _why: Exception | None) -> None:
        self.fail()

    def fail(self) -> None:
        if self.number in self.of.streams:
            self.of.close(self.number)
            self.of.endpoint.closed(self.number)


class Sockets:
    """A transport as ``endpoint.py`` asks for it."""

    def __init__(self) -> None:
        self.streams: dict[int, _Link] = {}
        self.numbers = itertools.count(1)
        self.endpoint: Endpoint
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)

    def start(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._thread.start()

    def call(self, do: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(do)

    def stop(self) -> None:
        self.call(self._loop.stop)
        self._thread.join(5.0)

    # -- as endpoint.py has it -----------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def connect(self, address: Address) -> int:
        """Call an address: a number, also where that fails, which is reported as closed."""
        one = _Link(self, called=False)

        async def connected() -> None:
            try:
                await self._loop.create_connection(lambda: one, *address)
            except (OSError, OverflowError):
                one.fail()

        self._do(connected())
        return one.number

    def listen(self, address: Address) -> bool:
        """Take calls at an address of ours; an empty host stands for all of them."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        own = None
        try:
            own = socket.socket(family, socket.SOCK_STREAM)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(address)
            own.listen(BACKLOG)
        except (OSError, OverflowError):
            if own is not None:
                own.close()
            return False
        self._listener = own

        async def served() -> None:
            made = lambda: _Link(self, called=True)  # noqa: E731
            self._server = await self._loop.create_server(made, sock=own, backlog=BACKLOG)

        self._do(served())
        return True

    def unlisten(self) -> None:
        for one in (self._server, self._listener):
            if one is not None:
                one.close()
        self._server = self._listener = None

    def send(self, stream: int, data: bytes) -> None:
        one = self.streams.get(stream)
        if one is not None and one.transport is not None:
            one.transport.write(data)
            if one.transport.get_write_buffer_size() > MOST_WAITING:
                one.fail()

    def close(self, stream: int) -> None:
        one = self.streams.pop(stream, None)
        if one is not None and one.transport is not None:
            one.transport.abort()

    def peer(self, stream: int) -> str:
        one = self.streams.get(stream)
        if one is None or one.transport is None:
            return ""
        return str((one.transport.get_extra_info("peername") or ("",))[0])

    # -- the thread ----------------------------------------------------------------------------

    def _do(self, what: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        def tick() -> None:
            self._loop.call_later(TICK_S, tick)
            self.endpoint.tick()

        async def over() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._loop.call_soon(tick)
        self._loop.run_forever()
        for stream in [*self.streams]:
            self.close(stream)
        self.unlisten()
        self._loop.run_until_complete(over())
        self._loop.close()
