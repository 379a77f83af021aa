"""What one process suspects of another by the pages in which both show what they called."""

from __future__ import annotations

from disttrace.recording.shown import (
    FACTOR,
    FIRST_LINE,
    KEPT,
    LINES,
    MASK,
    NEWEST,
    Compared,
    Page,
)

Calls = list[tuple[int, int]]
"""What, and from which line."""
STEP: Calls = [(7, 10), (7, 20), (9, 30)]


def pages(calls: Calls) -> Page:
    """As the native core leaves them after these calls."""
    words = [0] * (3 * KEPT)
    lines = list(dict.fromkeys(line for _, line in calls))
    words[LINES] = len(lines)
    words[FIRST_LINE : FIRST_LINE + len(lines)] = lines
    for number, (what, line) in enumerate(calls, 1):
        at, before = number % KEPT, (number - 1) % KEPT
        words[KEPT + at] = line
        words[2 * KEPT + at] = (words[2 * KEPT + before] * FACTOR + what) & MASK
    words[NEWEST] = len(calls)
    data = b"".join(word.to_bytes(8, "little") for word in words)
    return Page(memoryview(data).cast("Q"))


def suspected(known: Compared, ours: Calls, theirs: Calls) -> bool:
    known.ask_at = 0.0  # no time passes here
    return known.suspicious(pages(ours), pages(theirs))


def test_equal_calls_are_no_suspicion_however_many_were_made_in_between() -> None:
    known = Compared()
    for steps in (1, 3, 100, 4000):
        assert not suspected(known, STEP * steps, [*STEP * steps, STEP[0]])


def test_one_other_argument_is_seen_also_long_after_it() -> None:
    wrong = [*STEP * 2, (8, 10), *STEP[1:], *STEP * 5000]
    assert suspected(Compared(), wrong, STEP * 5003)


def test_a_line_of_one_side_alone_is_a_habit() -> None:
    logging = [(what, 31 if line == 30 else line) for what, line in STEP]
    assert not suspected(Compared(), logging * 50, STEP * 50)


def test_lines_that_both_know_are_suspicious_and_so_they_are_once_both_know_them() -> None:
    skipped = [*STEP[:1], *STEP[:2] * 3]
    same = [(7, line) for _, line in STEP]
    known = Compared()
    assert not suspected(known, same[:2], [same[1]])  # nobody has been at both
    assert suspected(known, same[:3], same[1:3])
    assert suspected(Compared(), skipped, same * 2)


def test_what_leads_to_nothing_is_a_habit_and_the_next_difference_is_not() -> None:
    """Rank 0 passes something else in one step, which no rule minds."""
    known = Compared()
    ours, theirs = [(5, 10), *STEP], [(6, 10), *STEP]
    asked = 0
    while asked < 20 and suspected(known, ours, theirs):
        asked += 1
    assert asked == 6
    ours, theirs = ours + STEP * 3000, theirs + STEP * 3000
    assert not suspected(known, ours, theirs)
    assert suspected(known, [*ours, (1, 10)], [*theirs, (2, 10)])
