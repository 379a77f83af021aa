"""Ranks that make others wait are told while it happens, by their own lateness, and no others."""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import orjson
import pytest

from disttrace_viewer.companion import protocol, slow
from disttrace_viewer.companion.follower import Follower, Holds
from disttrace_viewer.companion.service import CompanionLog, Task, TaskThread
from disttrace_viewer.companion.slow import LiveFile, Slowness
from disttrace_viewer.companion.slow_ranks import (
    AGAIN_S,
    GONE_S,
    TOGETHER_S,
    Block,
    Blocks,
    Detector,
    Released,
    Slow,
    SlowRanks,
    Sums,
    Telling,
    own_delays,
)
from disttrace_viewer.load.definitions import Definitions
from disttrace_viewer.trace.process import Frame
from reliability import slow_ranks as script
from support import networks
from support.journals import MS, Journal
from support.processes import clean_environ, torchrun, wait_until
from support.raw import verdicts

GROUP = "0123456789abcdef"
SLEEPS = """
import json, sys, time, torch, torch.distributed as dist, disttrace
torch.set_num_threads(1)
dist.init_process_group("gloo")
begun, late = time.time(), float(sys.argv[1])
ones = torch.ones(8)
while True:
    time.sleep(0.1)
    dist.all_reduce(ones)
    time.sleep(0.1 + late * (dist.get_rank() == 1))
    dist.all_reduce(ones)  # <- the line
    over = torch.tensor([time.time() - begun > float(sys.argv[2])])
    dist.broadcast(over, 0)
    if over:
        break
print(json.dumps(disttrace.live()), flush=True)
"""


def rank_1(folder: Path) -> Journal:
    """Its calls: all_reduce, one of C++, a message, one on a device; and a store's set."""
    journal = Journal(folder, 7, rank=1, world_size=2, process="p", keys={"start_ns": None})
    where: dict[str, Any] = {"stack": ("/home/me/train.py", 40, "step")}
    group = journal.group()
    journal.collective(group, **where)
    journal.collective(group, origin="c++", **where)
    journal.message(group, "recv", 0, **where)
    journal.collective(group, backend="nccl", device="cuda:0", **where)
    journal.call("store.set", kind="store", **where)
    return journal


def definitions(folder: Path) -> Definitions:
    found = Definitions()
    for line in rank_1(folder).definitions.read_bytes().splitlines():
        found.add(orjson.loads(line))
    return found


FIRST = {"b": 1, "t": 100, "s": 1, "q": 1}, {"e": 1, "d": 10, "u": 3}
HELD: dict[str, tuple[tuple[dict[str, int], ...], list[tuple[int, int, int]]]] = {
    "what a message is waited for is no time of its own": (
        (*FIRST, {"b": 2, "t": 150, "s": 3, "q": 1}, {"e": 2, "d": 30},
         {"b": 3, "t": 185, "s": 1, "q": 2}, {"e": 3, "d": 5, "u": 1}),
        [(2, 5, 5)],
    ),
    "asynchronous work holds from the wait on": (
        (*FIRST, {"b": 2, "t": 120, "s": 1, "q": 2}, {"i": 2, "d": 2}, {"w": 2, "d": 40},
         {"e": 2, "d": 55}),
        [(2, 50, 15)],
    ),
    "of two buckets the first one is hidden behind what came after it": (
        (*FIRST, {"b": 2, "t": 120, "s": 2, "q": 2}, {"i": 2, "d": 1},
         {"b": 3, "t": 160, "s": 2, "q": 3}, {"i": 3, "d": 1}, {"e": 2, "d": 80},
         {"e": 3, "d": 41}),
        [(2, 0, 0), (3, 50, 41)],
    ),
    "a sign of another thread does not bring it back": (
        (*FIRST, {"b": 2, "t": 140, "s": 5, "h": 1}, {"e": 2, "d": 5},
         {"b": 3, "t": 200, "s": 1, "q": 2}, {"e": 3, "d": 5}),
        [(2, 90, 5)],
    ),
    "what the main thread tells a store is something that it does": (
        (*FIRST, {"b": 2, "t": 140, "s": 5}, {"e": 2, "d": 5}, {"b": 3, "t": 200, "s": 1, "q": 2},
         {"e": 3, "d": 5}),
        [(2, 55, 5)],
    ),
    "on a device the kernel began when the measured time says": (
        ({"b": 1, "t": 100, "s": 4, "q": 1}, {"c": 1, "d": 10, "g": 5, "z": 8},
         {"b": 2, "t": 105, "s": 4, "q": 2}, {"c": 2, "d": 95, "g": 5, "z": 20}),
        [(2, 70, 20)],
    ),
    "garbage is passed over": (({}, {"b": 1}, {"e": 1}, {"seg": 1}), []),
}  # fmt: skip


