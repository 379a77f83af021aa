"""Jobs over hosts that share no folder, of which network namespaces are the picture; and what hosts
tell each other of their calls while the job gets on.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import disttrace
from disttrace_viewer.companion import comparison, protocol
from disttrace_viewer.companion.comparison import CALLS, Excerpt, Excerpts, OutOfStep, Talk
from disttrace_viewer.companion.endpoint import CLIENT, SERVER, PeerReply
from disttrace_viewer.companion.slow import HERE
from disttrace_viewer.states.state import inflated
from lifecycle.test_diverged import STEP, Calls, pages
from support import networks
from support.networks import Host
from support.processes import ROOT, clean_environ, companions, wait_until
from support.raw import verdicts

HANG = ROOT / "examples" / "faults" / "slow_loader.py"


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Sequence[Host]]:
    with networks.hosts_or_skip(request.param) as made:
        yield made


def environ(**variables: str) -> dict[str, str]:
    return clean_environ(
        DISTTRACE_STALL="3", DISTTRACE_JOB="hosts", OMP_NUM_THREADS="1", MASTER_PORT="29500",
        **variables,
    )  # fmt: skip


def said(folder: Path, rank: int) -> str:
    return (folder / str(rank)).read_text(errors="replace")


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2, 4], indirect=True)
@pytest.mark.parametrize("secret", ["", "of this job"], ids=["no secret", "secret"])
def test_a_hang_is_told_once(tmp_path: Path, hosts: Sequence[Host], secret: str) -> None:
    """By one host, with who is missing and where, although that is in another one's journal."""
    variables = environ(DISTTRACE="1", DISTTRACE_SECRET=secret)
    with networks.job(hosts, [sys.executable, str(HANG), "--culprit", "1"], variables, tmp_path):
        wait_until(lambda: "disttrace: more:" in said(tmp_path, 0), timeout=90)
        text = said(tmp_path, 0)
        assert "disttrace: stalled: Rank 1 never joined all_reduce #3" in text
        assert "rank 1 is at slow_loader.py:34 in load" in text
        assert "nothing is known" not in text
        assert not any("disttrace: stalled" in said(tmp_path, n) for n in range(1, len(hosts)))
        folder = tmp_path / "journals0"
        assert f"diagnose {folder} (of all hosts: disttrace collect {folder} on each" in text
    # What is left in the folder of that host alone says as much, with the time.
    (first, *_) = disttrace.diagnose(folder).to_dict()["findings"]
    assert (first["kind"], first["culprit_ranks"]) == ("missing_participant", [1])
    assert (first["certainty"], "said_at" in first) == ("certain", True)
    assert any((at["file"], at["line"]) == (str(HANG), 34) for at in first["locations"])
    wait_until(lambda: all(map(_is_clean, tmp_path.glob("journals*"))), timeout=60)


def _is_clean(folder: Path) -> bool:
    return not companions(folder) and all(path.suffix == ".jsonl" for path in folder.iterdir())


def told(calls: Calls, *, name: int = 1, room: int = 400) -> Excerpt:
    made = Excerpts("")._excerpt(name, pages(calls), room)
    (found,) = opened(protocol.packed(comparison.values_of([made])))
    assert found.digests == made.digests
    return found


def opened(data: bytes) -> list[Excerpt]:
    found: list[Excerpt] = protocol.opened(data, comparison.CALLS_FORM) or []
    return found


def test_hosts_that_look_at_other_moments_know_digests_under_one_number() -> None:
    """Whoever is three hundred calls behind is compared all the same."""
    draw = random.Random(1)
    for _ in range(50):
        behind, calls = draw.randrange(390), STEP * draw.randrange(160, 400)
        ours, theirs = told(calls), told(calls[: max(1, len(calls) - behind)])
        assert not OutOfStep().receive({HERE: [ours], "b": [theirs]})
        wrong = told([(8, 10), *calls[1 : max(1, len(calls) - behind)]])
        assert OutOfStep().receive({HERE: [ours], "b": [wrong]}) == [HERE, "b"]


def test_only_those_who_differ_from_the_first_one_are_suspected() -> None:
    skipped = [*STEP[:1], *STEP[:2] * 30]  # the lines are of calls that look alike
    same = [(7, line) for _, line in STEP] * 20
    group = {HERE: [told(same)], "b": [told(same)], "c": [told(same[:-7]), told(STEP, name=2)]}
    assert OutOfStep().receive(group) == []
    group["c"][0] = told([(7, line) for _, line in skipped])
    assert OutOfStep().receive(group) == [HERE, "c", "b"]
    assert OutOfStep().receive({"b": group["b"], "c": group["c"]}) == ["b", "c"]


def test_lines_of_one_host_alone_are_a_habit_and_another_try_is_compared_anew() -> None:
    known = OutOfStep()
    logging = [(what, 31 if line == 30 else line) for what, line in STEP]
    assert not known.receive({HERE: [told(logging * 90)], "b": [told(STEP * 90)]})
    assert not known.receive({HERE: [told(STEP)], "b": [told(STEP)]})
    assert known.receive({HERE: [told(STEP[:1])], "b": [told([(8, 10)])]})


