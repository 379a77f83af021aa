"""Where other threads stand, read while they could move: by each way that a process may have."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrace.journal import compiled
from disttrace.journal.code_files import BUILT_IN, LOOP
from disttrace.lifecycle import stack_sampler
from disttrace.lifecycle.stack_sampler import Line, Reader, dumped, handled_reader, parsed, reader
from support.processes import python, wait_until

COLLECTED = Path(__file__).parent / "collected.py"
SAFE_IN_PYTHON = sys.version_info[:2] != (3, 11)
READERS = [reader, lambda: dumped, lambda: stack_sampler.walked]
NAMES = ["reader", "dumped", "walked"]
COLLECTING = NAMES[: 3 if SAFE_IN_PYTHON else 2] + ["handled"] * (handled_reader() is not None)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """In this process `walked` is as safe as the others."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def stands() -> Iterator[Callable[[int], int]]:
    over = threading.Event()
    threads: list[threading.Thread] = []

    def start(depth: int) -> int:
        ready = threading.Event()

        def down(left: int) -> None:
            if left:
                down(left - 1)
            else:
                ready.set()
                over.wait()

        threads.append(threading.Thread(target=down, args=(depth,)))
        threads[-1].start()
        ready.wait()
        return threads[-1].ident or 0

    yield start
    over.set()
    for thread in threads:
        thread.join()


def own(lines: list[Line]) -> list[Line]:
    """Those of this file: what waits below an event may still be on its way there."""
    return [line for line in lines if line[0] == __file__]


@pytest.mark.parametrize("make", READERS, ids=NAMES)
def test_a_thread_that_stands(make: Callable[[], Reader], stands: Callable[[int], int]) -> None:
    """Innermost first, with the line of the call in every frame, and no thread that asks."""
    ident = stands(3)
    time.sleep(0.1)  # it comes out of `set`, and into `wait`
    found = make()(threading.get_ident())
    assert threading.get_ident() not in found
    first = start_line()
    frames = [(__file__, first + line, "down") for line in (8, 5, 5, 5)]
    assert own(found[ident]) == frames
    functions = [function for _, _, function in found[ident]]
    assert functions[-3:] == ["run", "_bootstrap_inner", "_bootstrap"]


def start_line() -> int:
    """Where `def start` stands."""
    text = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(text, 1) if "def start(" in line)


MOST = [(READERS[0], 200), (READERS[1], 100), (READERS[2], 200)]


@pytest.mark.parametrize(("make", "most"), MOST, ids=NAMES)
def test_deep_stacks(make: Callable[[], Reader], most: int, stands: Callable[[int], int]) -> None:
    """The outermost frames are left out."""
    ident = stands(300)
    lines = make()(threading.get_ident())[ident]
    assert len(lines) == most
    assert lines[-1][2] == "down"


@pytest.mark.parametrize("make", READERS, ids=NAMES)
def test_at_most_64_threads(make: Callable[[], Reader], stands: Callable[[int], int]) -> None:
    for _ in range(70):
        stands(0)
    assert len(make()(threading.get_ident())) == 64


