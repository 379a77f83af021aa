"""Many hosts, in virtual time: one speaks, soon; without the server each host for itself."""

from __future__ import annotations

import functools

import pytest

from disttrace_viewer.companion.endpoint import MOST_BYTES
from disttrace_viewer.companion.verdict import MOST_HOSTS
from reliability import hosts_in_virtual_time as virtual

SIZES = (8, 128)


@functools.cache
def stall(hosts: int, case: str) -> virtual.Outcome:
    return virtual.stall(hosts, case, until_s=34.0 if case == "partition" else 24.0)


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["normal", "a tenth silent", "a tenth stops", "one floods"])
def test_one_voice_tells_all_within_fifteen_seconds(case: str, hosts: int) -> None:
    """That of the store's host; of hosts that do not answer it says so."""
    found = stall(hosts, case)
    gone = {"normal": 0, "one floods": 1}.get(case, max(1, hosts // 10))
    (voice,) = found.voices
    assert (voice.host, voice.alone, voice.known) == (0, False, hosts - gone)
    assert voice.at_s < 15
    most = MOST_HOSTS * virtual.STATES_BYTES + hosts * virtual.SUMMARY_BYTES
    assert voice.bytes <= most, "states of few hosts are read, however many there are"
    assert found.most_held <= MOST_BYTES


@pytest.mark.parametrize("hosts", SIZES)
@pytest.mark.parametrize("case", ["server dies", "server stops"])
def test_without_the_server_each_host_speaks_for_itself(case: str, hosts: int) -> None:
    """Once, within twenty seconds of the wait's begin."""
    found = stall(hosts, case)
    assert sorted(voice.host for voice in found.voices) == [*range(1, hosts)]
    assert all(voice.alone for voice in found.voices)
    assert max(voice.at_s for voice in found.voices) < 20


@pytest.mark.parametrize("hosts", SIZES)
def test_a_network_that_was_parted_is_one_again(hosts: int) -> None:
    """The part of the server speaks once, the others each for itself; then the whole does."""
    found = stall(hosts, "partition")
    served = [(voice.host, voice.known) for voice in found.voices if not voice.alone]
    assert served == [(0, hosts // 2), (0, hosts)]
    assert sum(voice.alone for voice in found.voices) == hosts // 2
