"""The files of a companion: its lock and its log, also where others may write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.viewer import shared_folder
from disttrace.config import resolve
from disttrace.identity import Identity
from disttrace.journal import proc
from disttrace.journal.format import definitions_name
from disttrace.lifecycle import companion, detached
from disttrace.lifecycle.companion import Companion, MemberList
from disttrace_viewer.companion.reading import OwnJournals
from disttrace_viewer.companion.verdict import Judge
from disttrace_viewer.states.folder import of_journals
from disttrace_viewer.states.state import Merged
from support.orders import order

PRECIOUS = "alias ll='ls -l'\n"


class Bench:
    """An exporter over a folder whose process is never really started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sentences: list[str] = []
        config, _ = resolve({"dir": folder, "export": "json,otlp", "job": "j"}, {})
        self.identity = Identity({}, job="j")
        folder.mkdir()
        Path(definitions_name(str(folder / self.identity.base_name()))).touch()
        self.exporter = Companion(config, self._say)
        stem = companion._group_of(self.identity)
        self.log, self.registry = folder / f"{stem}.log", folder / f"{stem}.otlp"

    def _say(self, part: str, sentence: str) -> bool:
        self.sentences.append(sentence)
        return True


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    def no_process(*args: object, **kwargs: object) -> int:
        raise OSError("this test starts no process")

    monkeypatch.setattr(detached, "start", no_process)
    bench = Bench(tmp_path / "out")
    yield bench
    bench.exporter.stop()


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def dangling_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("new"))


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, victim: Path) -> None:
    path.mkdir()


def foreign(path: Path, victim: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    path.write_text("theirs\n")
    path.chmod(0o666)
    os.chown(path, 65534, 65534)


PLANTED = pytest.mark.parametrize(
    ("plant", "told"),
    [
        (link, "is a link"), (dangling_link, "is a link"), (hard_link, "has another name"),
        (pipe, "is no regular file"), (a_folder, "is no regular file"),
        (foreign, "belongs to another user"),
    ],
)  # fmt: skip


@PLANTED
@pytest.mark.parametrize("which", ["log", "registry"])
def test_what_a_stranger_put_there_is_one_sentence(
    bench: Bench, tmp_path: Path, which: str, plant: Callable[[Path, Path], None], told: str
) -> None:
    """It is neither followed, nor waited for, nor written to, nor read."""
    victim = tmp_path / ".bashrc"
    victim.write_text(PRECIOUS)
    path = getattr(bench, which)
    plant(path, victim)
    bench.exporter.start(bench.identity)
    bench.exporter._log = str(bench.log)
    bench.exporter._tell()
    (sentence,) = bench.sentences
    assert sentence.startswith("nothing is exported by otlp: ")
    assert told in sentence
    assert sentence.endswith("; the program goes on")
    assert victim.read_text() == PRECIOUS
    assert not (tmp_path / "new").exists()
    if plant is foreign:
        assert path.read_text() == "theirs\n"


def test_our_own_files_are_opened_again_and_private(bench: Bench) -> None:
    """A log of an earlier exporter is appended to; nobody else reads either file."""
    bench.log.write_text("earlier\n")
    bench.exporter.start(bench.identity)
    assert bench.sentences == [
        "nothing is exported by otlp: this test starts no process; the program goes on"
    ]
    assert bench.log.read_text() == "earlier\n"
    assert bench.registry.stat().st_mode & 0o777 == 0o600
    (line,) = bench.registry.read_text().splitlines()
    assert line.split()[2] == bench.identity.base_name()


@pytest.mark.parametrize(("world", "started"), [("2", True), ("1", False), ("", False)])
def test_a_failure_is_left_behind_where_journals_are_elsewhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, world: str, started: bool
) -> None:
    """Else whoever looks finds it in the folder, and no process is started at a process's end."""
    monkeypatch.setenv("WORLD_SIZE", world)
    bench.exporter.stay_after_failure(bench.identity)
    assert bool(bench.sentences) == started


@pytest.mark.parametrize(
    ("variables", "beside", "alone"),
    [
        ({"WORLD_SIZE": "2"}, None, True),
        ({"WORLD_SIZE": "2"}, "here", False),  # it would start one, too
        ({"WORLD_SIZE": "2"}, "ended", True),
        ({"WORLD_SIZE": "2"}, "elsewhere", True),  # a shared folder
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}, "here", True),  # a launcher, or a node's own
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, None, False),  # the other one is on its way
        ({"WORLD_SIZE": "1"}, None, False),
        ({}, None, False),
    ],
)
def test_who_is_alone_on_its_host(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], beside: str | None,
    alone: bool,
) -> None:  # fmt: skip
    """By what the launcher says, and without one by which bare ranks said that they are here."""
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bench.exporter.enter(bench.identity)
    if beside is not None:
        other = Identity({}, job="k")  # bare ranks draw a job each
        other.host = "other" if beside == "elsewhere" else other.host
        pid = 4_190_000 if beside == "ended" else os.getppid()
        mark = proc.mark(proc.stat(os.getppid()))
        with Path(MemberList(str(bench.folder))._of(other, "bare")).open("a") as file:
            file.write(f"{pid} {mark} {other.base_name()}\n")
    monkeypatch.setattr(os, "listdir", None)  # twenty thousand journals may lie there
    monkeypatch.setattr(os, "scandir", None)
    assert bench.exporter.is_alone(bench.identity) == alone


HOSTS, RANKS = 3, 2


APART = {"flat": [], "by host": range(HOSTS), "mixed": [1]}


@pytest.fixture(params=[*APART])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A job of three hosts, two tries before it, and journals of other jobs."""
    shared_folder.write(tmp_path, HOSTS, RANKS, tries=2, old=10, apart=APART[request.param])
    return tmp_path


def where(folder: Path, host: int) -> Path:
    own = shared_folder.of_host(folder, host, [host])
    return own if own.exists() else folder


def of_host(folder: Path, host: int) -> Merged:
    own = OwnJournals(str(where(folder, host)), "job", f"host{host}")
    return of_journals(own.files())


def test_a_host_reads_its_own(folder: Path) -> None:
    """Of the try that runs, and neither other jobs nor other hosts."""
    pids = {state.process["pid"] for state in of_host(folder, 0).states.values()}
    assert pids == {os.getpid(), 4_000_001}
    pids = {state.process["pid"] for state in of_host(folder, 2).states.values()}
    assert pids == {4_000_004, 4_000_005}


def test_of_a_try_without_anybody_left_the_newest_is_read(folder: Path) -> None:
    """All have failed, and their launcher is about to begin anew."""
    for path in folder.rglob(f"job-host0-{os.getpid()}-*"):
        path.unlink()
    pids = {state.process["pid"] for state in of_host(folder, 0).states.values()}
    assert pids == {4_000_001}


def test_a_host_that_none_answers_prints_what_it_knows(folder: Path) -> None:
    """Of ranks of other hosts nothing is known, though their journals lie here as well."""
    judge = Judge(order(where(folder, 0), host="host0", root=str(folder)))
    judge.peers.join = lambda *_: False  # type: ignore[method-assign]
    told = judge.verdict()
    assert told["announcers"]
    assert "nothing is known of ranks 2-5: no store of the job leads to them" in told["lines"]
    assert told["lines"][-1].endswith(f"disttrace diagnose {folder}")
    judge.peers.close()
    assert not list(folder.rglob("*.lead"))
