"""Jobs over hosts that share no folder, of which network namespaces are the picture."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import disttrace
from disttrace_viewer.companion import protocol
from support import networks
from support.networks import Host
from support.processes import ROOT, clean_environ, companions, wait_until

HANG = ROOT / "examples" / "faults" / "slow_loader.py"
COUNTS = ROOT / "tests" / "reliability" / "counted_keys.py"


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


def told(folder: Path, count: int) -> list[int]:
    return [rank for rank in range(count) if "disttrace: stalled" in said(folder, rank)]


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
        assert told(tmp_path, len(hosts)) == [0]
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


@pytest.mark.long
@pytest.mark.parametrize("hosts", [3], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "stopped"])
def test_without_the_server_each_host_speaks_for_itself(
    tmp_path: Path, hosts: Sequence[Host], number: signal.Signals
) -> None:
    """It says who waits there, accuses nobody, and why no more is known."""
    variables = {**environ(DISTTRACE="1"), "DISTTRACE_STALL": "8"}
    command = [sys.executable, str(HANG), "--culprit", "0"]
    with networks.job(hosts, command, variables, tmp_path):
        meeting = set(protocol.ports(29500))
        wait_until(lambda: meeting & {*hosts[0].listeners()}, timeout=60)
        time.sleep(1.5)  # till the others are there
        for pid in companions(tmp_path / "journals0"):
            os.kill(pid, number)
        wait_until(lambda: told(tmp_path, 3) == [1, 2], timeout=60)
        wait_until(lambda: "disttrace: more:" in said(tmp_path, 2), timeout=10)
        for rank in (1, 2):
            text = said(tmp_path, rank)
            assert f"Rank {rank} has been waiting" in text
            assert "the host of rank 0 does not answer" in text
        for pid in companions(tmp_path / "journals0"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("hosts", [2], indirect=True)
@pytest.mark.parametrize("libuv", ["1", "0"], ids=["libuv", "plain"])
def test_a_program_counts_for_itself(tmp_path: Path, hosts: Sequence[Host], libuv: str) -> None:
    """At each of hundreds of polls, before, during and after the stall, as without tracing."""
    found = {}
    for switch in ("0", "1"):
        folder = tmp_path / switch
        variables = environ(DISTTRACE=switch, USE_LIBUV=libuv)
        command = [sys.executable, str(COUNTS), "8"]
        with networks.job(hosts, command, variables, folder) as processes:
            if switch == "1":
                # Somebody waits, so companions have met: the claim is about something.
                wait_until(lambda: len(hosts[0].listeners()) > 1, timeout=30)
            codes = [process.wait(90) for process in processes]
        lines = [line for line in said(folder, 0).splitlines() if "disttrace" not in line]
        found[switch] = (codes, [line for line in lines if line.startswith(("counted", "often"))])
    assert found["1"] == found["0"]
    assert found["1"][1][1:] == ["often"]


@pytest.mark.long
@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_hosts_that_share_a_folder_tell_once(tmp_path: Path, hosts: Sequence[Host]) -> None:
    """They ask each other, and none reads the journals of another one."""
    command = [sys.executable, str(HANG), "--culprit", "1"]
    with networks.job(hosts, command, environ(DISTTRACE="1"), tmp_path, shared=True):
        wait_until(lambda: told(tmp_path, 3), timeout=90)
        time.sleep(3)
        (who,) = told(tmp_path, 3)
        text = said(tmp_path, who)
        assert "disttrace: stalled: Rank 1 never joined all_reduce #" in text
        assert "nothing is known" not in text
    wait_until(lambda: _is_clean(tmp_path / "journals"), timeout=60)
