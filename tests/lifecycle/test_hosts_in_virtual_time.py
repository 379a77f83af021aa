"""Many hosts, in virtual time: one leads, one speaks, soon, whoever dies or is cut off."""

from __future__ import annotations

import functools

import pytest

from disttrace_viewer.companion.channel.coordinator import ALL_S, GATHER_S, Coordinator
from disttrace_viewer.companion.channel.tree import FAN
from reliability import hosts_in_virtual_time as virtual

SIZES = (8, 32, 128)


@functools.cache
def stall(hosts: int, case: str) -> virtual.Outcome:
    return virtual.stall(hosts, case, until_s=34.0 if case == "partition" else 18.0)


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", virtual.CASES)
def test_there_is_one_voice_in_each_term(case: str, hosts: int) -> None:
    """Whatever happens: of each term one leads, and nobody who is heard speaks for itself."""
    found = stall(hosts, case)
    assert {len(who) for who in found.leaders.values()} == {1}
    assert {voice.term for voice in found.voices} <= {*found.leaders}
    assert all({voice.host} == found.leaders[voice.term] for voice in found.voices)


@pytest.mark.parametrize("hosts", SIZES)
def test_the_lowest_order_tells_all(hosts: int) -> None:
    """Once, and at once."""
    found = stall(hosts, "normal")
    assert [(voice.host, voice.known) for voice in found.voices] == [(0, hosts)]
    assert found.voices[0].at_s < virtual.LIMIT_S + 1.5


@pytest.mark.parametrize("hosts", SIZES)
def test_the_next_one_tells_what_the_first_one_cannot(hosts: int) -> None:
    """After its death, within fifteen seconds of the wait's begin; once."""
    found = stall(hosts, "leader dies")
    assert [(voice.host, voice.known) for voice in found.voices] == [(1, hosts - 1)]
    assert found.voices[0].at_s < 13  # in virtual time: nobody is waited for once all are back


def test_who_was_there_before_is_waited_for() -> None:
    """But not longer than for anybody: one of them may be gone as well. Where two meetings become
    one those of the other are about to come.
    """
    meeting = Coordinator(term=3, place=1, now=20.0, former=3)
    meeting.join("b", 1, 20.0)
    meeting.join("c", 2, 20.1)
    assert not meeting.is_open(20.0 + ALL_S)
    assert meeting.is_open(20.0 + GATHER_S)
    meeting.join("d", 3, 20.2)
    assert not meeting.is_open(20.7), "who answers by way of whom is not settled"
    assert meeting.is_open(20.0 + ALL_S)
    meeting.join("z", 9, 21.0, term=17)
    assert not meeting.is_open(21.0)
    meeting.join("y", 8, 21.1)
    assert not meeting.is_open(21.1)
    assert meeting.is_open(21.0 + GATHER_S)


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["normal", "leader dies", "a tenth silent", "a tenth stops"])
def test_few_answers_are_read(case: str, hosts: int) -> None:
    """However many hosts there are; whoever answers is in them, also where those stand still by way
    of whom it was to.
    """
    found = stall(hosts, case)
    gone = {"leader dies": 1, "normal": 0}.get(case, max(1, hosts // 10))
    assert found.whole_s(hosts - gone)
    assert (found.whole_s(hosts - gone) or 99) < 15
    assert all(voice.answers <= FAN for voice in found.voices)
    assert hosts < 100 or all(
        voice.bytes < hosts * virtual.HOST_BYTES / 2 for voice in found.voices
    )


@pytest.mark.parametrize("hosts", SIZES)
def test_parts_of_a_network_come_together_again(hosts: int) -> None:
    """Each part tells of itself, once; then the whole does, in the one that was first."""
    found = stall(hosts, "partition")
    assert len({voice.host for voice in found.voices if voice.at_s < 25}) == 2
    assert found.voices[-1].host == 0
    assert found.voices[-1].known == hosts
