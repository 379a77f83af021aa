"""What is believed of what several tell: each process by the word of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from disttrace_viewer.analysis.liveness import Seen
from disttrace_viewer.companion.channel.rounds import Answer
from disttrace_viewer.companion.telling import answers
from disttrace_viewer.states.form.alike import Like, Position


@dataclass(frozen=True, slots=True)
class Word:
    """What one told of a process that it told as a whole, and of those that are like it."""

    answer: Answer
    position: Position
    seen: Seen | None


_Row = tuple[Word, Like | None]
"""A word, and whose it is, where that one is told to be like another one."""


def believed(told: Iterable[Answer]) -> dict[str, Word]:
    """By process what is believed of it. What cannot be read costs only the one who told it; what
    two tell of one process is not believed, unless one has shown that it is of our job.
    """
    rows: dict[str, list[_Row]] = {}
    for answer in told:
        try:
            positions, seen = answers.unpacked(answer.data)
        except answers.WRONG:
            continue  # of another version, or no answer at all: its ranks are not known then
        for position in positions:
            position = position.told_by(answer.sender)
            one = position.state.id
            word = Word(answer, position, seen.get(one))
            rows.setdefault(one, []).append((word, None))
            for like in position.likes:
                rows.setdefault(like.id, []).append((word, like))
    chosen = {one: _chosen(of) for one, of in rows.items()}
    found = {}
    for one, row in chosen.items():
        if row is None or row[1] is not None:
            continue
        word = row[0]
        kept = tuple(
            like
            for like in word.position.likes
            if (other := chosen[like.id]) is not None and other[1] is like
        )
        found[one] = replace(word, position=replace(word.position, likes=kept))
    return found


def _chosen(rows: Sequence[_Row]) -> _Row | None:
    """Of a host whose companion was replaced the newest counts."""
    known = [row for row in rows if row[0].answer.known]
    if known:
        return max(known, key=lambda row: (row[1] is None, row[0].position.state.rating))
    return rows[0] if len(rows) == 1 else None
