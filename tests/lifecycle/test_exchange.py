"""Companions without a common folder: what they tell each other through the job's own store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from disttrace_viewer.companion import exchange
from disttrace_viewer.companion.exchange import Exchange
from disttrace_viewer.companion.store_client import MOST_BYTES, StoreClient
from disttrace_viewer.companion.told import addresses, beside
from disttrace_viewer.companion.verdict import journals
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.merged import trace_of
from support.journals import MS, UNIX_NS, Journal
from support.scenes import S


@pytest.fixture(params=[True, False], ids=["libuv", "plain"])
def store(request: pytest.FixtureRequest) -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5), use_libuv=request.param)


@pytest.fixture
def join(store: TCPStore) -> Iterator[Callable[..., Exchange]]:
    """Companions that answer in threads of their own until ``stop``, or the test is over."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    all_of: list[Exchange] = []

    def joined(name: str, order: int, answer: bytes, *, answers: bool = True) -> Exchange:
        one = Exchange(name, lambda all_of: b" of ".join([answer, *_line(all_of)]))
        assert one.join([("127.0.0.1", store.port)], order)
        all_of.append(one)

        def run() -> None:
            while not over.wait(0.02):
                one.poll()

        if answers:
            threads.append(threading.Thread(target=run))
            threads[-1].start()
        return one

    def stop() -> None:
        over.set()
        for thread in threads:
            thread.join()
        for one in all_of:
            one.leave()

    joined.stop = stop  # type: ignore[attr-defined]
    yield joined
    stop()


def _line(names: Sequence[str]) -> list[bytes]:
    return [" ".join(names).encode()] if names else []


def keys(store: TCPStore) -> int:
    return int(store.num_keys())


def test_the_client_speaks_as_torch_does(store: TCPStore) -> None:
    """What one writes the other reads; a program's keys begin with a slash there."""
    client = StoreClient("127.0.0.1", store.port, 5)
    assert client.add("/n", 3) == 3
    assert store.add("n", 4) == 7
    assert client.get("none") is None
    client.set("/v", b"\0" * MOST_BYTES)
    client.append("/v", b"x")
    assert client.get("/v") is not None  # nothing answers an append: what is read after it waits
    assert store.get("v") == b"\0" * MOST_BYTES + b"x"
    assert client.compare_set("/v2", b"", b"a") == b"a"
    assert client.compare_set("/v2", b"", b"b") == b"a"
    assert [client.delete("/v2"), client.delete("/v2")] == [True, False]
    client.close()


def test_one_leads_and_hears_all(store: TCPStore, join: Callable[..., Exchange]) -> None:
    """That of the lowest rank; answers of any length arrive whole; no key is left."""
    before = keys(store)
    long = bytes(range(256)) * 300
    first = join("a", 1, b"", answers=False)
    for name, order, answer in (("b", 3, b"of b"), ("c", 5, long)):
        join(name, order, answer)
    assert sorted(first.gather() or ()) == sorted([b"of b", long])
    assert sorted(first.gather() or ()) == sorted([b"of b", long])
    first.leave()
    join.stop()  # type: ignore[attr-defined]
    assert keys(store) == before


def test_all_is_asked_of_some(store: TCPStore, join: Callable[..., Exchange]) -> None:
    """Whose companion answers that; the next round is one like any other."""
    before = keys(store)
    first = join("a", 1, b"", answers=False)
    join("b", 3, b"of b")
    assert first.gather(["x", "y"]) == [b"of b of x y"]
    assert first.gather() == [b"of b"]
    first.leave()
    join.stop()  # type: ignore[attr-defined]
    assert keys(store) == before


