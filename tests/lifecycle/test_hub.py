"""The network between companions: who serves, what clients send, and what strangers cannot do."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from torch.distributed import TCPStore

from disttrace_viewer.companion import endpoint, protocol
from disttrace_viewer.companion.endpoint import (
    ALONE,
    CLIENT,
    SERVER,
    Endpoint,
    PeerReply,
    PeerStream,
    greet,
)
from disttrace_viewer.companion.peers import KNOWS_S, Peers
from disttrace_viewer.companion.protocol import (
    Garbled,
    Message,
    is_here,
    message_of,
    to_bytes,
    to_listen_at,
)
from reliability.hosts_in_virtual_time import Between, Clock, Ends, Wire
from support.processes import wait_until

Join = Callable[..., Peers]
CALLED: list[str] = []  # of those that a client has called
BOTH = pytest.mark.parametrize("store", [True, False], ids=["libuv", "plain"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> TCPStore:
    libuv = getattr(request, "param", True)
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), use_libuv=libuv)


@pytest.fixture
def join(store: TCPStore) -> Iterator[Join]:
    """Companions that answer in threads of their own until the test is over."""
    over = threading.Event()
    CALLED.clear()
    threads: list[threading.Thread] = []
    all_of: list[Peers] = []

    def joined(name: str, order: int, *, answers: bool = True) -> Peers:
        def answered(words: Sequence[str]) -> bytes:
            return " ".join([name, *words]).encode()

        one = Peers(name, answered, called=lambda: CALLED.append(name))
        all_of.append(one)
        assert one.join([("127.0.0.1", store.port)], order)
        wait_until(lambda: one.role in (SERVER, CLIENT), 10)

        def run() -> None:
            while not over.wait(0.02):
                one.attend(0.02)

        if answers:
            threads.append(threading.Thread(target=run))
            threads[-1].start()
        return one

    yield joined
    over.set()
    for thread in threads:
        thread.join()
    for one in all_of:
        one.close()


def told(answers: Sequence[PeerReply]) -> list[bytes]:
    return sorted(answer.data for answer in answers)


@BOTH
def test_one_serves_and_hears_all(store: TCPStore, join: Join) -> None:
    """The first on the store's host; all, or those with some names. Nothing is in the store."""
    store.set("mine", "1")
    before = int(store.num_keys())
    first, _, _ = join("a", 1), join("b", 3), join("c", 5)
    wait_until(lambda: first.clients == ["b", "c"], 5)
    assert first.role == SERVER
    assert told(first.request(("states",))) == [b"b states", b"c states"]
    assert told(first.request(("whole", "x"), of={"c"})) == [b"c whole x"]
    assert int(store.num_keys()) == before


def test_nothing_is_asked_of_the_store() -> None:
    """A connection to it is made, and no byte goes over it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = Peers("a", lambda _: b"")
        assert one.join([server.getsockname()], 1)
        caller, _ = server.accept()
        with caller:
            wait_until(lambda: one.role == SERVER, 10)
            one.close()
            caller.settimeout(5)
            assert caller.recv(100) == b""


def test_one_that_does_not_answer_is_not_waited_for_again(store: TCPStore, join: Join) -> None:
    """It costs one round its time, and no other one."""
    first = join("a", 1)
    join("b", 3, answers=False)
    wait_until(lambda: first.clients, 5)
    assert first.request() == []
    began = time.monotonic()
    assert first.request(within_s=20) == []
    assert time.monotonic() - began < 10


def test_a_client_calls_and_prints_where_the_server_cannot(store: TCPStore, join: Join) -> None:
    """The one of the lowest order that can; one that the server serves is silent otherwise."""
    first, second, third = join("a", 1), join("b", 3), join("c", 5)
    wait_until(lambda: len(first.clients) == 2, 5)
    assert second.speaks() is third.speaks() is None
    time.sleep(KNOWS_S)  # till it is long ago that the server requested anything
    second.call()
    wait_until(lambda: CALLED == ["a"], 10)
    first.hand_over(b"said by b")
    wait_until(lambda: second.speaks() == b"said by b", 5)
    second.be_mute()
    wait_until(lambda: CALLED == ["a", "a"], 5)
    first.hand_over(b"said by c")
    wait_until(lambda: third.speaks() == b"said by c", 5)
    assert second.speaks() is None
    first.hand_over(b"")
    wait_until(lambda: third.speaks() is None, 5)


def test_without_the_server_each_speaks_by_its_order(store: TCPStore, join: Join) -> None:
    """And whoever is on the store's host serves the others then."""
    first, second = join("a", 1), join("b", 3)
    first.close()
    wait_until(lambda: second.role == SERVER, 10)
    in_virtual_time(is_alone)