@pytest.mark.parametrize("make", READERS, ids=NAMES)
def test_any_name(make: Callable[[], Reader]) -> None:
    file, over, ready = (
        'a "b", line 3 in c\u00e9\u20ac\U0001f600\udc80.py', threading.Event(), threading.Event(),
    )  # fmt: skip
    scope: dict[str, Callable[..., None]] = {}
    exec(compile("def caf\u00e9(r, o):\n r()\n o()", file, "exec"), scope)
    thread = threading.Thread(target=scope["caf\u00e9"], args=(ready.set, over.wait))
    thread.start()
    ready.wait()
    while True:
        lines = make()(threading.get_ident())[thread.ident or 0]
        if (file, 2, "caf\u00e9") not in lines:  # it has come out of `ready.set`
            break
    over.set()
    thread.join()
    assert (file, 3, "caf\u00e9") in lines


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_stays_as_it_is(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    reader()(threading.get_ident())
    assert gc.isenabled() == on


@pytest.mark.parametrize("name", COLLECTING)
def test_a_collection_at_any_allocation(name: str) -> None:
    """Frames pass to others meanwhile: each stack is one that the thread had."""
    done = python(str(COLLECTED), name, timeout=60.0).check()
    assert done.stderr == ""
    assert "'first': 14" in done.stdout, done.stdout


VAIN = {
    "while True: pass": {2}, "while not flag:\n  pass": {2, 3},
    "while not (self.done or flags[0]): continue": {2}, "while not event.is_set(): pass": {2},
    "while not self.queue.empty() is False:\n  time.sleep(0.001)": {2, 3},
    "while len(found) < n and not os.path.exists(flags): time.sleep(1)": {2},
    "while time.monotonic() < n: pass": set(), "while not event.is_set():\n  sum(range(9))": set(),
    "while not event.is_set():\n  n = len(flags)": set(),
    "while not event.is_set():\n  self.step()": set(), "while n < 10: n += 1": set(),
    "for n in range(9):\n  if flag: pass": set(), "[n for n in range(9)]": set(),
    "sum(range(9))": set(), "for line in flags:\n  self.step(line)": set(),
}  # fmt: skip


@pytest.mark.parametrize("body", VAIN)
@pytest.mark.parametrize("library", [0, 2])
def test_a_loop_that_only_looks(body: str, library: int) -> None:
    """A frame of its own tells it from one that computes, also while it is in what looks."""
    names: dict[str, Any] = {}
    body = body.replace("\n", "\n ")
    exec(f"def work(self, flags, n):\n {body}", {}, names)
    looks = ("/usr/lib/python3.11/threading.py", 579, "is_set")
    codes = [threading.Event.is_set.__code__] * library + [names["work"].__code__]
    found = {
        line
        for line in (2, 3)
        for one in stack_sampler.waits_in(
            codes, [looks] * library + [("/a/train.py", line, "work")]
        )
        if one[0] == LOOP
    }
    assert found == VAIN[body.replace("\n ", "\n")]
    first = stack_sampler.waits_in(codes[library:], [("/a/train.py", 2, "work")])
    loops = body.startswith("for") or (sys.version_info >= (3, 12) and " for " in body)
    assert ((BUILT_IN, 2, "next") in first) is loops, "it may be a file's line"


def test_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is safe for this Python; an exception that Python holds would die in ours."""
    monkeypatch.setattr(compiled, "load", Mock(side_effect=ImportError))
    monkeypatch.setattr(stack_sampler, "_native", stack_sampler._native.__wrapped__)
    assert reader() is (stack_sampler.walked if SAFE_IN_PYTHON else dumped)
    assert handled_reader() is None


def test_a_dump() -> None:
    text = (
        "Thread 0x000000000000000a (most recent call first):\n"
        '  File "/a\\xe9/b.py", line 12 in caf\\u20ac\n'
        '  File "c.py", line ??? in d\n'
        "  ...\n"
        "\n"
        "Thread 0x000000000000000b (most recent call first):\n"
        "  <no Python frame>\n"
        "\n"
        "Current thread 0x000000000000000c (most recent call first):\n"
        "  Garbage-collecting\n"
        '  File "e.py", line 1 in <module>\n'
    )
    first = [("/a\u00e9/b.py", 12, "caf\u20ac"), ("c.py", 0, "d")]
    assert parsed(text, 12) == {10: first}
    assert parsed(text, 10) == {12: [("e.py", 1, "<module>")]}


class Hides(Exception):  # noqa: N818
    """Nothing that the program put there may run in our thread."""

    args = property(lambda self: pytest.fail("asked"))

    def __str__(self) -> str:
        pytest.fail("asked")


def endless(depth: int) -> int:
    return endless(depth + 1)


@pytest.mark.skipif(handled_reader() is None, reason="nothing was compiled")
def test_what_a_thread_handles() -> None:
    """In `except`, `finally`, `__exit__`: its class, what of its arguments is plain, its lines."""
    over = threading.Event()

    def in_except() -> None:
        try:
            raise Hides("hidden", object(), 3)  # noqa: TRY301
        except Hides:
            over.wait()

    def in_finally() -> None:
        try:
            in_with_body()
        except ValueError:
            pass

    def in_with_body() -> None:
        try:
            raise ValueError("bad")
        finally:
            over.wait()

    def in_exit() -> None:
        with contextlib.ExitStack() as stack:
            stack.push(lambda *error: over.wait())  # it is true, so the error goes no further
            del os.environ["DISTTRACE_NO_SUCH"]

    def deep() -> None:
        try:
            endless(0)
        except RecursionError:
            over.wait()

    def no_longer() -> None:
        try:
            raise ValueError("old")  # noqa: TRY301
        except ValueError:
            pass
        over.wait()

    bodies = (in_except, in_finally, in_exit, deep, no_longer)
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    look = handled_reader()
    assert look is not None
    wait_until(lambda: len(look(threading.get_ident())) == 4, 30)
    found = look(threading.get_ident())
    over.set()
    for thread in threads:
        thread.join()
    told = [found.get(thread.ident or 0) for thread in threads]
    assert told[4] is None
    names = [(name, args, lines[0][2], lines[-1][2]) for name, args, lines in told[:4]]  # type: ignore[misc]
    assert names == [
        ("Hides", ["hidden", 3], "in_except", "in_except"),
        ("ValueError", ["bad"], "in_with_body", "in_with_body"),
        ("KeyError", ["DISTTRACE_NO_SUCH"], "__delitem__", "in_exit"),
        ("RecursionError", names[3][1], "endless", "endless"),
    ]
    assert len(told[3][2]) == 200  # type: ignore[index]
    assert look(threading.get_ident()) == {}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["bad batch"], "bad batch"),
        ([2, "No such file"], "[Errno 2] No such file"),
        ([], ""),
        ([10**5000], "..."),  # `str` raises
        ([-1, 10**5000, "x"], "-1, ..., x"),
        (["x" * 50_000], "x" * 20_000),
    ],
)
def test_the_text_of_arguments(args: list[str | int], text: str) -> None:
    """Whatever they hold: what raised here would switch the samples off."""
    assert stack_sampler._text(args) == text
