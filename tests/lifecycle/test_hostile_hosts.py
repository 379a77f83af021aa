"""Whoever reaches a companion's port: none of it delays a round, or costs more than its sender."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from disttrace_viewer.companion.channel import conversation, coordinator, places, station
from disttrace_viewer.companion.channel.conversation import Conversation
from disttrace_viewer.companion.channel.message import Garbled, Message, from_bytes, to_bytes
from disttrace_viewer.companion.exchange import Exchange

Hostile = Callable[[socket.socket], None]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meeting of a test is complete sooner than one of a thousand hosts."""
    monkeypatch.setattr(coordinator, "GATHER_S", 0.1)
    monkeypatch.setattr(conversation, "GREETING_S", 0.5)


@pytest.fixture
def store_port(port: int) -> Iterator[int]:
    """Where a job's store listens."""
    with socket.create_server(("127.0.0.1", port)):
        yield port


@pytest.fixture
def pair(store_port: int) -> Iterator[tuple[Exchange, int]]:
    """Two companions that have met, the first of them at a port."""
    over = threading.Event()
    both = [Exchange(name, lambda _wanted, _whole: b"told", lambda data: data) for name in "ab"]
    for order, one in enumerate(both):
        assert one.join([("127.0.0.1", store_port)], order)
        within(10, lambda one=one: one.open)  # type: ignore[misc]

    def answer() -> None:
        while not over.wait(0.02):
            both[1].poll()

    thread = threading.Thread(target=answer)
    thread.start()
    within(10, lambda: both[0].gather() is not None)
    yield both[0], places.ports(store_port)[0]
    over.set()
    thread.join()
    for one in both:
        one.close()


def within(seconds: float, condition: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def says_nothing(caller: socket.socket) -> None:
    """A port scanner that holds the line."""


def garbage(caller: socket.socket) -> None:
    """Bytes of another protocol, and of none."""
    caller.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(4096))


def huge(caller: socket.socket) -> None:
    """A length that nobody has memory for."""
    caller.sendall(struct.pack("!II", 40, 0xFFFF_FFF0) + b"x" * 40)


def slowly(caller: socket.socket) -> None:
    """A greeting of which a byte comes now and then."""
    for byte in to_bytes(Message("hello", {"job": "x", "drawn": "y", "proof": ""})):
        caller.sendall(bytes([byte]))
        time.sleep(0.1)


def wrong_job(caller: socket.socket) -> None:
    """One that speaks as we do, about something else."""
    caller.sendall(to_bytes(Message("hello", {"job": "x", "drawn": "y", "proof": ""})))


def without_joining(caller: socket.socket) -> None:
    """One that answers, asks and leads without having come in."""
    for kind in ("answer", "gather", "confirm", "stands", "gathered", "welcome"):
        caller.sendall(to_bytes(Message(kind, {"n": 1, "term": 1, "round": 1}, b"x" * 100)))


def resets(caller: socket.socket) -> None:
    """One that goes in the middle of it."""
    caller.sendall(b"\0\0")
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


ALL = (says_nothing, garbage, huge, slowly, wrong_job, without_joining, resets)


@pytest.mark.parametrize("hostile", ALL, ids=lambda one: one.__name__)
def test_a_round_is_not_disturbed(pair: tuple[Exchange, int], hostile: Hostile) -> None:
    """A hundred of them at once: all are let go, and the others are heard at once."""
    first, port = pair
    callers = []
    for _ in range(100):
        caller = socket.create_connection(("127.0.0.1", port), 2)
        callers.append(caller)
        threading.Thread(target=_quietly, args=(hostile, caller), daemon=True).start()
    took = []
    for _ in range(5):
        began = time.monotonic()
        answers = first.gather()
        took.append(time.monotonic() - began)
        assert answers is not None
        assert [one.data for one in answers] == [b"told"]
        assert first.confirm()
    assert max(took) < 1.0
    within(5, lambda: all(map(_is_over, callers)))
    for caller in callers:
        caller.close()


def _quietly(hostile: Hostile, caller: socket.socket) -> None:
    with suppress(OSError):
        hostile(caller)


def _is_over(caller: socket.socket) -> bool:
    """Whether the other side has let go of it."""
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