@pytest.mark.parametrize(("records", "exchanges"), HELD.values(), ids=HELD)
def test_how_long_each_exchange_held_it_and_it_was_away_before(
    tmp_path: Path, records: tuple[dict[str, int], ...], exchanges: list[tuple[int, int, int]]
) -> None:
    """Number, away and inside; of the first one nobody knows how long it was away."""
    found = Holds(definitions(tmp_path)).take(map(dict, records))
    assert [(one.seq, one.away, one.inside) for one in found] == exchanges


def test_a_place_is_operation_and_line_the_same_on_all_hosts(tmp_path: Path) -> None:
    one = Holds(definitions(tmp_path))
    list(one.take([{"b": 1, "t": 0, "s": 1, "q": 1}, {"e": 1, "d": 1}]))
    ((op, frame),) = one.places.values()
    assert (op, frame) == ("all_reduce", Frame("/home/me/train.py", 40, "step"))


def test_blocks_grow_until_they_take_half_a_second_and_all_of_a_host_cut_alike() -> None:
    """Two ranks with an exchange each 0.2 s; a block is a power of two from a multiple of it on.
    Of 8,192 ranks they take 16.4 s at least, for one host compares all of them.
    """
    shifts: dict[str, int] = {}
    both = [Blocks(GROUP, rank, 2, shifts) for rank in (0, 1)]
    found: list[Block] = []
    for seq in range(1, 65):
        for one in both:
            block = one.add(Released(1, seq, "aa", 150 * MS, 50 * MS, seq * 200 * MS))
            found += [] if block is None else [block]
    assert shifts == {GROUP: 2}
    last = [one for one in found if one.shift == 2 and one.index == 15]
    assert [one.rank for one in last] == [0, 1]
    assert last[0].span_ns == 800 * MS
    assert last[0].places == {"aa": Sums(4, 600 * MS, 200 * MS)}
    of_many = Blocks(GROUP, 0, 8, shifts, world=8192)
    for seq in range(1, 2000):
        of_many.add(Released(1, seq, "aa", 150 * MS, 50 * MS, seq * 200 * MS))
    assert shifts == {GROUP: 7}  # 128 exchanges of 0.2 s


def blocks(index: int, times: Mapping[int, tuple[int, int]], span: int = 1000) -> list[Block]:
    return [
        Block(GROUP, 0, index, rank, len(times), span * MS, {"aa": Sums(1, away * MS, inside * MS)})
        for rank, (away, inside) in times.items()
    ]


DELAYS: dict[str, tuple[list[tuple[int, int]], dict[int, int]]] = {
    "what one was away for longer than the middle of the others, and these were held for":
        ([(800, 200), (810, 190), (900, 100), (790, 210)], {2: 100, 0: -10}),
    "held by another group for 100 ms before it came": ([(800, 200)] * 2 + [(800, 100)], {2: 0}),
    "away for longer behind what the others computed": ([(800, 200)] * 2 + [(900, 200)], {2: 0}),
    "of two each is measured by the other": ([(800, 200), (900, 100)], {0: -100, 1: 100}),
}  # fmt: skip


