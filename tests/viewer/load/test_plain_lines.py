"""Lines that are read as numbers give the columns that they give one by one."""

from __future__ import annotations

import random

import pytest
from polars.testing import assert_frame_equal

from disttrace_viewer.load import segments
from disttrace_viewer.load.segments import Chunk, Slice
from disttrace_viewer.load.text import Text

ODD = (
    b'{"b":9,"t":7,"s":3,"k":"a,b"}', b'{"b":9,"t":7,"s":3,"k":["a","b"]}',
    b'{"b":9,"t":7,"s":3,"a":{"bytes":4}}', b'{"b":9,"t":-7,"s":3}', b'{"b":9,"t":7.5}',
    b'{"b":9,"t":99999999999999999999,"s":3}', b'{"b":,"t":7,"s":3}', b'{"b":9,"t":7,"t":8}',
    b'{"b":9,"s":3}', b'{"b":4294967296,"t":1}', b'{"e":9,"d":null}', b'{"e":9,"d":1,"q":8,"y":2}',
    b'{"e":9,"d":1,"w":8}', b'{"c":9,"d":1,"g":4}', b'{"l":9,"d":1,"o":1}', b'{"hb":77}',
    b'{"at":78,"k":1}', b'{"new":1}', b"{}", b"[1]", b'"', b"torn{", b"123", b'{"b":9, "t":7}',
)  # fmt: skip


def lines(seed: int) -> list[bytes]:
    """Plain ones, and some of the others."""
    drawn = random.Random(seed)
    found = [b'{"seg":1,"format":1,"process":"ab12","t":5}']
    for number in range(1, 80):
        keys = drawn.choice((b"", b',"q":%d' % number, b',"p":1', b',"h":2,"q":3,"p":4'))
        found.append(b'{"b":%d,"t":%d,"s":%d%s}' % (number, 1000 * number, number % 7, keys))
        found.append(b'{"i":%d,"d":1}' % number)
        more = drawn.choice((b"", b',"u":5', b',"u":5,"v":6', b',"x":7'))
        found.append(b'{"e":%d,"d":%d%s}' % (number, drawn.randint(0, 10**12), more))
        if seed and drawn.random() < 0.3:
            found.append(drawn.choice(ODD))
    return found


def parsed(seed: int) -> Chunk:
    """The lines as those of two files."""
    found = lines(seed)
    half = len(found) // 2
    parts = []
    for file, part in enumerate((found[:half], found[half:])):
        parts.append(Slice(file, Text(str(file), b"\n".join(part) + b"\n", len(part)), 1))
    return segments.parse(parts)


@pytest.mark.parametrize("seed", range(12))
def test_columns_are_those_of_json(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, with the same lines counted as unreadable."""
    found = parsed(seed)
    assert found.begins.height >= 79
    monkeypatch.setattr(segments, "shapes_of", lambda data, count: None)
    json = parsed(seed)
    assert_frame_equal(found.begins, json.begins)
    assert_frame_equal(found.ends, json.ends)
    assert_frame_equal(found.marks, json.marks)
    assert (found.signs, found.bad) == (json.signs, json.bad)


def test_plain_lines_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the head of the segment."""
    taken: list[int] = []
    monkeypatch.setattr(segments._Reader, "take", lambda *args: taken.append(args[2].height))
    parsed(0)
    assert taken == [1]