class Member:
    """One that joined as any stranger may, and does as it likes then."""

    def __init__(self, port: int, store_job: str, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 2)
        self.talk = Conversation(store_job, None, listens=False, now=0.0)
        self.talk.most_body = 1 << 20
        self.heard: list[Message] = []
        while not self.talk.ready:
            self.hear()
        self.say("join", id=name, order=0, term=0)

    def hear(self) -> None:
        messages, answer = self.talk.heard(self.socket.recv(1 << 16), 0.0)
        self.heard += messages
        if answer:
            self.socket.sendall(answer)

    def say(self, kind: str, body: bytes = b"", **fields: object) -> None:
        with suppress(OSError):  # it may have been let go
            self.socket.sendall(self.talk.said(Message(kind, fields, body)))


def test_a_member_that_lies_costs_its_own_word(pair: tuple[Exchange, int], store_port: int) -> None:
    """It cannot take another's name or its answers' place, nor lead while somebody does."""
    first, port = pair
    job = places.job_of(store_port)
    for name in ("a", "liar", "b"):
        member = Member(port, job, name)
        within(5, lambda m=member: (m.hear(), m.heard)[1])  # type: ignore[misc]
        member.say("gather", n=1, wanted=[])
        member.say("answer", b"x" * 1000, round=1 << 40)
        member.say("stance", mute=True, rests=False)
        answers = first.gather()
        assert answers is not None
        assert b"told" in [one.data for one in answers] or name == "b"  # ours say who they are
        assert not [one for one in answers if one.data == b"x" * 1000]
        assert first.confirm()
        kinds = [message.kind for message in member.heard]
        assert "gathered" not in kinds
        member.socket.close()


def test_from_one_address_only_so_many(
    pair: tuple[Exchange, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood is turned away at the door, and the door stays open for the others."""
    first, port = pair
    monkeypatch.setattr(station, "MOST_GREETING", 4)
    callers = [socket.create_connection(("127.0.0.1", port), 2) for _ in range(300)]
    time.sleep(0.3)
    assert sum(not _is_over(caller) for caller in callers) <= 4
    assert first.gather() is not None
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("secrets", [(b"one", b"other"), (b"one", None), (None, b"one")])
def test_without_the_secret_nothing_is_said(secrets: tuple[bytes | None, bytes | None]) -> None:
    """Neither to one that has another one, nor to one that has none."""
    with pytest.raises(Garbled):
        greeted(*secrets)


@pytest.mark.parametrize("secret", [b"one", None])
def test_with_the_same_secret_both_speak(secret: bytes | None) -> None:
    """Each message of theirs is proved, where there is a secret."""
    caller, listener = greeted(secret, secret)
    assert caller.proved is listener.proved is (secret is not None)
    for number in range(3):
        said = caller.said(Message("beat", {"n": number}))
        messages, _ = listener.heard(said, 0.0)
        assert [message.fields for message in messages] == [{"n": number}]


@pytest.mark.parametrize("change", ["again", "changed", "left out"])
def test_nobody_in_between_can_change_what_is_said(change: str) -> None:
    """Nor say it again, nor leave one out."""
    caller, listener = greeted(b"one", b"one")
    first, second = (caller.said(Message("beat", {"n": n})) for n in range(2))
    sent = {
        "again": first + first,
        "changed": first.replace(b'"n":0', b'"n":7'),
        "left out": second,
    }[change]
    with pytest.raises(Garbled):
        listener.heard(sent, 0.0)


def greeted(ours: bytes | None, theirs: bytes | None) -> tuple[Conversation, Conversation]:
    caller = Conversation("job", ours, listens=False, now=0.0)
    listener = Conversation("job", theirs, listens=True, now=0.0)
    _, hello = caller.heard(listener.greeting(), 0.0)
    _, answer = listener.heard(hello, 0.0)
    caller.heard(answer, 0.0)
    assert caller.ready
    assert listener.ready
    return caller, listener


def test_a_message_in_pieces_has_a_time() -> None:
    """Whoever begins one has to end it."""
    caller, listener = greeted(None, None)
    data = caller.said(Message("beat"))
    listener.heard(data[:5], 100.0)
    assert not listener.overdue(105.0)
    assert listener.overdue(100.1 + conversation.MESSAGE_S)
    assert [one.kind for one in listener.heard(data[5:], 105.0)[0]] == ["beat"]
    assert not listener.overdue(1e9)


@pytest.mark.parametrize("head", [b"[]", b"{}", b'{"is":1}', b"\xff", b'{"is":"x"', b"[" * 16_000])
def test_a_head_of_anything_is_one_exception(head: bytes) -> None:
    """By which a conversation ends."""
    with pytest.raises(Garbled):
        from_bytes(struct.pack("!II", len(head), 0) + head)