async def is_alone(wire: Wire) -> None:
    elsewhere = Endpoint("d", lambda *_: None, secret=None, network=wire)
    wire.network.begin(elsewhere.run("job", (), (), 40))
    await asyncio.sleep(0.1)
    assert elsewhere.state == ALONE
    assert elsewhere.speaks() is None
    await asyncio.sleep(2.1)
    assert elsewhere.speaks() == b""


def in_virtual_time(work: Callable[[Wire], Coroutine[Any, Any, None]]) -> None:
    Clock().finish(work(Wire(Between())))


def leaves(port: int, serve: Callable[[], None]) -> threading.Thread:
    """The companion of a host whose processes failed, which goes after a while."""
    stay = partial(Peers("z", lambda _: b"why").stay, [("127.0.0.1", port)])
    thread = threading.Thread(target=stay, kwargs={"stay_s": 60, "serve": serve}, daemon=True)
    thread.start()
    return thread


def test_a_host_whose_processes_failed_says_why(store: TCPStore, join: Join) -> None:
    """Once that was requested its companion goes."""
    first = join("a", 1)
    leaving = leaves(store.port, lambda: None)
    wait_until(lambda: first.clients == ["z"], 10)
    assert told(first.request(("states",))) == [b"why"]
    leaving.join(10)
    assert not leaving.is_alive()


def test_a_host_whose_processes_failed_goes_with_the_store() -> None:
    """Then the job is over, and none will ask."""
    store, served = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5)), list[bool]()
    leaving = leaves(store.port, lambda: served.append(True))
    wait_until(lambda: served, 10)
    assert leaving.is_alive()
    del store
    leaving.join(10)
    assert not leaving.is_alive()


# -- strangers ---------------------------------------------------------------------------------


@pytest.fixture
def pair(store: TCPStore, join: Join, monkeypatch: pytest.MonkeyPatch) -> tuple[Peers, int]:
    monkeypatch.setattr(endpoint, "GREETING_S", 0.5)
    first = join("a", 1)
    join("b", 3)
    wait_until(lambda: first.clients, 5)
    return first, protocol.ports(store.port)[0]


def says_nothing(caller: socket.socket) -> None:
    """A port scanner that holds the line."""


def garbage(caller: socket.socket) -> None:
    """Bytes of another protocol, and of none."""
    caller.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(4096))


def huge(caller: socket.socket) -> None:
    """A length for which there is no memory."""
    caller.sendall(struct.pack("!II", 40, 0xFFFF_FFF0) + b"x" * 40)


def slowly(caller: socket.socket) -> None:
    """A greeting of which a byte comes now and then."""
    for byte in to_bytes(Message("hello", {"job": "x", "drawn": "y", "proof": ""})):
        caller.sendall(bytes([byte]))
        time.sleep(0.1)


def without_joining(caller: socket.socket) -> None:
    """One that answers and calls without having come in."""
    for kind in ("answer", "call", "mute", "beat", "ask", "word"):
        caller.sendall(to_bytes(Message(kind, {"n": 1}, b"x" * 100)))


def resets(caller: socket.socket) -> None:
    caller.sendall(b"\0\0")
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


ALL = (says_nothing, garbage, huge, slowly, without_joining, resets)


@pytest.mark.parametrize("hostile", ALL, ids=lambda one: one.__name__)
def test_a_round_is_not_disturbed(pair: tuple[Peers, int], hostile: Callable[..., None]) -> None:
    """A hundred of them at once: all are let go, and the others are heard at once."""
    first, port = pair
    callers = []
    for _ in range(100):
        caller = socket.create_connection(("127.0.0.1", port), 2)
        callers.append(caller)
        threading.Thread(target=_quietly, args=(hostile, caller), daemon=True).start()
    began = time.monotonic()
    for _ in range(5):
        assert told(first.request(within_s=20)) == [b"b"]
    assert time.monotonic() - began < 20, "none is waited for until its time is over"
    wait_until(lambda: all(map(_is_over, callers)), 5)
    for caller in callers:
        caller.close()