@pytest.mark.parametrize(("times", "expected"), DELAYS.values(), ids=DELAYS)
def test_the_own_delay(times: list[tuple[int, int]], expected: dict[int, int]) -> None:
    """By how long each was away, and inside; who inherits lateness, or hides it, has none."""
    delays = own_delays(blocks(0, dict(enumerate(times))))
    assert {rank: delays[rank]["aa"] for rank in expected} == {
        rank: delay * MS for rank, delay in expected.items()
    }


def test_who_has_more_bytes_of_its_own_may_be_as_much_longer_away() -> None:
    """An expert with three times the tokens; not one that is later than that."""
    rows = blocks(0, {0: (300, 700), 1: (300, 700), 2: (900, 100), 3: (950, 50)})
    rows = [
        replace(one, places={"aa": one.places["aa"]._replace(bytes=30 if one.rank > 1 else 10)})
        for one in rows
    ]
    delays = own_delays(rows)
    assert (delays[2]["aa"], delays[3]["aa"]) == (0, 50 * MS)


@pytest.mark.parametrize("turns", [True, False])
def test_what_each_does_in_turn_is_not_slow_and_half_of_the_time_is_told_soon(turns: bool) -> None:
    """In steps of a second; nine of them, twice the time that the others take, are enough."""
    known, told = SlowRanks(0.05), -1
    for number in range(600):
        late = number % 4 if turns else 2 * (number >= 20)
        times = {rank: (900 if late == rank else 400, 0) for rank in range(4)}
        if not turns and number < 20:
            times[0] = (400, 0)
        longest = max(away for away, _ in times.values())
        times = {rank: (away, longest - away + 50) for rank, (away, _) in times.items()}
        known.add(blocks(number, times, span=longest + 50), 1000.0 + number)
        if known.slow() and told < 0:
            told = number
    assert told == -1 if turns else 20 < told < 30


def test_a_bet_that_is_lost_in_the_mean_wins_much_as_seldom_as_it_says() -> None:
    """Heavy-tailed noise without a delay: more than 200 is won at most once in 200 observations."""
    draw, one, alarms = random.Random(3), Detector(), 0
    for _ in range(40_000):
        one.observe(draw.gauss(0, 0.03) * draw.choice((1, 1, 1, 6)), 0.025, 0.03, 0.0)
        if one.won > 5.3:  # log(200)
            one, alarms = Detector(), alarms + 1
    assert alarms <= 200


def rounds(ranks: SlowRanks, count: int, late: int, *, first: int = 0, size: int = 8) -> None:
    draw = random.Random(first)
    for n in range(first, first + count):
        away = {rank: 800 + draw.randrange(-20, 20) + late * (rank == 3) for rank in range(size)}
        last = max(away.values())
        ranks.add(blocks(n, {r: (t, last - t + 50) for r, t in away.items()}), 1000.0 + n)


def test_a_slow_rank_is_found_in_thirty_steps_and_is_not_once_it_is_over() -> None:
    ranks = SlowRanks(0.05)
    rounds(ranks, 100, 0)
    assert not ranks.slow()
    rounds(ranks, 30, 90, first=100)
    (slow,) = ranks.slow()
    assert (slow.rank, slow.others, slow.place) == (3, 7, "aa")
    assert slow.share == pytest.approx(0.09, abs=0.015)
    assert slow.since == pytest.approx(1100, abs=3)
    assert slow.waiting == (0, 1, 2, 4, 5, 6, 7)
    rounds(ranks, 60, 0, first=130)
    assert not ranks.slow()


def test_less_than_the_share_and_one_long_pause_are_not_told() -> None:
    """The pause is a checkpoint of a minute, for which all wait."""
    ranks = SlowRanks(0.05)
    rounds(ranks, 400, 20)
    assert not ranks.slow()
    ranks = SlowRanks(0.05)
    rounds(ranks, 50, 0)
    ranks.add(blocks(50, {r: (60_000 if r == 3 else 800, 100) for r in range(8)}, 60_900), 1100.0)
    rounds(ranks, 50, 0, first=51)
    assert not ranks.slow()


