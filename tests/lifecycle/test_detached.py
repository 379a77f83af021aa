"""A process of ours beside the program, which sees nothing of it: not where orphans become its
children, either.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disttrace.config import resolve
from disttrace.identity import Identity
from disttrace.journal import compiled, proc
from disttrace.journal.format import definitions_name
from disttrace.lifecycle import companion, detached
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.detached import Adopter
from disttrace_viewer.companion.service import CompanionLog, JournalRegistry, TaskThread, serve
from disttrace_viewer.merge.surveying import survey
from support.preloaded import to_its_end
from support.processes import (
    ROOT,
    Outcome,
    clean_environ,
    companions,
    ending,
    free_port,
    is_running,
    python,
    run_program,
    running,
    wait_until,
)
from support.raw import read_journals

WAYS = pytest.mark.parametrize("kept", [False, True], ids=["detached", "kept"])

TELLS = """
import json, os, time
with open("/proc/self/status") as file:
    signals = dict(line.split(":", 1) for line in file if line.startswith("Sig"))
found = {
    "cwd": os.getcwd(), "session": os.getsid(0) == os.getpid(), "parent": os.getppid(),
    "open": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
    "more": [n for n in range(3, 1000) if os.path.exists(f"/proc/self/fd/{n}")],
    "blocked": signals["SigBlk"].strip(), "ignored": signals["SigIgn"].strip(),
}
os.write(1, json.dumps(found).encode() + b"\\n")
time.sleep(2)
"""
STARTS = """
import ctypes, os, signal, sys, time
from disttrace.lifecycle import detached
os.dup2(0, 900, inheritable=True)
os.chdir("/proc")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, 40):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGCHLD, 41])
out = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
command = [sys.executable, "-c", sys.argv[2]]
keeper = detached.start(command, dict(os.environ), out=out, err=out, kept=sys.argv[3] == "True")
print(keeper, flush=True)
ballast = bytearray(64 << 20)  # what it holds is not held twice
time.sleep(0.4)
if keeper:
    print(open(f"/proc/{keeper}/status").read().split("VmSize:")[1].split()[0])
    print(os.listdir(f"/proc/{keeper}/fd"), os.readlink(f"/proc/{keeper}/cwd"))
    print(detached.reap(keeper))
    while not (over := detached.reap(keeper)):
        time.sleep(0.1)
    print(over, os.path.exists(f"/proc/{keeper}"))
"""


@WAYS
def test_it_holds_nothing_of_the_program(tmp_path: Path, kept: bool) -> None:
    """Neither descriptors, nor the directory, nor signals; nor does the one that keeps it."""
    out = tmp_path / "out"
    lines = python("-c", STARTS, str(out), TELLS, str(kept)).check().stdout.splitlines()
    found = json.loads(out.read_text())
    parent = found.pop("parent")
    # Python itself ignores two, and has one more open while it reads its own folder.
    assert int(found.pop("ignored"), 16) == 1 << 12 | 1 << 24
    assert found == {
        "cwd": "/", "session": True, "open": ["/dev/null", str(out), str(out)], "more": [],
        "blocked": "0" * 16,
    }  # fmt: skip
    if kept:
        keeper, size_kb, *rest = lines
        assert parent == int(keeper)
        assert int(size_kb) < 1000
        assert rest == ["[] /", "False", "True False"]
    else:
        assert lines == ["0"]


@pytest.mark.parametrize("closed", [(0,), (0, 1), (1, 2), (0, 1, 2), (2,)])
def test_without_outputs_it_gives_other_numbers(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """What is opened then has theirs."""
    code = f"""
import os
from disttrace.lifecycle import detached
for number in {closed}:
    os.close(number)
err = os.open({str(tmp_path / "err")!r}, os.O_CREAT | os.O_WRONLY)
out = os.open({str(tmp_path / "out")!r}, os.O_CREAT | os.O_WRONLY)
command = ["/bin/sh", "-c", "echo out; echo err >&2; read line || echo end >&2"]
detached.start(command, {{}}, out=out, err=err, kept=False)
os._exit(0)
"""
    python("-c", code).check()
    wait_until(lambda: (tmp_path / "err").read_text() == "err\nend\n")
    assert (tmp_path / "out").read_text() == "out\n"


@WAYS
@pytest.mark.parametrize(("name", "error"), [("none", FileNotFoundError), ("", PermissionError)])
def test_failed_starts_told(tmp_path: Path, kept: bool, name: str, error: type[OSError]) -> None:
    """With the kernel's reason, and nobody is left of the attempt."""
    with (tmp_path / "out").open("wb") as out:
        number = out.fileno()
        with pytest.raises(error):
            detached.start([str(tmp_path / name)], {}, out=number, err=number, kept=kept)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG | -0x80000000)


