"""Companions without a common folder: how they meet, who leads, and what they tell each other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from disttrace_viewer.companion import exchange
from disttrace_viewer.companion.channel import coordinator, places, station
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.exchange import Exchange

Join = Callable[..., Exchange]


BOTH = pytest.mark.parametrize("store", [True, False], ids=["libuv", "plain"], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> TCPStore:
    libuv = getattr(request, "param", True)
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), use_libuv=libuv)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A meeting of a test is complete sooner than one of a thousand hosts."""
    monkeypatch.setattr(coordinator, "GATHER_S", 0.2)


def answering(answer: bytes) -> Callable[[Sequence[str], bool], bytes]:
    def answered(wanted: Sequence[str], whole: bool) -> bytes:
        told = answer if whole else b"public"
        return b" of ".join([told, *([" ".join(wanted).encode()] if wanted else [])])

    return answered


@pytest.fixture
def join(store: TCPStore) -> Iterator[Join]:
    """Companions that answer in threads of their own until the test is over."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    all_of: list[Exchange] = []

    def joined(name: str, order: int, answer: bytes, *, answers: bool = True) -> Exchange:
        one = Exchange(name, answering(answer), lambda data: b"public")
        all_of.append(one)
        assert one.join([("127.0.0.1", store.port)], order)
        within(10, lambda: one.open)

        def run() -> None:
            while not over.wait(0.02):
                one.poll()

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


def within(seconds: float, condition: Callable[[], object]) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def comes_to_lead(one: Exchange) -> list[Answer]:
    found: list[Answer] = []

    def led() -> bool:
        answers = one.gather()
        found[:] = answers or ()
        return answers is not None

    within(20, led)
    return found


def told(answers: Sequence[Answer]) -> list[bytes]:
    return sorted(answer.data for answer in answers)


@BOTH
def test_one_leads_and_hears_all(store: TCPStore, join: Join) -> None:
    """That of the lowest order, whoever has the port; answers of any length arrive whole."""
    long = bytes(range(256)) * 300
    join("c", 5, long)
    join("b", 3, b"of b")
    first = join("a", 1, b"")
    assert told(comes_to_lead(first)) == sorted([b"of b", long])
    assert first.confirm()
    assert told(first.gather() or ()) == sorted([b"of b", long])


@BOTH
def test_nothing_is_in_the_store(store: TCPStore, join: Join) -> None:
    """Before, while and after companions meet by it: no entry, and none that is waited for."""
    store.set("mine", "1")
    before = int(store.num_keys())
    counted = {before}
    first = join("a", 1, b"")
    second = join("b", 3, b"of b")
    counted.add(int(store.num_keys()))
    comes_to_lead(first)
    counted.add(int(store.num_keys()))
    first.leave()
    second.leave()
    counted.add(int(store.num_keys()))
    assert counted == {before}


def test_nothing_is_asked_of_the_store() -> None:
    """A connection to it is held, and no byte goes over it; when we leave it ends."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = Exchange("a", answering(b""), lambda data: data)
        assert one.join([server.getsockname()], 1)
        caller, _ = server.accept()
        with caller:
            within(10, lambda: one.gather() == [])
            assert one.confirm()
            one.close()
            caller.settimeout(5)
            heard.append(caller.recv(100))
    assert heard == [b""]


def test_all_is_asked_of_some(store: TCPStore, join: Join) -> None:
    """Whose companion answers that; the next round is one like any other."""
    first = join("a", 1, b"")
    join("b", 3, b"of b")
    comes_to_lead(first)
    assert told(first.gather(["x", "y"]) or ()) == [b"of b of x y"]
    assert told(first.gather() or ()) == [b"of b"]


def test_who_does_not_answer_is_not_waited_for_again(store: TCPStore, join: Join) -> None:
    """It costs one round its time, and no other one."""
    first = join("a", 1, b"")
    join("b", 3, b"stopped", answers=False)
    assert comes_to_lead(first) == []
    began = time.monotonic()
    assert first.gather() == []
    assert time.monotonic() - began < 1.0