def test_hosts_that_cut_other_sizes_are_compared_in_the_longer_ones() -> None:
    ranks = SlowRanks(0.05)
    last: list[Block] = []
    for n in range(60):
        late = 200 if n >= 20 else 0
        ours = blocks(n, {0: (800, 200 + late), 1: (800, 200 + late)})
        theirs = blocks(n, {2: (800 + late, 200), 3: (800, 200 + late)})
        wide = [Block(GROUP, 0, b.index, b.rank, 4, b.span_ns, b.places) for b in ours + theirs]
        joined = {b.rank: b for b in wide[2:]}
        if n % 2:
            before = {b.rank: b for b in last}
            ranks.add([before[2].joined(joined[2]), before[3].joined(joined[3])], 1000.0 + n)
        last = wide[2:]
        ranks.add(wide[:2], 1000.0 + n)
    assert [one.rank for one in ranks.slow()] == [2]


def slow_rank(rank: int, share: float = 0.1) -> Slow:
    return Slow(rank, GROUP, 63, share, 1000.0, "aa", 31.0)


def test_each_culprit_is_told_once_an_hour_and_when_it_is_over() -> None:
    telling = Telling(0.05)

    def due(now: float, *ranks: int) -> list[tuple[int, bool]]:
        found = telling.due([slow_rank(r) for r in ranks], {}, lambda rank: 0.0, now)
        return [(one.slow[0].rank, one.over) for one in found]

    assert due(0, 3) == [(3, False)]
    assert due(60, 3) == []
    assert due(120) == [(3, True)]
    assert due(180, 3) == [], "within the hour"
    assert due(240) == [], "what was not told is not told to be over"
    assert due(AGAIN_S + 1, 3) == [(3, False)]
    assert due(2 * AGAIN_S + 2, 3) == [(3, False)], "it goes on"


def test_it_is_not_over_where_they_have_ended() -> None:
    telling = Telling(0.05)
    assert telling.due([slow_rank(3)], {}, lambda rank: 0.1, 0.0)
    assert not telling.due([], {}, lambda rank: None, 9.0)
    ranks = SlowRanks(0.05)
    rounds(ranks, 60, 0)
    rounds(ranks, 40, 90, first=60)
    assert ranks.slow()
    assert ranks.leaning(3)
    ranks.add([], 1100.0 + GONE_S + 1)
    assert not ranks.slow()
    assert ranks.leaning(3) is None


def test_all_ranks_of_a_host_are_told_as_one() -> None:
    """The first one is held back while the others lean to it, and told alone where they do not."""
    telling, hosts = Telling(0.05), {0: "a", 1: "a", 2: "b", 3: "b"}
    leans = {2: 0.1, 3: 0.04}.get
    assert not telling.due([slow_rank(2)], hosts, lambda rank: leans(rank, 0.0), 0.0)
    (one,) = telling.due([slow_rank(2), slow_rank(3)], hosts, lambda rank: 0.1, 5.0)
    assert ([s.rank for s in one.slow], one.host) == ([2, 3], "b")
    alone = Telling(0.05)
    assert not alone.due([slow_rank(2)], hosts, lambda rank: leans(rank, 0.0), 0.0)
    (one,) = alone.due([slow_rank(2)], hosts, lambda rank: leans(rank, 0.0), TOGETHER_S)
    assert one.host is None


def test_what_hosts_tell_is_read_back_and_what_is_not_sound_is_nothing() -> None:
    one = Block("ab12", 3, 7, 5, 8, 1000, {"cd34": Sums(8, 10, 20, 64)})
    told = protocol.opened(protocol.packed(slow.values([one], "node7")), slow.FORM)
    assert told is not None
    assert (told["blocks"], told["host"]) == ([one], "node7")
    row = ["ab12", 3, 7, 5, 8, 1000, [["cd34", 8, 10, 20, 64]]]
    assert (protocol.opened(_told([row]), slow.FORM) or {})["blocks"] == [one]
    for at, wrong in (
        (0, "x y"),
        (1, 99),
        (3, -1),
        (3, True),
        (5, 1.5),
        (6, [["cd34", 8, 10, 20]]),
    ):
        assert protocol.opened(_told([[*row[:at], wrong, *row[at + 1 :]]]), slow.FORM) is None
    for data in (b"", b"garbage", zlib.compress(b"[]"), zlib.compress(b"{}")):
        assert protocol.opened(data, slow.FORM) is None