def _quietly(hostile: Callable[..., None], caller: socket.socket) -> None:
    with suppress(OSError):
        hostile(caller)


def _is_over(caller: socket.socket) -> bool:
    if caller.fileno() < 0:
        return True
    caller.settimeout(0.01)
    try:
        while caller.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


class Stranger:
    """One that joined, as anybody may where there is no secret, and does as it likes then."""

    def __init__(self, port: int, job: str, secret: bytes | None = None) -> None:
        self.socket = asyncio.run(self._greeted(port, job, secret))

    @staticmethod
    async def _greeted(port: int, job: str, secret: bytes | None) -> socket.socket:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await greet(PeerStream(reader, writer, lambda *_: None), job, secret, listens=False)
        own = writer.get_extra_info("socket").dup()
        own.setblocking(True)
        writer.transport.abort()
        return own  # type: ignore[no-any-return]

    def say(self, kind: str, body: bytes = b"", **fields: object) -> bool:
        """Send a message; False where we have been let go."""
        try:
            self.socket.sendall(to_bytes(Message(kind, fields, body)))
        except OSError:
            return False
        return True


@pytest.mark.parametrize("secret", ["", "s3cret"], ids=["no secret", "secret"])
@pytest.mark.parametrize("kind", ["answer", "call", "left", "join"])
def test_a_client_that_floods_is_let_go(
    store: TCPStore, join: Join, monkeypatch: pytest.MonkeyPatch, kind: str, secret: str
) -> None:
    """At the first message out of turn, with the job's secret as well: it fills no memory."""
    monkeypatch.setenv("DISTTRACE_SECRET", secret)
    first = join("a", 1)
    join("b", 3)
    wait_until(lambda: first.clients, 5)
    port, job = protocol.ports(store.port)[0], protocol.job_of(store.port)
    stranger = Stranger(port, job, secret.encode() or None)
    stranger.say("join", id="flood", order=7)
    wait_until(lambda: len(first.clients) == 2, 5)
    sent = 0
    while sent < 1 << 30 and stranger.say(kind, pad="x" * 4000, id="flood", order=7, n=1):
        sent += 4000
    stranger.socket.close()
    assert sent < 64 << 20, "what fits into the buffers of two kernels"
    wait_until(lambda: first.clients == ["b"], 5)
    assert told(first.request()) == [b"b"]


@pytest.mark.parametrize("name", ["n" * 65, "n" * 5000, "", 7])
def test_a_wrong_name_is_refused(pair: tuple[Peers, int], store: TCPStore, name: object) -> None:
    first, port = pair
    stranger = Stranger(port, protocol.job_of(store.port))
    stranger.say("join", id=name, order=7)
    wait_until(lambda: _is_over(stranger.socket), 5)
    stranger.socket.close()
    assert first.clients == ["b"]


