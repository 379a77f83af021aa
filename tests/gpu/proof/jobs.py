"""Runs the ranks of a scenario, watches them until they hang or end, and keeps what they leave."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.proof.scenarios import Scenario
from gpu.proof.what_is_left import Journal, Run, facts
from support.raw import read_journals

TESTS = Path(__file__).resolve().parents[2]
STANDIN = TESTS / "support" / "standin"
STALL_S = 3.0
VERSION = "2.13"  # of torch, whose NCCL the stand-in imitates where a row says nothing else
ENDED = "ended before it hung"
STANDS = "did not end"
_COUNTER_S = 30.0  # for what is healthy, and hangs with a fault in it
_SETTLED_S = 3.0  # after rank 0 has ended, the others end by themselves or never
_HUNG = {"blocks", "hung", "looked", "returned"}
_NCCL = {
    "NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0", "NCCL_MAX_NCHANNELS": "2", "NCCL_DEBUG": "WARN",
}  # fmt: skip
_BUFFERS = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000"}
# CUDA_LAUNCH_BLOCKING makes the host wait: everything here would be void.
_NOT_OURS = ("DISTTRACE", "TORCHELASTIC_", "TORCH_", "NCCL_", "STANDIN", "CUDA_LAUNCH_BLOCKING")


class Jobs:
    """The same job, traced or not; ``fault``: with what is wrong in it, or without."""

    def __init__(
        self, options: argparse.Namespace, scenario: Scenario, version: str, *, fault: bool
    ) -> None:
        self.o, self.s, self.fault = options, scenario, fault
        self.version = scenario.standin.get("STANDIN_TORCH", version)
        way = "counter" if options.counter else "run"
        self.folder: Path = options.out / way / version / scenario.name

    def run(self, *, traced: bool) -> Run:
        """One of them, from its start to the end of every process of it."""
        folder = self.folder / ("traced" if traced else "plain")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        trace = folder / "journals" if traced else None
        run = Run([None] * self.s.world, [], [])
        with self._ranks(folder, trace) as processes:
            if self.s.hangs:
                self._until_hung(folder, processes, run)
                if trace:
                    run.live = self._diagnose(trace, folder / "live.json")
            else:
                self._until_ended(processes, run)
            run.codes = [p.poll() for p in processes]
        run.facts = facts(folder, self.s.world)
        errors = (folder / f"{r}.err" for r in range(self.s.world))
        run.stderr = [each.read_text(errors="replace") for each in errors]
        if trace and trace.is_dir():
            run.journals = [one for raw in read_journals(trace) if (one := Journal(raw)).rank >= 0]
            run.dead = self._diagnose(trace, folder / "dead.json")
        if not self.s.hangs and not self.s.any_code and any(run.codes):
            run.problems.append(f"exit codes {run.codes}: {run.stderr[0][-200:]!r}")
        return run

    @contextlib.contextmanager
    def _ranks(self, folder: Path, trace: Path | None) -> Iterator[list[subprocess.Popen[bytes]]]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        program, backend = self.s.program or self.s.name, self.o.backend
        if backend == "standin":
            backend = "nccl2" if self.version == "2.15" else "nccl-legacy"
        command = [sys.executable, "-m", "gpu.proof.rank", program, "--backend", backend]
        command += ["--timeout", str(self.s.timeout)]
        processes: list[subprocess.Popen[bytes]] = []
        with contextlib.ExitStack() as files:
            try:
                for rank in range(self.s.world):
                    out = files.enter_context((folder / f"{rank}.out").open("wb"))
                    err = files.enter_context((folder / f"{rank}.err").open("wb"))
                    env = self._environment(rank, port, trace)
                    one = subprocess.Popen(command, env=env, stdout=out, stderr=err, cwd=folder)
                    processes.append(one)
                yield processes
            finally:
                for p in processes:
                    if p.poll() is None:
                        p.kill()
                for p in processes:
                    p.wait()

    def _environment(self, rank: int, port: int, trace: Path | None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
        paths = [kept.get("PYTHONPATH"), str(TESTS)]
        own = {} if self.s.by_env and self.o.counter else self.s.env
        if self.o.backend == "standin":
            paths.append(str(STANDIN))
            device = {"STANDIN": str(self.o.sockets), "STANDIN_TORCH": self.version}
            device.update(_BUFFERS)
            chosen = {**own, **self.s.standin}
        else:
            each = self.s.needs == "gpus"  # else: «Duplicate GPU detected»
            device = {**_NCCL, **_BUFFERS, **({} if each else {"NCCL_HOSTID": f"kit-host-{rank}"})}
            chosen = {**own, **({"KIT_DEVICES": "each"} if each else {})}
        return {
            **kept,
            **device,
            **chosen,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RANK": str(rank),
            # From it 2.15's groups take their device.
            "LOCAL_RANK": str(rank) if chosen.get("KIT_DEVICES") == "each" else "0",
            "WORLD_SIZE": str(self.s.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1",
            "KIT_TRACE": str(trace) if trace else "-", "KIT_FAULT": str(int(self.fault)),
        }  # fmt: skip

    def _until_hung(self, folder: Path, processes: list[subprocess.Popen[bytes]], run: Run) -> None:
        limit = time.monotonic() + float(self.o.limit)
        while time.monotonic() < limit:
            if any(set(f) & _HUNG for f in facts(folder, self.s.world)[0]):
                break
            if all(p.poll() is not None for p in processes):
                run.problems.append(f"{ENDED}: {[p.poll() for p in processes]}")
                return
            time.sleep(0.1)
        else:
            run.problems.append("never got to where it hangs")
        time.sleep(self.s.observe)

    def _until_ended(self, processes: list[subprocess.Popen[bytes]], run: Run) -> None:
        limit_s = min(self.o.limit, _COUNTER_S) if self.o.counter else self.o.limit
        limit = time.monotonic() + limit_s
        while time.monotonic() < limit and any(p.poll() is None for p in processes):
            if self.s.first_ends and processes[0].poll() is not None:
                limit = min(limit, time.monotonic() + _SETTLED_S)
            time.sleep(0.1)
        if processes[0].poll() is None:
            run.problems.append(f"{STANDS} within {limit_s:.0f} s")

    def _diagnose(self, journals: Path, keep: Path) -> dict[str, Any] | None:
        environ = {k: v for k, v in os.environ.items() if k != "DISTTRACE"}
        command = [sys.executable, "-m", "disttrace", "diagnose", str(journals), "--json"]
        done = subprocess.run(
            [*command, "--stall", str(STALL_S)],
            capture_output=True, text=True, timeout=90, env=environ, check=False,
        )  # fmt: skip
        keep.write_text(done.stdout or done.stderr)
        with contextlib.suppress(json.JSONDecodeError):
            report: dict[str, Any] = json.loads(done.stdout)
            return report
        return None