def test_who_keeps_it_ends_with_it(tmp_path: Path) -> None:
    """And it with whoever keeps it: a process that adopts orphans must not get it."""
    with (tmp_path / "out").open("w+b") as out:
        number = out.fileno()
        command = ["/bin/sh", "-c", "echo $$; exec sleep 60"]
        keeper = detached.start(command, {}, out=number, err=number, kept=True)
        wait_until(lambda: os.pread(number, 20, 0).endswith(b"\n"))
        pid = int(os.pread(number, 20, 0))
    assert is_running(pid)
    os.kill(keeper, 9)
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: detached.reap(keeper))


def test_without_the_compiled_part_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    assert detached.refusal() is None
    monkeypatch.setattr(compiled, "load", absent)
    monkeypatch.setattr(detached, "_native", detached._native.__wrapped__)  # without its memory
    assert detached.refusal() == "the part that starts it was not compiled here"
    assert not detached.adopts()
    with pytest.raises(OSError, match="not compiled"):
        detached.start(["/bin/true"], {}, out=1, err=2, kept=False)


def test_paths_of_variables_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in another directory; what is no path stays."""
    monkeypatch.chdir(tmp_path)
    given = {
        "PYTHONPATH": f"lib:{tmp_path}/x::opentelemetry/instrumentation/auto_instrumentation",
        "PATH": "/bin:tools", "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem", "SSL_CERT_DIR": "",
        "OTEL_SERVICE_NAME": "lib", "DISTTRACE": "1", "DISTTRACE_PARENT": "x,main,j",
    }  # fmt: skip
    assert detached.environment(given) == {
        "PYTHONPATH": f"{tmp_path}/lib:{tmp_path}/x", "PATH": f"/bin:{tmp_path}/tools",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": f"{tmp_path}/ca.pem", "SSL_CERT_DIR": "",
        "OTEL_SERVICE_NAME": "lib", "DISTTRACE": "0",
    }  # fmt: skip


WITHIN = """
#include <Python.h>
int main(int argc, char **argv) {  /* whatever its arguments say */
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.executable, argv[0]);
    Py_InitializeFromConfig(&config);
    return PyRun_SimpleFile(fopen(getenv("PROGRAM"), "r"), getenv("PROGRAM"));
}
"""
WAITS = """
import datetime, os, stat, sys
def ran(what):
    with open(os.environ["RAN"], "a") as file: file.write(what + "\\n")
if __name__ == "sitecustomize":
    ran("start")
else:
    ran("program")
    way = os.environ["WAY"]
    if way == "wrapper":
        sys.executable = os.environ["WRAPPER"]
    import torch.distributed as dist
    import disttrace
    disttrace.install()
    disttrace.on_verdict(lambda verdict: (print("told"), sys.stdout.flush(), os._exit(0)))
    refuses = way == "within"
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3 if refuses else 60))
    except dist.DistError as error:
        print("in vain")