def test_what_is_not_sound_is_nothing() -> None:
    sound = protocol.packed(comparison.values_of([told(STEP * 9)]))
    assert opened(b"") == opened(sound[:-9]) == []
    raw = inflated(sound)
    draw = random.Random(2)
    for _ in range(300):
        data = bytearray(raw)
        data[draw.randrange(len(data))] = draw.choice(b"0123456789,[]-")
        found = opened(zlib.compress(bytes(data)))
        OutOfStep().receive({HERE: [told(STEP * 9)], "b": found})


class _Others:
    """Notes what is requested, and answers with what the test gives."""

    def __init__(self, answers: dict[str, Callable[[Sequence[str]], bytes]]) -> None:
        self.answers, self.requested = answers, list[tuple[list[str], object]]()
        self.role = SERVER

    def join(self, addresses: object, order: int) -> bool:
        return True

    def close(self) -> None: ...

    def request(
        self, words: Sequence[str] = (), *, of: Collection[str] | None = None, **_: object
    ) -> list[PeerReply]:
        self.requested.append(([*words], of))
        asked = self.answers if of is None else of
        return [PeerReply(one, self.answers[one](words)) for one in asked]


Judged = list[Sequence[PeerReply]]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Talk, Judged, _Others]]:
    """Makes a companion of one of two ranks, that shows these calls."""

    def made(name: str, calls: Calls, **hosts: Talk) -> tuple[Talk, Judged, _Others]:
        others = _Others({one: duty._answer for one, duty in hosts.items()})
        judged, ours = Judged(), f"calls of {name}".encode()
        duty = Talk("", None, lambda: ours, judged.append, lambda _: cast(Any, others))
        shown = Excerpts("")._excerpt(1, pages(calls), 400)
        monkeypatch.setattr(duty, "_excerpts", type("_", (), {"of": lambda *_: [shown]})())
        monkeypatch.setattr(Talk, "_is_everybody", False)
        monkeypatch.setattr(Talk, "_meets", lambda one: one._others.role == SERVER)
        return duty, judged, others

    return made


def test_hosts_that_differ_send_their_calls_and_are_judged(job: Any) -> None:
    """With others that make the same calls: two do not tell who is the odd one."""
    duty, judged, others = job("a", STEP, b=job("b", [(8, 10), *STEP[1:]])[0], c=job("c", STEP)[0])
    duty.look()
    assert others.requested == [([], None), ([CALLS], ["b", "c"])]
    (answers,) = judged
    told = [(one.sender, one.data) for one in answers]
    assert told == [("b", b"calls of b"), ("c", b"calls of c")]


def test_hosts_in_step_are_asked_once_in_a_second_and_a_half(job: Any) -> None:
    duty, judged, others = job("a", STEP, b=job("b", STEP)[0])
    for _ in range(20):
        duty.look()
    assert (others.requested, judged) == ([([], None)], [])
    duty._ask_at -= 60
    duty.look()
    assert len(others.requested) == 2


def test_a_client_requests_nothing(job: Any) -> None:
    duty, _, others = job("a", STEP, b=job("b", STEP)[0])
    others.role = CLIENT
    duty.look()
    assert others.requested == []


STEPS = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, odd = dist.get_rank(), sys.argv[1]
def grads(): dist.all_reduce(torch.ones(8))
def norm(): dist.all_reduce(torch.ones(8))
def loss(): dist.all_reduce(torch.ones(8))
until = time.monotonic() + float(sys.argv[2])
step = 0
while time.monotonic() < until or step <= 120:
    step += 1
    if step == 120: print("AT", time.time(), flush=True)
    if rank == 0 or (rank, odd, step) != (1, "skip", 120): grads()
    (norm if rank else loss)()
    loss()
    time.sleep(0.05)
"""


@pytest.mark.long
@pytest.mark.parametrize("odd", ["skip", "nothing", "off"])
def test_hosts_that_are_out_of_step_say_so_once_within_seconds(tmp_path: Path, odd: str) -> None:
    """A rank each and no shared folder; in step, or without heartbeats, they say nothing."""
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    variables = clean_environ(DISTTRACE="1", DISTTRACE_JOB="steps", MASTER_PORT="29500")
    variables["OMP_NUM_THREADS"] = "1"
    if odd == "off":
        variables["DISTTRACE_HEARTBEAT"] = "off"
    with networks.hosts_or_skip(2) as hosts:
        words = [sys.executable, str(path), odd, "14" if odd == "skip" else "8"]
        with networks.job(hosts, words, variables, tmp_path) as ranks:
            listening = 0
            while any(rank.poll() is None for rank in ranks):
                listening = max(listening, len(hosts[0].listeners()))
                time.sleep(1)
    assert (listening <= 2) == (odd == "off"), "gloo's and the store's own"
    texts = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    diverged = [one for one in verdicts(tmp_path) if one["kind"] == "diverged"]
    if odd != "skip":
        assert [text.count("disttrace: diverged") for text in texts] == [0, 0]
        return
    assert [text.count("disttrace: diverged") for text in texts] == [1, 0], texts
    assert "all_reduce at steps.py:5" in texts[0]
    at = max(float(line.split()[1]) for text in texts for line in text.splitlines() if "AT" in line)
    assert [one["at"] - at < 5.0 for one in diverged] == [True], (at, diverged)
