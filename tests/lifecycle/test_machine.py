"""What hosts and devices say at a stall, as recorded, and who is asked for how long."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from disttrace_viewer.analysis.liveness import Observation
from disttrace_viewer.companion import machine, reports, verdict
from disttrace_viewer.companion.machine import HostTrouble
from support.journals import S, workers
from support.orders import order
from support.processes import wait_until
from support.scenes import alive, findings, only

LOG = """\
<6>[   10.000000] mlx5_core 0000:98:00.0 ens1np0: Link up
<4>[  100.000000] NVRM: Xid (PCI:0000:65:00): 79, pid=4001, name=python, GPU has fallen off the bus.
<4>[  100.100000] NVRM: Xid (PCI:0000:65:00): 79, pid=4001, name=python, GPU has fallen off the bus.
<4>[  101.000000] NVRM: Xid (PCI:0000:65:00): 45, pid=4001, name=python, Ch 00000008
<4>[  102.000000][ T812] NVRM: Xid (PCI:0000:17:00): 74, pid='<unknown>', NVLink: fatal error
<4>[  103.000000] mlx5_core 0000:98:00.0 ens1np0: Link down
<6>[  104.000000] mlx5_core 0000:98:00.0 ens1np0: Link up
<6>[  105.000000] ixgbe 0000:01:00.0 eth2: NIC Link is Down
<6>[  106.000000] veth12ab: Link is Down
<6>[  107.000000] br0: port 3(p2) entered disabled state
<3>[  108.000000] INFO: task python:4002 blocked for more than 120 seconds.
<4>[  109.000000] nfs: server filer1 not responding, still trying
<4>[  110.000000] nfs: server filer2 OK
<4>[  111.000000] nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 12028, Non-fatal, Link 32 egress
<4>[  112.000000] nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
a line without a time: Link down
"""


def test_lines_of_a_kernel_s_log() -> None:
    """The times of a log count from the boot; what was repaired or is of no job is passed over."""
    found = machine.read_kernel_log(LOG, since_s=1050.0, boot_s=1000.0)
    assert [(one.where, one.name, one.code, one.pid, one.at_s) for one in found] == [
        ("device", "0000:65:00", 79, 4001, 1100.0), ("link", "0000:17:00", 74, None, 1102.0),
        ("link", "ens1np0", None, None, 1103.0), ("link", "eth2", None, None, 1105.0),
        ("host", None, None, 4002, 1108.0), ("host", "filer1", None, None, 1109.0),
        ("link", "0000:86:00.0", 20034, None, 1112.0),
    ]  # fmt: skip
    assert machine.read_kernel_log(LOG, since_s=1200.0, boot_s=1000.0) == []


def test_the_kernel_s_own_log_is_asked_without_waiting() -> None:
    """Whether it may be read or not: one that waits for the next line comes back never."""
    machine.ask_kernel(time.time())


def test_what_others_did_on_their_devices_holds_nobody_up() -> None:
    """A job without devices is held up by none; nor by an Xid of another job's process."""
    found = machine.read_kernel_log(LOG, since_s=0.0, boot_s=0.0)

    def names(**how: bool) -> list[str | None]:
        return [one.name for one in machine.concerning(found, [4002], **how)]

    assert names(devices=False, counted=True) == ["ens1np0", "eth2", None, "filer1"]
    assert "0000:65:00" not in names(devices=True, counted=True)
    assert "0000:65:00" in names(devices=True, counted=False)  # in a container nobody can tell
    assert None not in names(devices=True, counted=False)  # whose task is it?


UNABLE = "Unable to determine the device handle"


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("0, 00000000:65:00.0, P0\n1, 00000000:17:00.0, P0\n", []),
        ("0, 00000000:65:00.0, [GPU is lost]\n1, 00000000:17:00.0, P0\n", ["00000000:65:00.0"]),
        (f"{UNABLE} for GPU0: 0000:65:00.0: Unknown Error\n", ["0000:65:00.0"]),
        ("No devices were found\n", []),
        ('Field "pstate" is not a valid field to query.\n', []),
    ],
)
def test_devices_that_the_driver_has_lost(said: str, names: list[str]) -> None:
    """By the output of nvidia-smi."""
    assert [one.name for one in machine.read_smi(said, 0.0)] == names