"""


def waits(tmp_path: Path, way: str) -> tuple[Outcome, list[str]]:
    """A rank that waits for another one, and what was run meanwhile."""
    program, ran, wrapper = (tmp_path / name for name in ("sitecustomize.py", "ran", "wrapper"))
    program.write_text(WAITS)
    wrapper.write_text(f"#!/bin/sh\necho wrapper >> {ran}\n")
    wrapper.chmod(0o700)
    command = [sys.executable, str(program)]
    if way == "within":
        (tmp_path / "within.c").write_text(WITHIN)
        version, lib = sysconfig.get_python_version(), sysconfig.get_config_var("LIBDIR")
        include = f"-I{sysconfig.get_path('include')}"
        command = [str(tmp_path / "trainer")]
        build = ["cc", include, "-o", *command, str(tmp_path / "within.c")]
        subprocess.run([*build, f"-L{lib}", f"-Wl,-rpath,{lib}", f"-lpython{version}"], check=True)
    environ = clean_environ(
        PROGRAM=str(program), RAN=str(ran), WRAPPER=str(wrapper), WAY=way,
        DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="1",
        RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
    )  # fmt: skip
    path = [str(tmp_path), environ["PYTHONPATH"], sysconfig.get_path("purelib")]
    environ["PYTHONPATH"] = os.pathsep.join(path)
    outcome = run_program(command, environ, 90, cwd=tmp_path)
    wait_until(lambda: not companions(tmp_path / "out"), timeout=30)
    return outcome, ran.read_text().splitlines()


@pytest.mark.parametrize("way", ["wrapper", "within"])
def test_nothing_of_the_program_runs_a_second_time(tmp_path: Path, way: str) -> None:
    """Not itself, nor its interpreter, nor what runs at each start: none, or a bare one."""
    outcome, ran = waits(tmp_path, way)
    refuses = way == "within"
    assert outcome.check().stdout == ("in vain\n" if refuses else "told\n")
    assert ran == ["start", "program"]
    refused = "disttrace: no stall is reported: this program's executable is not the one of"
    assert outcome.stderr.count(refused) == refuses


PYTHONS = sorted({sys.executable, *map(str, Path.home().glob(".pyenv/versions/3.1*/bin/python"))})
NAMES = """
import sys
{change}
from disttrace.lifecycle import detached
sys.executable = sys._base_executable = sys.prefix = sys.exec_prefix = "/elsewhere"
try: print(detached.interpreter())
except OSError as error: print("none:", error)
"""


@pytest.mark.parametrize("interpreter", PYTHONS)
def test_the_interpreter_is_the_one_that_runs(interpreter: str, tmp_path: Path) -> None:
    """On each version, whatever it is called later; a frozen program has none."""
    other = tmp_path / "trainer"
    other.write_bytes(Path(interpreter).read_bytes())
    other.chmod(0o700)

    def named(command: str | Path, change: str = "", **variables: str) -> str:
        code = NAMES.format(change=change)
        return run_program([command, "-S", "-c", code], clean_environ(**variables)).check().stdout

    found = named(interpreter).rstrip()
    assert os.path.samefile(found, interpreter)
    assert named(interpreter, "sys.frozen = True").startswith("none: ")
    home = str(Path(found).resolve().parents[1])
    assert named(other, PYTHONHOME=home).startswith("none: ")


ADOPTS = Path(__file__).with_name("adopts.py")
HANG = ROOT / "examples" / "faults" / "slow_loader.py"
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
US = os.geteuid()


def may_unshare() -> bool:
    """Whether this user may make a pid namespace."""
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


FIRST = pytest.mark.skipif(not may_unshare(), reason="no pid namespace can be made here")


@pytest.mark.parametrize("how", ["here", pytest.param("first", marks=[pytest.mark.long, FIRST])])
def test_a_program_that_waits_for_all_its_children_ends_as_ever(tmp_path: Path, how: str) -> None:
    """It finds its own children, and no other; and its stall is told."""
    before = NAMESPACE if how == "first" else []
    out = tmp_path / "out"
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_STALL="2")
    done = run_program([*before, sys.executable, str(ADOPTS), how], environ, 90).check()
    assert sorted(done.stdout.splitlines()) == [
        "never came", "orphan ended with 0", "rank ended with 0", "shell ended with 0",
    ]  # fmt: skip
    assert "disttrace: stalled: Child" in done.stderr
    assert not list(out.glob("*.adopts"))


def children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


TORCHRUN = ["--nproc-per-node=2", str(HANG), "--culprit=1"]
SPAWNS = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for step in range(3):
        time.sleep(60 * rank * (step == 2))
        dist.all_reduce(torch.ones(2))
if __name__ == "__main__":
    mp.spawn(main, [sys.argv[1]], 2)
"""


@FIRST
@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_containers_stall_is_told_by_any_first_process(tmp_path: Path, launcher: str) -> None:
    """Whoever notices it first: a rank asks the launcher, also one that does nothing else."""
    (tmp_path / "spawns.py").write_text(SPAWNS)
    ways = {
        "torchrun": ["-m", "torch.distributed.run", f"--master-port={free_port()}", *TORCHRUN],
        "spawn": [str(tmp_path / "spawns.py"), str(free_port())],
    }
    command = [*NAMESPACE, sys.executable, *ways[launcher]]
    environ = clean_environ(
        DISTTRACE="1", DISTTRACE_DIR=str(tmp_path / "out"), DISTTRACE_STALL="2", OMP_NUM_THREADS="1"
    )
    told = tmp_path / "stderr"
    with running(command, tmp_path, environ) as process:
        wait_until(lambda: "disttrace: stalled: Rank 1 never joined" in told.read_text(), 90)
        (first,) = children(process.pid)
        found = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children(int(first))}
        assert [*found.values()].count("disttrace\n") == 1
        assert not {*found} & {*map(str, companions(tmp_path / "out"))}


