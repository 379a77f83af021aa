"""Hosts as network namespaces: each with an address of its own, all on one switch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import kill_family

DEVICE = "eth0"


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Those words, run on this host, which has a name of its own too."""
        own_name = f'hostname {self.name}; exec "$@"'
        start = ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", own_name, "sh"]
        return [*start, *words]

    def listeners(self) -> list[int]:
        """Ports at which somebody listens there."""
        found = []
        for table in ("tcp", "tcp6"):
            words = ["ip", "netns", "exec", self.name, "cat", f"/proc/net/{table}"]
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            for line in text.splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == "0A":
                    found.append(int(local.rpartition(":")[2], 16))
        return sorted(found)


@contextmanager
def hosts_or_skip(count: int) -> Iterator[Sequence[Host]]:
    """That many, or no test: they take rights that not everybody has."""
    try:
        with hosts(count) as made:
            yield made
    except OSError as error:
        if os.geteuid() == 0 and "Operation not permitted" not in str(error):
            raise
        pytest.skip(f"network namespaces cannot be made here: {error}")


@contextmanager
def hosts(count: int) -> Iterator[Sequence[Host]]:
    """That many. Raises OSError where they cannot be made."""
    mark = f"dt{os.getpid() % 10_000}"
    subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
    made = [Host(f"{mark}-{n}", f"{subnet}.{n + 1}") for n in range(count)]
    switch = f"{mark}-s"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, host in enumerate(made):
            _ip("netns", "add", host.name)
            cable = ("type", "veth", "peer", "name", DEVICE, "netns", host.name)
            _ip("-n", switch, "link", "add", f"p{number}", *cable)
            _ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", DEVICE)
            _ip("-n", host.name, "link", "set", DEVICE, "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield made
    finally:
        for name in [*(host.name for host in made), switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def split(apart: Sequence[Host], bridge: str) -> None:
    """Put these hosts on a switch of their own (``br1``), or back on that of all (``br0``)."""
    switch = f"{apart[0].name.rpartition('-')[0]}-s"
    with suppress(OSError):  # it is there
        _ip("-n", switch, "link", "add", "br1", "type", "bridge")
        _ip("-n", switch, "link", "set", "br1", "up")
    for host in apart:
        number = host.name.rpartition("-")[2]
        _ip("-n", switch, "link", "set", f"p{number}", "master", bridge)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["ip", *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except FileNotFoundError as error:
        raise OSError("there is no ip") from error
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def job(
    on: Sequence[Host], words: Sequence[str], environ: Mapping[str, str], folder: Path, *,
    shared: bool = False,
) -> Iterator[list[subprocess.Popen[bytes]]]:  # fmt: skip
    """A rank on each host, output in ``folder/RANK``; all are ended. ``shared``: one folder."""
    processes = []
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as over:
        for rank, host in enumerate(on):
            variables = {
                **environ, "RANK": str(rank), "WORLD_SIZE": str(len(on)),
                "MASTER_ADDR": on[0].address, "GLOO_SOCKET_IFNAME": DEVICE,
                "DISTTRACE_DIR": str(folder / f"journals{'' if shared else rank}"),
            }  # fmt: skip
            with (folder / str(rank)).open("wb") as output:
                command = host.command(*words)
                process = subprocess.Popen(
                    command, env=variables, stdout=output, stderr=output, start_new_session=True
                )
            over.callback(kill_family, process)
            processes.append(process)
        yield processes
    time.sleep(0.1)
