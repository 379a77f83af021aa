"""Real processes with a hard limit: a program that hangs leaves its stacks and dies as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
GRACE = 5.0
"""Seconds that a process gets to write its stacks after SIGABRT."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended: `code` as subprocess gives it (negative: the signal)."""

    code: int
    stdout: str
    stderr: str
    hung: bool

    def check(self) -> Outcome:
        """Itself, if the program ended well; else an AssertionError with all that it said."""
        assert self.code == 0, f"{self}"
        assert not self.hung, f"{self}"
        return self

    def __str__(self) -> str:
        state = "hung" if self.hung else f"exit code {self.code}"
        return f"{state}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def clean_environ(**variables: str) -> dict[str, str]:
    """This process's environment without anything of disttrace or of a launcher, plus `variables`.

    The repository is on PYTHONPATH, so that programs find disttrace wherever they start.
    """
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DISTTRACE", "TORCHELASTIC_", "GROUP_")) and name not in launcher
    }
    path = os.pathsep.join((str(ROOT), str(ROOT / "viewer")))
    core = os.environ.get("TEST_CORE")  # `make test-cores` runs everything on the one named
    chosen = {"DISTTRACE_CORE": core} if core else {}
    # Where a program's stderr is compared, the line about its journals is not what is meant.
    ours = {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "DISTTRACE_QUIET": "1"}
    return {**kept, **ours, **chosen, **variables}


def run_program(
    args: Sequence[str | os.PathLike[str]], env: Mapping[str, str] | None = None,
    timeout: float = 60.0, *, cwd: str | os.PathLike[str] | None = None,
) -> Outcome:  # fmt: skip
    """Run `args` in a process group of its own, for `timeout` seconds at most.

    After that every process of the group gets SIGABRT, with which Python prints the stacks of all
    threads, and then SIGKILL, like anything that is still there after a program that ended. So do
    the groups of its descendants: torchrun starts each worker in a session of its own, and one
    that stays would keep the pipes open for ever.
    """
    with subprocess.Popen(
        [os.fspath(arg) for arg in args],
        env=dict(clean_environ() if env is None else env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        hung = False
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            hung = True
            groups = {process.pid, *descendant_groups(process.pid)}
            for group in groups:
                signal_group(group, signal.SIGABRT)
            try:
                stdout, stderr = process.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                for group in groups:
                    signal_group(group, signal.SIGKILL)
                stdout, stderr = process.communicate()
        finally:
            signal_group(process.pid, signal.SIGKILL)
    return Outcome(code=process.returncode, stdout=stdout, stderr=stderr, hung=hung)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to the process group that `run_program` made; gone is fine."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        pass


def descendant_groups(ancestor: int) -> set[int]:
    """The process groups of what descends from a process, as far as its parents still live."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, parent, group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(parent), int(group)
    ours = {ancestor}
    while new := {pid for pid, (parent, _) in parents.items() if parent in ours} - ours:
        ours |= new
    return {parents[pid][1] for pid in ours if pid != ancestor}


def family(pid: int) -> list[int]:
    """A process and all its descendants, whatever sessions and groups they have made."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in family(int(child)))]


def kill_family(process: subprocess.Popen[Any]) -> None:
    """SIGKILL to a process and all that it started, at once; its pipes are closed."""
    with process:
        if process.poll() is None:
            for pid in family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        signal_group(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ending(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            kill_family(process)


@contextlib.contextmanager
def running(
    command: Sequence[str | os.PathLike[str]],
    folder: Path,
    environ: Mapping[str, str],
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to `stdout` and `stderr` in a folder; killed in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command, env=environ, stdout=out, stderr=err, start_new_session=True, **options
        )
    with ending(process):
        yield process


@contextlib.contextmanager
def busy(count: int, **variables: str) -> Iterator[None]:
    """So many processes that want a processor all the time."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    environ = {**os.environ, **variables}
    with ending(*(subprocess.Popen(command, env=environ) for _ in range(count))):
        yield


def python(*args: str | os.PathLike[str], timeout: float = 60.0, **variables: str) -> Outcome:
    """Run this interpreter with `args` in a clean environment plus `variables`."""
    return run_program([sys.executable, *args], clean_environ(**variables), timeout)


def torchrun(
    script: str | os.PathLike[str], nproc: int, *args: str, timeout: float = 120.0,
    options: Sequence[str] = (), **variables: str,
) -> Outcome:  # fmt: skip
    """Run `script` under torchrun with `nproc` workers on a port of its own choice.

    `options` are torchrun's (`("--max-restarts", "1")`), `args` the script's, `variables` are put
    into the environment (`DISTTRACE="1", DISTTRACE_DIR=...`).
    """
    command = [sys.executable, *launcher(script, nproc, *args, options=options)]
    variables = {"OMP_NUM_THREADS": "1", **variables}  # torchrun complains when nobody said
    return run_program(command, clean_environ(**variables), timeout)


def launcher(
    script: str | os.PathLike[str], nproc: int, *args: str, options: Sequence[str] = ()
) -> list[str]:
    """What an interpreter is given to be torchrun."""
    meets = options if "--master-port" in options else ("--standalone", *options)
    command = ["-m", "torch.distributed.run", *meets, "--nproc-per-node", str(nproc)]
    return [*command, os.fspath(script), *args]


def static() -> tuple[str, str]:
    """Options of torchrun for a static rendezvous, in place of one by itself."""
    return ("--master-port", str(free_port()))


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        status = Path("/proc", str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] not in ("Z", "X")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, pause_s: float = 0.01) -> T:
    """What `condition()` is, as soon as it is true; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not true within {timeout} s"
        time.sleep(pause_s)
    return found


def missing(folder: Path, *options: str) -> dict[str, Any]:
    """What `diagnose` says of a rank that does not come, as soon as it says it."""
    command = [sys.executable, "-m", "disttrace", "diagnose", "--json", *options, str(folder)]

    def told() -> list[dict[str, Any]]:
        said = run_program(command).stdout
        found = json.loads(said)["findings"] if said.startswith("{") else []
        return [one for one in found if one["kind"] == "missing_participant"]

    return wait_until(told, 60, pause_s=1.0)[0]


def free_port() -> int:
    """A free TCP port below those that the kernel gives to connections by itself."""
    while True:
        port = secrets.choice(range(15_000, 32_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def companions(folder: Path) -> list[int]:
    """Companions of the job whose journals are in a folder, with their children."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"disttrace_viewer.companion" in line and str(folder).encode() in line:
            found.append(int(entry.name))
    return found