def test_the_companion_does_not_stay_as_a_child_of_whom_it_watches(tmp_path: Path) -> None:
    base = "j-host-1-0123"
    Path(definitions_name(str(tmp_path / base))).touch()
    path = tmp_path / "j.otlp"
    path.write_text(f"{os.getppid()} {proc.mark(proc.stat(os.getppid()))} {base}\n")
    followed: list[str] = []
    duty = SimpleNamespace(
        follow=followed.append, turn=lambda: None, ended=followed.append, pause_s=0.1,
        inherit=followed.append, finish=lambda: followed.append("finished"),
    )  # fmt: skip
    with path.open("r+b") as registry, (tmp_path / "log").open("w+b") as log:
        own = JournalRegistry(str(path), registry.fileno())
        log_of = CompanionLog(log.fileno())
        serve([TaskThread(lambda: cast(Any, duty), log_of)], own, log_of)
    assert followed == [base, "finished"]
    assert (tmp_path / "log").read_text().startswith("no companion: ")


# -- who is asked ------------------------------------------------------------------------------


@pytest.fixture
def adopter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Adopter]:
    """This process, as if it adopted."""
    monkeypatch.setattr(detached, "adopts", lambda: True)
    adopter = Adopter(str(tmp_path))
    yield adopter
    adopter.stop()


def test_it_is_found_by_its_descendants(adopter: Adopter, tmp_path: Path) -> None:
    """Orders arrive once each, whole lines only."""
    code = (
        "from disttrace.lifecycle.detached import first_adopter as first; "
        f"print(first({str(tmp_path)!r}, {US}))"
    )
    assert python("-c", code).check().stdout == "None\n"
    assert adopter.look(lambda: US) == []
    assert python("-c", code).check().stdout == f"{os.getpid()}\n"
    detached.ask_adopter(str(tmp_path), os.getpid(), {"registry": "a"}, US)
    (file,) = tmp_path.iterdir()
    with file.open("a") as torn:
        torn.write('nothing\n[1]\n{"registry": "torn"')
    assert adopter.look(lambda: US) == [{"registry": "a"}]
    assert adopter.look(lambda: US) == []
    adopter.stop()
    assert not list(tmp_path.iterdir())
    assert adopter.look(lambda: US) == []
    assert not list(tmp_path.iterdir())


def test_an_earlier_process_of_its_pid_is_not_asked(adopter: Adopter, tmp_path: Path) -> None:
    """What was left behind says another start, and is made anew by whoever has the pid now."""
    adopter.look(lambda: US)
    (file,) = tmp_path.iterdir()
    file.write_text('1\n{"registry": "of another"}\n')
    code = (
        "from disttrace.lifecycle.detached import first_adopter as first; "
        f"print(first({str(tmp_path)!r}, {US}))"
    )
    assert python("-c", code).check().stdout == "None\n"
    again = Adopter(str(tmp_path))
    again.look(lambda: US)
    assert again.look(lambda: US) == []
    assert python("-c", code).check().stdout == f"{os.getpid()}\n"


@pytest.mark.parametrize(
    "registry",
    [
        "/elsewhere/x.otlp",
        "{folder}/../x.otlp",
        "{folder}/job/../x.otlp",
        "{folder}/job/host/x.txt",
    ],
)
def test_it_starts_only_what_belongs_into_the_folder(
    adopter: Adopter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str
) -> None:
    """And that below a keeper."""
    started: list[bool] = []

    def start(*_: object, kept: bool, **__: object) -> int:
        started.append(kept)
        return 0

    monkeypatch.setattr(detached, "start", start)
    config, _ = resolve({"dir": tmp_path, "job": "j"}, {})
    identity = Identity({}, job="j")
    Path(definitions_name(str(tmp_path / identity.base_name()))).touch()
    ours = Companion(config, lambda part, sentence: True)
    ours.look(identity)
    (tmp_path / "j" / "host").mkdir(parents=True)
    own = [f"{tmp_path}/j.otlp", f"{tmp_path}/j/host/j.otlp"]  # of whoever lies by host
    for path in (registry.format(folder=tmp_path), *own):
        detached.ask_adopter(str(tmp_path), os.getpid(), {"registry": path}, US)
    ours.look(identity)
    ours.stop()
    assert started == [True, True]
    assert companion._log_of(f"{tmp_path}/j.otlp") == f"{tmp_path}/j.log"