def test_who_does_not_answer_is_not_waited_for_again(
    store: TCPStore, join: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its keys are removed for it: nobody else can."""
    monkeypatch.setattr(exchange, "ANSWER_S", 0.2)
    before = keys(store)
    first = join("a", 1, b"", answers=False)
    join("b", 3, b"killed", answers=False)
    assert first.gather() == []
    assert first.gather() == []
    first.leave()
    assert keys(store) == before


def test_what_a_failed_host_left_is_read_and_goes_with_the_stall(
    store: TCPStore, join: Callable[..., Exchange]
) -> None:
    """Also long before anybody else came; in each round."""
    before = keys(store)
    gone = Exchange("z", lambda _: b"")
    long = bytes(range(256)) * 300
    gone.leave_behind([("127.0.0.1", store.port)], long)
    assert not gone.open
    first = join("a", 1, b"", answers=False)
    join("b", 3, b"of b")
    assert [sorted(first.gather() or ()) for _ in range(2)] == [sorted([long, b"of b"])] * 2
    first.leave()
    join.stop()  # type: ignore[attr-defined]
    assert keys(store) == before


def test_an_answer_to_the_round_before_counts(
    store: TCPStore, join: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with much to do it may come too late every time; an older one does not."""
    monkeypatch.setattr(exchange, "ANSWER_S", 0.2)
    first = join("a", 1, b"", answers=False)
    late = join("b", 3, b"late", answers=False)
    assert first.gather() == []
    late.poll()
    assert [first.gather() for _ in range(3)] == [[b"late"], [b"late"], []]


def test_the_next_one_leads(
    store: TCPStore, join: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one that was killed, and after one whose processes cannot speak."""
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.3)
    monkeypatch.setattr(exchange, "FIRST_S", 0.1)
    monkeypatch.setattr(exchange, "ANSWER_S", 0.2)
    killed, second, third = (
        join(name, order, b"", answers=False) for name, order in (("a", 1), ("b", 3), ("c", 5))
    )
    assert killed.gather() is not None
    assert second.gather() is None
    assert comes_to_lead(second)
    second.mute()
    assert second.gather() is None
    assert comes_to_lead(third)


def test_who_rests_is_asked_and_does_not_lead(
    store: TCPStore, join: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for nobody; who does has its answer at once."""
    monkeypatch.setattr(exchange, "FIRST_S", 0.0)
    first = join("a", 1, b"of a")
    assert first.gather() == []
    first.rest()
    assert join("b", 3, b"", answers=False).gather() == [b"of a"]


def comes_to_lead(one: Exchange) -> bool:
    deadline = time.monotonic() + 20
    while one.gather() is None and time.monotonic() < deadline:
        one.poll()
        time.sleep(0.05)
    return time.monotonic() < deadline


@pytest.mark.parametrize("agent_pid", [1, 9])
def test_all_hosts_ask_the_same_store_first(tmp_path: Path, agent_pid: int) -> None:
    """Whichever journal is read first, and also where no group is there yet; not a dead one's."""
    agent = Journal(tmp_path / "host", agent_pid, role="agent")
    worker = Journal(tmp_path / "host", 5, rank=0, world_size=3)
    alone = Journal(tmp_path / "alone", 7, rank=1, world_size=3)
    dead = Journal(tmp_path / "host", 3, rank=2, world_size=3)
    for journal, port in ((agent, 29500), (worker, 1000), (alone, 44031), (dead, 2000)):
        store = journal.tcp_store(port, host="node1")
        journal.run(journal.call("store.get", kind="store", store=store), 1, 2)
    worker.group(worker.tcp_store(44031, host="node1"), default=True, size=3)
    dead.group(dead.tcp_store(2000, host="node1"), default=True, size=3)

    def asked(host: str) -> list[int]:
        merged = of_journals(journals(str(tmp_path / host), ""), window=None)
        alive = [p for p in trace_of(merged)[0].processes if p.pid != 3]
        return [port for _, port in addresses(merged, alive)]

    assert asked("host")[0] == 44031
    assert set(asked("host")) == {44031, 29500, 1000}
    assert asked("alone") == [44031]


def test_without_a_store_everybody_is_alone() -> None:
    """One that is gone, and one that is none: each host says what it knows."""
    gone = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=5))
    port = gone.port
    one = Exchange("a", lambda _: b"")
    del gone
    assert not one.join([("127.0.0.1", port)], 1)
    assert not one.open
    assert one.gather() is None
    one.leave()


def test_who_answers_nobody_is_read_beside_us(tmp_path: Path) -> None:
    """Bare processes draw a job each; those of another store are strangers."""
    for rank in range(3):
        port = 29500 if rank < 2 else 29600
        journal = Journal(tmp_path, job=f"job_{rank}", rank=rank, world_size=2, pid=700 + rank)
        call = journal.collective(journal.world(port))
        journal.run(call, t=MS, d=MS, q=1)
        os.utime(journal.definitions, ns=(UNIX_NS + S, UNIX_NS + S))
    ours = of_journals([str(p) for p in tmp_path.glob("job_0-*")])
    (found,) = beside(str(tmp_path), ours, [])
    assert found["process"]["pid"] == 701
    assert beside(str(tmp_path), ours, [found]) == []
    theirs = next(tmp_path.glob("job_1-*.defs.jsonl"))
    theirs.rename(tmp_path / "elsewhere")
    theirs.symlink_to(tmp_path / "elsewhere")
    assert beside(str(tmp_path), ours, []) == []  # nobody's links are followed
    (tmp_path / "elsewhere").replace(theirs)
    os.utime(theirs, ns=(UNIX_NS - S, UNIX_NS - S))
    assert beside(str(tmp_path), ours, []) == []  # it was there before us: another job's