def test_a_driver_that_holds_the_question_is_left(tmp_path: Path) -> None:
    """What does not answer is killed, and nobody waits for its end; what answers is read."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nexec sleep 60\n")
    command.chmod(0o755)
    began = time.monotonic()
    assert machine.NvidiaSmi(str(command)).answers(began + 0.3) == []
    assert time.monotonic() - began < 30
    command.write_text("#!/bin/sh\necho '3, 00000000:65:00.0, [GPU is lost]'\nexit 15\n")
    (found,) = machine.NvidiaSmi(str(command)).answers(time.monotonic() + 10)
    assert (found.where, found.name) == ("device", "00000000:65:00.0")


def test_a_stall_becomes_that_of_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look asks, and says nothing before it has heard; the log is asked once."""
    t0 = time.perf_counter_ns() - 22 * S
    offset_ns = time.time_ns() - time.perf_counter_ns()
    for journal in alive(workers(tmp_path, 2, t0=t0, offset_ns=offset_ns)):
        journal.begin(journal.collective(journal.world()), S, q=1)
    asked = []

    def log() -> str:
        asked.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        time.sleep(0.5)
        return f"<6>[{asked[-1] - 15:.6f}] ixgbe 0000:01:00.0 eth2: NIC Link is Down\n"

    monkeypatch.setattr(machine, "kernel_text", log)
    for module in (verdict, reports):
        monkeypatch.setattr(module, "look", lambda _: Observation(alive=True))
    (job,) = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    judge = verdict.Judge(order(tmp_path, job))
    first = judge.verdict()
    assert (first["signature"], first["waiting"]) == ([], True)
    assert first["next_s"] <= 0.5
    wait_until(lambda: judge._machine._answers)
    (line, *_), (said,) = (second := judge.verdict())["lines"], second["objects"]
    assert "All members have joined all_reduce #1" in line
    assert "It may be a link: the kernel's log on host says `ixgbe 0000:01:00.0 eth2: NIC" in line
    assert said["finding"]["hint"].startswith("Suspect this link first")
    assert said["culprit_ranks"] == []
    judge.verdict()
    assert len(asked) == 1
    later = only(findings(tmp_path))  # and anybody who reads the journals
    assert "eth2: NIC Link is Down" in later.summary


def test_nobody_waits_for_ever_for_an_answer() -> None:
    """A question that hangs is no longer waited for after two seconds and a bit."""
    one = machine.Asking()
    one.begin([], 10.0, now=time.monotonic() - 3)
    one._answers = None
    assert not one.pending


def test_a_wait_in_the_start_up_is_another_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per stall; it is another one once the job has got on."""
    asked: list[float] = []

    def ask(_: float) -> list[HostTrouble]:
        asked.append(now)
        return []

    monkeypatch.setattr(machine, "ask_kernel", ask)
    one = machine.Asking()
    for now, begun in ((0.0, 3), (5.0, 3), (9.0, 4), (12.0, 4), (20.0, 4), (25.0, 5), (40.0, 5)):
        one.begin([], 10.0, begun, now=now)
        wait_until(lambda: one._answers is not None)
    assert asked == [0.0, 12.0, 25.0]


def test_what_came_long_before_the_wait_is_not_told(tmp_path: Path) -> None:
    for journal in workers(tmp_path, 2):
        journal.begin(journal.collective(journal.world()), 200 * S, q=1)
        journal.beat(230)
        if journal.rank == 0:
            fields = {"where": "link", "name": "eth2", "text": "eth2: Link down"}
            journal.define("trouble", t=215 * S, ago=100 * S, by="kernel log", **fields)
    assert "eth2" not in only(findings(tmp_path)).summary


def test_whose_device_it_is(tmp_path: Path) -> None:
    """Where the kernel names one of the job's processes; of an operation on the CPU nobody's."""
    device: dict[str, Any] = {"backend": "nccl", "device": "cuda"}
    for folder, keys in ((tmp_path / "gpu", device), (tmp_path / "cpu", {})):
        for journal in workers(folder, 2):
            journal.issue(journal.collective(journal.world(), **keys), S, q=1, d=S)
            journal.begin(journal.collective(journal.world(), **keys), 2 * S, q=2)
            journal.beat(200)
            if journal.rank == 1:
                text = "NVRM: Xid (PCI:0000:65:00): 79, pid=4001, GPU has fallen off the bus."
                fields = {"by": "kernel log", "where": "device", "name": "0000:65:00", "code": 79}
                journal.define("trouble", t=150 * S, ago=149 * S, mine=1, text=text, **fields)
    told = findings(tmp_path / "gpu")[0]
    assert "It may be a device of rank 1: the kernel's log on host says `NVRM: Xid" in told.summary
    assert (told.kind, told.culprits) == ("no_progress", ())
    assert "Xid" not in findings(tmp_path / "cpu")[0].summary


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