# -- a real stall in a program that looks for children: it finds none, and can leave its folder


PROGRAM = """
import datetime, os, signal, socket, sys, time
heard = []
signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
signal.signal(signal.SIGINT, signal.SIG_IGN)
pair = socket.socketpair()
os.dup2(pair[0].fileno(), 700)
import torch.distributed as dist
heard.clear()  # torch itself may start something when it is imported
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=9))
print("begun", flush=True)
try:
    store.get("never")
except dist.DistStoreError:
    print("never came")
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
print(heard)
"""


def pipes(pid: int) -> set[str]:
    """The pipes and sockets that a process has open."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that was just closed
            found.add(os.readlink(each))
    return {name for name in found if name.startswith(("pipe:", "socket:"))}


def test_a_program_with_a_stall_sees_nothing_of_the_companion(tmp_path: Path) -> None:
    """It says what it says untraced; the companion, and what it starts, holds nothing of it."""
    out = tmp_path / "out"
    environ = clean_environ(DISTTRACE="1", DISTTRACE_DIR=str(out), DISTTRACE_STALL="2")
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=-1, stderr=-1, text=True)
    with ending(run):
        wait_until(lambda: len(companions(out)) == 2, timeout=60)
        theirs = pipes(run.pid)
        assert len(theirs) >= 4
        for pid in companions(out):
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert not pipes(pid) & theirs
        stdout, stderr = run.communicate(timeout=60)
    assert stdout == "begun\nnever came\nno child\n[]\n"
    assert "disttrace: stalled:" in stderr
    assert run.returncode == 0
    wait_until(lambda: not companions(tmp_path / "out"), timeout=30)


PROGRAM_EXEC = """
import os, sys, torch.distributed as dist
dist.HashStore().set("key", "value")
print(sys.argv[1], os.getpid() == int(os.environ.setdefault("FIRST", str(os.getpid()))), flush=True)
command = [sys.executable, __file__, "second"]
if sys.argv[1] == "second":
    sys.exit(4)
try:
    os.execvp("there is no such program", ["x"])
except FileNotFoundError as error:
    frames = 0
    while error.__traceback__ is not None:
        frames, error.__traceback__ = frames + 1, error.__traceback__.tb_next
    print(error.errno, error.filename, frames if sys.version_info >= (3, 11) else "", flush=True)
print(os.execve in os.supports_fd, os.execve.__name__, flush=True)
if sys.argv[1] == "execv":
    os.execv(sys.executable, command)
if sys.argv[1] == "execlpe":
    os.execlpe(sys.executable, *command, os.environ)
if sys.argv[1] == "c":
    import ctypes
    words = [word.encode() for word in command]
    ctypes.CDLL(None).execv(words[0], (ctypes.c_char_p * 4)(*words, None))
print("in vain")
"""


def outcome(tmp_path: Path, how: str, **variables: str) -> Outcome:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM_EXEC)
    return to_its_end(path, how, timeout=120, **variables)


@pytest.mark.parametrize("how", ["execv", pytest.param("execlpe", marks=pytest.mark.long), "c"])
def test_what_a_program_becomes_is_told(tmp_path: Path, how: str) -> None:
    """As its twin; two journals of one process, of which the last alone ended by itself."""
    folder = tmp_path / "out"
    rank = {"RANK": "1", "WORLD_SIZE": "2"}
    traced = outcome(tmp_path, how, DISTTRACE="1", DISTTRACE_DIR=str(folder), **rank)
    plain = outcome(tmp_path, how, **rank)
    assert traced == plain, f"{traced.stdout}\n{traced.stderr}\nuntraced:\n{plain.stderr}"
    assert traced.code == 4
    assert "second True" in traced.stdout
    first, second = sorted(read_journals(folder), key=lambda j: j.only("process")["t0"])
    said = [record["how"] for record in first.of("exit")]
    tried = said[: len(said) - (how != "c")]
    assert tried == ["exec", "resumed"] * (len(tried) // 2)
    assert tried
    assert said[len(tried) :] == (["exec"] if how != "c" else [])
    assert [record["how"] for record in second.of("exit")] == ["exit"]
    found = survey([str(folder)])
    assert len(found.jobs) == 1
    ends = [(p.rank, p.exit.how if p.exit else None) for p in found.processes]
    assert ends == [(1, "exec"), (1, "exit")]
