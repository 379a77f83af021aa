"""Records of a segment that are taken at once hold what they hold one after the other."""

from __future__ import annotations

import dataclasses
import random

import orjson
import pytest

from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.states.reading import Reading

CALLS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("collective", "all_reduce", {"group": 1, "backend": "gloo", "stack": 1}),
    ("collective", "broadcast", {"group": 1, "backend": "gloo", "stack": 2}),
    ("collective", "all_reduce", {"group": 2, "backend": "gloo", "stack": 1}),
    ("message", "recv", {"group": 1, "backend": "gloo", "peer": 0}),
    ("store", "store.get", {"store": 1}),
    ("composed", "new_group", {}),
    ("constructor", "TCPStore", {"store": 1}),
)


def definitions() -> Definitions:
    """Of seven calls, as many as there are kinds of what is kept."""
    found = Definitions()
    for number, (kind, op, keys) in enumerate(CALLS, 1):
        found.add({"def": "call", "n": number, "kind": kind, "op": op, **keys})
    return found


def lines(seed: int) -> list[bytes]:
    """Operations one in another, in two threads, some asynchronous, and some not over."""
    drawn = random.Random(seed)
    found: list[dict[str, object]] = [{"seg": 1, "format": 1, "process": "a" * 32, "t": 1}]
    numbers: dict[object, int] = {}
    opened: list[int] = []
    odd = seed % 3 == 0
    for number in range(1, 200):
        call = drawn.choice((1, 1, 1, 2, 3, 4, 5, 6, 7) if number < 60 else (1, 1, 2, 3, 4))
        begin: dict[str, object] = {"b": number, "t": 1000 * number, "s": call}
        if drawn.random() < 0.1:
            begin["h"] = 1
        if opened and drawn.random() < 0.3:
            begin["p"] = opened[-1]
        if call < 5:
            stream = CALLS[call - 1][2].get("group"), call == 4
            begin["q"] = numbers[stream] = numbers.get(stream, 0) + 1
        elif call == 5:
            begin["k"] = drawn.choice(("a", ["a", "b"]))
        found.append(begin)
        opened.append(number)
        if drawn.random() < 0.2:
            found.append({"i": number, "d": 10})
            found.append({"w": number, "d": 20})
        if odd and drawn.random() < 0.05:
            found.append({"c": number, "d": 30})
        while opened and drawn.random() < 0.6:
            end: dict[str, object] = {"e": opened.pop(), "d": drawn.randint(30, 5000)}
            times: tuple[dict[str, object], ...] = ({}, {"u": 5}, {"v": 7}, {"u": 5, "v": 7})
            end |= drawn.choice(times)
            if odd and drawn.random() < 0.1:
                more: tuple[dict[str, object], ...] = ({"x": 1}, {"y": 2}, {"x": 1, "f": 1})
                end |= drawn.choice(more)
            found.append(end)
        if drawn.random() < 0.05:
            found.append({"hb": 1000 * number} if number % 2 else {"at": 1000 * number, "k": 1})
    return [orjson.dumps(record) for record in found]


def taken(pieces: list[list[bytes]]) -> dict[str, object]:
    """What is kept of a segment's pieces; clocks are set by the newest exchanges of a read."""
    found = Reading(definitions())
    for piece in pieces:
        found.take(b"\n".join(piece) + b"\n")
    kept = {f.name: getattr(found, f.name) for f in dataclasses.fields(Reading)}
    return {
        name: value
        for name, value in kept.items()
        if not name.startswith("_") and name not in ("definitions", "met")
    }


@pytest.mark.parametrize("seed", range(30))
def test_many_lines_at_once_are_as_one_after_the_other(seed: int) -> None:
    segment = lines(seed)
    at = random.Random(seed).randint(1, len(segment) - 1)
    assert taken([segment[:at], segment[at:]]) == taken([[line] for line in segment])


@pytest.mark.parametrize(
    "line", [b'{"e":1,"d":99999999999999999999}', b'{"b":3,"t":99999999999999999999,"s":1}']
)
def test_a_number_beyond_64_bits_is_counted_as_unreadable(line: bytes) -> None:
    """And what else there is counts."""
    found = taken([[b'{"b":1,"t":5,"s":1}', line, b'{"b":2,"t":6,"s":1}']])
    assert (found["count"], found["bad"]) == (2, 1)
