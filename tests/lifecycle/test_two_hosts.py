"""A hang over two hosts, of which network namespaces are the picture: no folder is shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import ROOT, clean_environ, wait_until

HANG = ROOT / "examples" / "faults" / "slow_loader.py"
HOSTS = {"disttrace-a": "10.213.77.1", "disttrace-b": "10.213.77.2"}
DEVICE = "veth0"


def _ip(*arguments: str) -> bool:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, timeout=20, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Two network namespaces and a cable between them."""
    first, second = HOSTS
    made = all(_ip("netns", "add", name) for name in HOSTS)
    try:
        cable = ["link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE]
        if not (made and _ip(*cable, "netns", second)):
            pytest.skip("network namespaces cannot be made here")
        for name, address in HOSTS.items():
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield HOSTS
    finally:
        for name in HOSTS:
            _ip("netns", "del", name)


@pytest.mark.long
def test_a_hang_over_two_hosts_is_told_once(tmp_path: Path, hosts: dict[str, str]) -> None:
    """With who is missing and where, although that is in a journal of the other host."""
    processes = []
    try:
        for rank, (name, address) in enumerate(hosts.items()):
            environ = clean_environ(
                DISTTRACE="1",
                DISTTRACE_DIR=str(tmp_path / name),
                DISTTRACE_STALL="3",
                DISTTRACE_JOB="hosts",
                OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME=DEVICE,
                RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR=hosts["disttrace-a"],
                MASTER_PORT="29500",
            )
            assert address
            with (tmp_path / f"stderr{rank}").open("wb") as stderr:
                processes.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", name, sys.executable, str(HANG), "--culprit", "1"],
                        env=environ,
                        stdout=stderr,
                        stderr=stderr,
                        start_new_session=True,
                    )
                )
        first = tmp_path / "stderr0"
        wait_until(lambda: "disttrace: more:" in first.read_text(errors="replace"), timeout=90)
        told = first.read_text(errors="replace")
        assert "disttrace: stalled: Rank 1 never joined all_reduce #3" in told
        assert "rank 1 is at slow_loader.py:34 in load" in told
        assert "stalled" not in (tmp_path / "stderr1").read_text(errors="replace")
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    wait_until(lambda: all(_is_clean(tmp_path / name) for name in hosts), timeout=60)


def _is_clean(folder: Path) -> bool:
    return all(path.suffix == ".jsonl" for path in folder.iterdir())