def _told(rows: list[Any]) -> bytes:
    return protocol.packed({"host": "", "blocks": rows})


def test_who_leads_tells_in_its_question_who_is_slow() -> None:
    one = slow_rank(7)
    assert slow.heard(slow.request_words([one])) == [Slow(7, "", 63, 0.1, 1000.0, "aa", 31.0)]
    assert all(len(word) <= 64 for word in slow.request_words([slow_rank(10**6, 0.123456)]))
    assert not slow.heard(["slow", '[1, 2, 3, 4, 5, "x!"]', "[1, 2, 3]"])


def test_the_sentence_says_who_whom_how_much_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_at", lambda seconds: "14:05")
    places = {"aa": ("all_reduce", Frame("/home/me/loader.py", 40, "load"))}
    assert slow.summary([slow_rank(22, 0.07)], None, places) == (
        "rank 22 has made 63 others wait 7 % of the time since 14:05, before loader.py:40 "
        "(31 rank hours so far; false alarm rate 1 in 10,000 rank hours)"
    )
    host = [replace(slow_rank(rank), waiting=(*range(8), 17 - rank)) for rank in (8, 9)]
    told = "host node7 (ranks 8, 9) has made 8 others wait 10 % of the time since 14:05 ("
    assert slow.summary(host, "node7", {}).startswith(told)
    said = slow.object_of([slow_rank(22)], "text", places, {22: "p"})
    assert said["finding"]["culprits"] == ["p"]
    assert said["finding"]["locations"][0]["line"] == 40


def exchange(journal: Journal, numbers: range) -> None:
    """One of 100 ms in each second, in its newest segment, and space that is not used yet."""
    lines = [
        f'{{"b":{n},"t":{n * 1000 * MS},"s":1,"q":{n}}}\n{{"e":{n},"d":{100 * MS}}}\n'
        for n in numbers
    ]
    with journal.segments[-1].open("a") as file:
        file.write("".join(lines) + "\0" * 4096)