def test_what_a_failed_host_left_is_told(store: TCPStore, join: Join) -> None:
    """Whether its companion comes before all others or after them; and then it is gone."""
    gone = Exchange("z", answering(b""), lambda data: data)
    long = bytes(range(256)) * 300
    address = ("127.0.0.1", store.port)
    leaving = threading.Thread(
        target=lambda: gone.leave_behind([address], long, stay_s=30), daemon=True
    )
    leaving.start()
    time.sleep(1.0)
    first = join("a", 1, b"")
    assert told(comes_to_lead(first)) == sorted([long, b""])
    second = Exchange("y", answering(b""), lambda data: data)
    second.leave_behind([address], b"of y", stay_s=20)
    within(20, lambda: b"of y" in told(first.gather() or ()))
    first.close()
    leaving.join(20)
    assert not leaving.is_alive()


def test_who_failed_does_not_stay_where_the_store_has_gone() -> None:
    """Then the job is over, and nobody will ask."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5))
    gone = Exchange("z", answering(b""), lambda data: data)
    address = ("127.0.0.1", store.port)
    leaving = threading.Thread(
        target=lambda: gone.leave_behind([address], b"", stay_s=60), daemon=True
    )
    leaving.start()
    time.sleep(0.5)
    assert leaving.is_alive()
    del store
    leaving.join(10)
    assert not leaving.is_alive()


def test_the_next_one_leads(store: TCPStore, join: Join) -> None:
    """After one that is gone, and after one whose processes cannot speak; those do not speak."""
    first, second, third = (
        join(name, order, name.encode()) for name, order in (("a", 1), ("b", 3), ("c", 5))
    )
    comes_to_lead(first)
    assert second.gather() is None
    first.close()
    within(20, lambda: told(second.gather() or ()) == [b"c"])
    second.mute()
    assert second.gather() is None
    assert told(comes_to_lead(third)) == [b"b"]
    assert not second.confirm()
    assert third.confirm()


def test_who_rests_is_asked_and_does_not_lead(store: TCPStore, join: Join) -> None:
    """It waits for nobody; who does has its answer."""
    first = join("a", 1, b"of a")
    comes_to_lead(first)
    first.rest()
    assert told(comes_to_lead(join("b", 3, b""))) == [b"of a"]


def test_who_is_not_asked_for_long_says_what_it_knows(
    store: TCPStore, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps the lead and asks nobody does not keep the others silent for ever."""
    first = join("a", 1, b"")
    second = join("b", 3, b"")
    comes_to_lead(first)
    monkeypatch.setattr(exchange, "UNHEARD_S", 1.0)
    time.sleep(0.2)
    assert second.gather() is None
    time.sleep(1.1)
    assert second.gather() == []
    assert second.confirm()
    assert not second.open
    assert told(first.gather() or ()) == [b""]
    within(5, lambda: second.open)  # it was asked: somebody leads
    assert second.gather() is None


def test_without_a_store_everybody_is_alone() -> None:
    """One that is gone: each host says what it knows."""
    gone = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5))
    address = ("127.0.0.1", gone.port)
    one = Exchange("a", answering(b""), lambda data: data)
    del gone
    assert not one.join([address], 1)
    assert not one.open
    one.leave()


def test_a_port_that_another_program_has_is_passed_over(
    store: TCPStore, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it says nothing or something else: nothing is sent to it, and all meet elsewhere."""
    monkeypatch.setattr(station, "SEEK_S", 0.5)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", places.ports(store.port)[0])) as other:

        def serve() -> None:
            while True:
                try:
                    caller, _ = other.accept()
                except OSError:
                    return
                with caller:
                    caller.settimeout(3)
                    try:
                        heard.append(caller.recv(100))
                    except OSError:
                        heard.append(b"")

        serving = threading.Thread(target=serve)
        serving.start()
        first = join("a", 1, b"")
        join("b", 3, b"of b")
        assert told(comes_to_lead(first)) == [b"of b"]
        other.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert set(heard) <= {b""}


def test_with_a_secret_whoever_has_another_one_is_alone(
    store: TCPStore, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is told anything by the other; those with one secret are told all."""
    monkeypatch.setenv("DISTTRACE_SECRET", "s3cret")
    first = join("a", 1, b"")
    join("b", 3, b"all of b")
    monkeypatch.setenv("DISTTRACE_SECRET", "another")
    stranger = Exchange("c", answering(b"of c"), lambda data: b"public")
    assert stranger.join([("127.0.0.1", store.port)], 0)
    time.sleep(1.0)
    assert told(comes_to_lead(first)) == [b"all of b"]
    stranger.close()
