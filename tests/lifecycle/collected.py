"""The collector runs at each allocation of a look at another thread in turn, and lets that go on.

    python collected.py READER

Garbage of this thread has a finalizer that waits until the other thread is in other frames, whose
locals lie where those were. READER is the function of ``stack_sampler`` that looks (``handled``: at
the exception). Prints in how many rounds it saw the first frames and the later ones.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from disttrace.lifecycle import stack_sampler

ROUNDS, DEPTH = 150, 20


class Local:
    """What lies in the frames."""


class Round:
    """One look, with a collection at its allocation ``number``."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stands, self.may_go, self.went_on, self.is_over = (threading.Event() for _ in range(4))

    def look(self, read: Callable[[int], dict[int, Any]]) -> Any:
        other = threading.Thread(target=self.run)
        other.start()
        self.stands.wait()
        gc.disable()
        gc.collect()
        Garbage(self)
        gc.set_threshold(self.number)
        gc.enable()
        found = read(threading.get_ident())
        gc.set_threshold(0)
        self.may_go.set()
        self.is_over.set()
        other.join()
        gc.collect()  # no finalizer runs as the interpreter ends
        return found.get(other.ident or 0)

    def run(self) -> None:
        self.first(DEPTH)
        self.then(DEPTH, Local())

    def first(self, depth: int) -> None:
        if depth:
            self.first(depth - 1)
            return
        try:
            raise LookupError("x" * 1000)  # noqa: TRY301
        except LookupError:
            self.stands.set()
            self.may_go.wait()

    def then(self, depth: int, *values: Local) -> None:
        a = b = c = d = e = f = g = h = values  # noqa: F841
        if depth:
            self.then(depth - 1, *values, Local())
        else:
            self.went_on.set()
            self.is_over.wait()


class Garbage:
    def __init__(self, of: Round) -> None:
        self.round, self.cycle = of, self

    def __del__(self) -> None:
        threading.Thread(target=int).start()
        self.round.may_go.set()
        self.round.went_on.wait(10)


def main(name: str) -> None:
    seen = {"first": 0, "then": 0}
    if name == "handled":
        handled = stack_sampler.handled_reader()
        assert handled is not None
        for number in range(1, ROUNDS):
            found = Round(number).look(handled)
            seen["then" if found is None else "first"] += 1
            if found is not None:
                assert found[:2] == ("LookupError", ["x" * 1000]), found
                assert [function for _, _, function in found[2]] == ["first"]
        print(seen)
        return
    read = stack_sampler.reader() if name == "reader" else getattr(stack_sampler, name)
    for number in range(1, ROUNDS):
        functions = [function for _, _, function in Round(number).look(read)]
        where = "first" if "first" in functions else "then"
        expected = [*[where] * (DEPTH + 1), "run"]
        at = functions.index(where)
        assert functions[at : at + DEPTH + 2] == expected, functions
        assert set(functions[:at]) <= {"wait", "__enter__", "__exit__"}, functions
        seen[where] += 1
    print(seen)


if __name__ == "__main__":
    main(sys.argv[1])