@pytest.mark.parametrize("most", [200_000, 100_000])
def test_all_peers_together_hold_no_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Pieces of messages from many connections of three addresses: that of the most is let go.
    Whole answers of all together are bounded too.
    """
    monkeypatch.setattr(endpoint, "MOST_BYTES", most)
    monkeypatch.setattr(endpoint, "MOST_GREETING", 100)
    in_virtual_time(partial(many_answers, most))


async def many_answers(most: int, wire: Wire) -> None:
    server, between = Endpoint("server", lambda *_: None, secret=None, network=wire), wire.network
    between.begin(server.run("job", (), [("0", 1)], 0))
    await asyncio.sleep(0.1)
    others = [Wire(between) for _ in range(4)]  # the last one is honest
    pieces = most == 200_000
    streams = [others[3], *(others[n % 3] for n in range(99 if pieces else 29))]
    clients = [await client(one, number) for number, one in enumerate(streams)]
    await asyncio.sleep(0.1)
    assert len(server.clients) == len(clients)
    answers = asyncio.ensure_future(server.request(("states",), None, 8_000, 1.5))
    await asyncio.sleep(0.1)
    for writer in clients[1:] if pieces else clients:
        part = struct.pack("!II", 1_000, 8_000) + b"x" * 7_000
        whole = to_bytes(Message("answer", {"n": 1}, b"x" * 8_000))
        writer.write(part if pieces else whole)
        await asyncio.sleep(0.01)
        assert server.held <= most
    if pieces:
        assert [any(one.is_closing() for one in clients), clients[0].is_closing()] == [True, False]
        clients[0].write(to_bytes(Message("answer", {"n": 1}, b"heard")))
    sizes = [len(answer.data) for answer in await answers]
    assert sizes == ([5] if pieces else [8_000] * 12)


async def client(wire: Wire, number: int) -> asyncio.StreamWriter:
    """One that has joined."""
    reader, writer = await wire.connect(("0", 1))
    await greet(PeerStream(reader, writer, lambda *_: None), "job", None, listens=False)
    writer.write(to_bytes(Message("join", {"id": f"c{number}", "order": number})))
    return writer


def test_of_one_address_so_many(pair: tuple[Peers, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood is turned away at the door, and the door stays open for the others."""
    first, port = pair
    monkeypatch.setattr(endpoint, "MOST_GREETING", 4)
    callers = [socket.create_connection(("127.0.0.1", port), 2) for _ in range(300)]
    time.sleep(0.3)
    assert sum(not _is_over(caller) for caller in callers) <= 4
    assert told(first.request()) == [b"b"]
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("ours", [None, b"one"])
@pytest.mark.parametrize("theirs", [None, b"one", b"other"])
def test_only_those_of_one_secret_speak(ours: bytes | None, theirs: bytes | None) -> None:
    """Nothing is said to one that has another one, or none."""

    async def speaks(_: Wire) -> None:
        caller, listener = await greeted(ours, theirs)
        assert caller.ready is listener.ready is (ours == theirs)
        if ours == theirs:
            caller.write(Message("beat", {"ms": 7}))
            assert (await listener.read("beat")).fields == {"ms": 7}

    in_virtual_time(speaks)


async def greeted(ours: bytes | None, theirs: bytes | None) -> tuple[PeerStream, PeerStream]:
    ends = Ends.pair(*(Wire(Between()) for _ in range(2)))
    caller, listener = (PeerStream(*end, lambda *_: None) for end in ends)
    outcomes = await asyncio.gather(
        greet(caller, "job", ours, listens=False),
        greet(listener, "job", theirs, listens=True),
        return_exceptions=True,
    )
    assert all(one is None or isinstance(one, endpoint.OVER) for one in outcomes)
    return caller, listener


@pytest.mark.parametrize("late", [False, True])
def test_a_message_in_pieces_has_a_time(*, late: bool) -> None:
    """Whoever begins one has to end it."""

    async def in_pieces(_: Wire) -> None:
        caller, listener = await greeted(None, None)
        data = to_bytes(Message("beat", {"ms": 7}))
        heard = asyncio.ensure_future(listener.read("beat"))
        for seconds, part in ((1e6, data[:5]), (endpoint.MESSAGE_S - 1 + 2 * late, data[5:])):
            await asyncio.sleep(seconds)
            caller._writer.write(part)
        with pytest.raises(EOFError) if late else nullcontext():
            assert (await heard).kind == "beat"

    in_virtual_time(in_pieces)


@pytest.mark.parametrize("head", [b"[]", b"{}", b'{"is":1}', b"\xff", b'{"is":"x"', b"[" * 12_000])
def test_a_head_of_anything_is_one_exception(head: bytes) -> None:
    with pytest.raises(Garbled):
        message_of(head)


@pytest.mark.parametrize(
    ("where", "here"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),  # the kernel would speak to it from 127.0.0.1
        ("192.0.2.1", False),  # of nobody (RFC 5737)
        ("0.0.0.0", False), ("::", False), ("2001:db8::1", False), ("no address", False),
    ],
)  # fmt: skip
def test_which_addresses_are_of_this_host(where: str, here: bool) -> None:
    assert is_here(where) is here


def test_a_store_at_a_second_address_is_served_there() -> None:
    with socket.create_server(("127.0.0.2", 0)):
        assert to_listen_at("127.0.0.2", ["127.0.0.2"]) == "127.0.0.2"