def test_a_journal_is_read_over_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is skipped is not read, and the first exchange after it has no time before."""
    monkeypatch.setattr("disttrace_viewer.companion.follower.NEXT_S", 0.0)
    journal = rank_1(tmp_path)
    exchange(journal, range(1, 10))
    one = Follower(str(tmp_path), journal.base.name, {})
    one.skip()
    assert one.read() == ([], False)
    for numbers in (range(10, 20), range(20, 24)):
        journal.segment()
        exchange(journal, numbers)
    read = [block for _ in range(4) for block in one.read()[0]]
    assert [block.index for block in read] == list(range(11, 23))
    one.close()


def test_what_takes_too_much_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is read in that window; the next one begins with what is written then."""
    monkeypatch.setattr("disttrace_viewer.companion.follower.NEXT_S", 0.0)
    journal = rank_1(tmp_path)
    exchange(journal, range(1, 4))
    live = LiveFile(str(tmp_path / "x.live"), "j", "h", lambda: None)
    duty = Slowness(live, 0.05, lambda *said: None)
    follower = Follower(str(tmp_path), journal.base.name, {})
    followers = {journal.base.name: follower}

    def turn() -> None:
        follower.definitions.read()
        duty.turn(followers)
        duty.receive({})

    now = [3000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    monkeypatch.setattr("disttrace_viewer.companion.slow.SHARE", 0.0)
    turn()
    journal.segment()
    exchange(journal, range(4, 10_000))
    for _ in range(3):
        turn()
    assert not duty._recent, "the first piece, which is all that was there, took the whole share"
    monkeypatch.setattr("disttrace_viewer.companion.slow.SHARE", 1.0)
    now[0] += 30.0
    turn()
    assert not duty._recent
    journal.segment()
    exchange(journal, range(10_000, 10_008))
    turn()
    assert [block.index for _, block in duty._recent] == list(range(10_001, 10_007))
    known = json.loads((tmp_path / "x.live").read_text())
    assert known["ranks"] == {"p": {"rank": 1, "waiting_share": 0.1}}
    duty.finish()
    assert not (tmp_path / "x.live").exists()


def test_it_begins_later_on_a_thread_of_its_own() -> None:
    made = Mock(spec=Task, pause_s=0.01)
    log = Mock(spec=CompanionLog)
    one = TaskThread(lambda: made, log, 0.2)
    one.post(methodcaller("follow", "a"))
    assert made.mock_calls == []
    wait_until(lambda: made.turn.called)
    one.post(methodcaller("ended", "a"))
    wait_until(lambda: made.ended.called)
    one.over.set()
    one.finish()
    other = [one for one in made.mock_calls if one != call.turn()]
    assert other == [call.follow("a"), call.ended("a"), call.finish()]
    assert not log.write.called


def test_what_it_cannot_begin_is_told_once() -> None:
    log = Mock(spec=CompanionLog)
    one = TaskThread(Mock(side_effect=OSError("no more files")), log)
    wait_until(lambda: one.failed)
    log.write.assert_called_once_with("a duty of the companion ended: OSError: no more files")


@pytest.mark.long
def test_a_rank_that_sleeps_before_a_line_is_told_while_the_job_runs(tmp_path: Path) -> None:
    """Of three, on stderr, in what is kept, and to each rank."""
    path, out = tmp_path / "train.py", tmp_path / "out"
    path.write_text(SLEEPS, encoding="utf-8")
    traced = {"DISTTRACE": "1", "DISTTRACE_DIR": str(out)}
    outcome = torchrun(path, 3, "0.03", "100", timeout=240, **traced).check()
    line = SLEEPS.splitlines().index("    dist.all_reduce(ones)  # <- the line") + 1
    (said,) = (one for one in outcome.stderr.splitlines() if one.startswith("disttrace: "))
    assert said.startswith("disttrace: slow: rank 1 has made 2 others wait 1"), said
    assert f", before train.py:{line} (" in said
    assert [(one["kind"], one["culprit_ranks"]) for one in verdicts(out)] == [("slow", [1])]
    assert not [one for one in out.glob("*.log") if one.read_text()], "the companion complains"
    known = sorted(map(json.loads, outcome.stdout.splitlines()), key=lambda one: one["rank"])
    for one in known:
        ((rank, where, others),) = ((s["rank"], s["line"], s["others"]) for s in one["slow"])
        assert (rank, where, others) == (1, f"train.py:{line}", 2)
        assert one["said"]["kind"] == "slow"
    assert known[1]["waiting_share"] < known[0]["waiting_share"], "who is late waits least"


def test_with_recorded_noise_one_of_sixty_four_is_told_in_thirty_steps() -> None:
    """The tool does it a hundred times, and for ten thousand healthy rank hours."""
    noise = json.loads((script.NOISE / "device.json").read_text())["series"]
    assert script.trials(noise, 1, 5, 2.0, 1)
    assert script.healthy(noise, 5, 5, 2.0) == 0


@pytest.mark.long
def test_hosts_that_share_no_folder_tell_it_once(tmp_path: Path) -> None:
    """By the one of rank 0, with the line of a rank that is on another one."""
    path = tmp_path / "train.py"
    path.write_text(SLEEPS, encoding="utf-8")
    variables = clean_environ(DISTTRACE="1", DISTTRACE_JOB="slow", MASTER_PORT="29500")
    with networks.hosts_or_skip(3) as hosts:
        words = [sys.executable, str(path), "0.03", "100"]
        with networks.job(hosts, words, variables, tmp_path) as ranks:
            wait_until(lambda: all(rank.poll() is not None for rank in ranks), timeout=200)
    said = [(tmp_path / str(rank)).read_text().count("disttrace: slow: ") for rank in range(3)]
    assert said == [1, 0, 0]
    assert "slow: rank 1 has made 2 others wait 1" in (tmp_path / "0").read_text()
