"""What hosts send of their ranks: blocks, as numbers and hashes, nothing of a program's.

The server says in the words of its request which ranks are slow.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from disttrace_viewer.companion.slow.blocks import MOST_SHIFT, Block
from disttrace_viewer.companion.slow.ranks import Slow
from disttrace_viewer.states.state import inflated
from disttrace_viewer.trace.plain_text import plain

VERSION = 1
MOST_BLOCKS = 4096
"""Of one answer: of more the newest."""
MOST_PLACES = 12
"""Of a block: those with most time."""
MOST_SLOW = 32
MOST_NAME = 64
_NAME = re.compile(r"[0-9a-f]{1,16}")
_MOST = 1 << 62


def packed(blocks: Sequence[Block], host: str) -> bytes:
    """Blocks as bytes, and of which host they are."""
    rows = [
        [one.group, one.shift, one.index, one.rank, one.size, one.span_ns, _places(one)]
        for one in blocks[-MOST_BLOCKS:]
    ]
    return zlib.compress(orjson.dumps({"slow": VERSION, "host": host, "blocks": rows}), 6)


def _places(block: Block) -> list[tuple[str, int, int, int]]:
    found = [(place, *sums) for place, sums in block.places.items()]
    return sorted(found, key=lambda row: -row[2] - row[3])[:MOST_PLACES]


def unpacked(data: bytes) -> tuple[list[Block], str]:
    """The blocks of an answer and the name of its host; none of one that is not sound."""
    try:
        told = orjson.loads(inflated(data))
        if told["slow"] != VERSION or len(told["blocks"]) > MOST_BLOCKS:
            return [], ""
        return [_block(*row) for row in told["blocks"]], plain(told["host"][:MOST_NAME])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [], ""


def _block(
    group: Any, shift: Any, index: Any, rank: Any, size: Any, span_ns: Any, places: Any
) -> Block:
    numbers = (shift, index, rank, size, span_ns)
    sums = [one for _, *counts in places for one in counts]
    if any(type(one) is not int or not 0 <= one < _MOST for one in (*numbers, *sums)):
        raise ValueError("a number")
    if not all(_NAME.fullmatch(one) for one in (group, *(place for place, *_ in places))):
        raise ValueError("a name")
    if shift > MOST_SHIFT or len(places) > MOST_PLACES:
        raise ValueError("a block")
    found = {place: (n, away, inside) for place, n, away, inside in places}
    return Block(group, shift, index, rank, size, span_ns, found)


def words(slow: Iterable[Slow]) -> list[str]:
    """Who is slow, as words of a question: up to 64 characters each."""
    return [
        f"slow {s.rank} {s.others} {s.share:.4f} {s.since:.0f} {s.rank_hours:.4f} {s.place}"
        for s in list(slow)[:MOST_SLOW]
    ]


def heard(question: Iterable[str]) -> list[Slow]:
    """Who is slow, by the words of a question."""
    found = []
    for one in question:
        kind, *rest = one.split(" ")
        try:
            rank, others, share, since, hours, place = rest
            if kind == "slow" and (not place or _NAME.fullmatch(place)):
                row = (int(others), float(share), float(since), place, float(hours))
                found.append(Slow(int(rank), "", *row))
        except ValueError:
            continue
    return found
