"""Where a main thread stands is believed only as long as it has done nothing since."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disttrace.journal import proc
from disttrace.journal.code_files import is_library, is_program
from disttrace_viewer.analysis.liveness import UNKNOWN, look
from disttrace_viewer.analysis.sample import innermost, inside, latest_samples, site
from disttrace_viewer.diagnosis.job import verdict_on
from disttrace_viewer.merge.reader import load
from disttrace_viewer.merge.surveying import survey
from disttrace_viewer.trace.process import Frame
from disttrace_viewer.wording.names import file_name
from disttrace_viewer.wording.sentences import place
from support.journals import MS, Journal, S
from support.processes import clean_environ, ending
from support.scenes import alive, all_gone, finds, steps

LOADER = ("loader.py", 9, "load")


def shown(folder: Path) -> Frame | None:
    """The innermost line of rank 0's main thread."""
    trace = load([str(folder)])
    (index,) = (p.index for p in trace.processes if p.rank == 0)
    found = verdict_on(trace).case.evidence.samples.get(index)
    return None if found is None else found.stack[0]


@pytest.mark.parametrize(
    ("since", "holds"),
    [("beats", True), ("operation", False), ("wait", False), ("poll", True), ("helper", True)],
)
def test_a_note_holds_while_its_thread_does_nothing(
    tmp_path: Path, since: str, holds: bool
) -> None:
    """What a poller sees complete, and what a helper does, does not move the main thread."""
    (journal, group), _ = steps(tmp_path, 2)
    if since in ("wait", "poll"):
        number = journal.issue(journal.collective(group, asynchronous=True), 1 * S, q=3, d=MS)
    journal.stand(3 * S, *LOADER)
    if since == "beats":
        journal.beat(20)
    elif since == "operation":  # also a composed one, which nothing is inside of
        journal.run(journal.call("destroy_process_group", kind="composed"), t=4 * S, d=MS)
    elif since == "helper":
        journal.define("thread", n=1, name="helper", native=7)
        journal.run(journal.call("store.set", kind="store"), t=5 * S, d=MS, h=1, k="alive")
    else:
        journal.record(**{"w" if since == "wait" else "c": number}, d=3 * S)
    assert shown(tmp_path) == (LOADER if holds else None)


def test_an_old_line_is_not_told(tmp_path: Path) -> None:
    """Rank 1 was seen in its loader, came out of it, left the group, and never came again."""
    for journal, group in alive(steps(tmp_path, 2)):
        if journal.rank == 0:
            journal.begin(journal.collective(group), 5 * S, q=3)
        else:
            journal.stand(3 * S, *LOADER)
            where = journal.stack(("train.py", 40, "main"))
            leave = journal.call("destroy_process_group", kind="composed", stack=where)
            journal.run(leave, t=4 * S, d=MS)
    found = finds(tmp_path, "missing_participant", look=all_gone)
    assert "rank 1 is not in any collective since destroy_process_group." in found.summary
    assert [(one.file, one.line) for one in found.locations] == [("train.py", 40), ("train.py", 10)]


@pytest.mark.parametrize("file", ["<eval_with_key>.1", "/tmp/torchinductor_me/ab/cab.py"])
def test_code_that_was_generated_is_nobodys_line(file: str) -> None:
    """A compiled step is shown at the line of the program, with the inner one in brackets."""
    stack = (Frame(file, 7, "forward"), Frame("/src/train.py", 42, "step"))
    assert innermost(stack) == stack[1]
    assert inside(stack) == stack[0]


def test_a_main_thread_that_is_a_librarys_is_not_where_the_rank_is(tmp_path: Path) -> None:
    """As in a worker of Ray's: another thread trains, and is seen in the program."""
    libraries = "/v/lib/python3.11/site-packages/ray/worker.py"
    for main, told in (
        (("train.py", 40, "main"), ("train.py", 40, "main")),
        ((libraries, 1069, "main_loop"), LOADER),
    ):
        folder = tmp_path / str(told[1])
        (journal, _), _ = steps(folder, 2)
        journal.define("thread", n=1, name="TrainingThread", native=7)
        journal.stand(3 * S, *main)
        journal.stand(3 * S, *LOADER, thread=1)
        trace = load([str(folder)])
        (index,) = (p.index for p in trace.processes if p.rank == 0)
        assert latest_samples(trace, {}, {index: {1}})[index].stack[0] == told


@pytest.mark.parametrize(
    ("main", "told"),
    [
        ([("threading.py", 327, "wait"), ("train.py", 12, "main")], "train.py:12"),
        ([("selectors.py", 468, "select"), ("train.py", 12, "main")], "train.py:12"),
        ([("train.py", 12, "main")], "thread.py:58"),  # it does something of its own meanwhile
        ([("threading.py", 327, "wait")], "thread.py:58"),
    ],
)
def test_a_pool_that_was_given_the_call_itself_is_told_by_who_waits_for_it(
    tmp_path: Path, main: list[tuple[str, int, str]], told: str
) -> None:
    """`pool.submit(dist.all_reduce, x).result()`: nothing of the program is on the pool's stack."""
    library = "/usr/lib/python3.11"
    for journal, group in alive(steps(tmp_path, 2)):
        journal.define("thread", n=1, name="pool", native=7)
        if journal.rank == 0:
            pool = journal.stack((f"{library}/concurrent/futures/thread.py", 58, "run"))
            journal.begin(journal.collective(group, stack=pool), 4 * S, q=3, h=1)
            frames = [(f if f == "train.py" else f"{library}/{f}", n, name) for f, n, name in main]
            journal.record(at=6 * S, h=0, k=journal.stack(*frames))
        else:
            journal.stand(3 * S, *LOADER)
    finds(tmp_path, "missing_participant", says=f"rank 0 has been waiting at {told} for")


PACKAGES = "/env/lib/python3.11/site-packages"
DDP = Frame(f"{PACKAGES}/lightning/pytorch/strategies/ddp.py", 303, "barrier")
MINE = Frame("/src/train.py", 42, "step")
INDUCTOR = "c" + "a7" * 25 + "b.py"


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/src/train.py", "program"), ("<cell 3>", "program"),
        ("/home/me/python3-work/train.py", "program"),
        ("/usr/lib64/python3.11/queue.py", "library"),
        ("/env/lib/python3.11/multiprocessing/process.py", "library"),
        (f"{PACKAGES}/lightning/fabric.py", "library"),
        ("/env/bin/accelerate", "library"), ("/home/me/bin/train.py", "program"),
        ("<eval_with_key>.7", "library"), ("/tmp/torchinductor_me/ab/x.py", "library"),
        (f"/scratch/cache/a7/{INDUCTOR}", "library"), ("<frozen runpy>", "library"),
        ("<string>", "nobody knows"),
    ],
)  # fmt: skip
def test_whose_a_file_is(file: str, owner: str) -> None:
    assert (is_program(file), is_library(file)) == (owner == "program", owner == "library")


def test_the_programs_line_comes_before_a_packages() -> None:
    """However far out; and the text of ``python -c`` before a package's."""
    typed = Frame("<string>", 2, "<module>")
    assert innermost((DDP, typed, MINE)) == MINE
    assert innermost((DDP, typed)) == typed
    assert innermost((DDP,)) == DDP


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (DDP.file, "lightning/.../ddp.py"),
        (f"{PACKAGES}/accelerate/data.py", "accelerate/data.py"),
        (f"{PACKAGES}/typing_extensions.py", "typing_extensions.py"),
        (MINE.file, "train.py"),
    ],
)
def test_a_file_of_a_package_is_named_by_it(file: str, name: str) -> None:
    assert file_name(file) == name
    assert place(Frame(file, 7, "f")) == f"{name}:7"


def test_calls_from_generated_code_are_compared_by_the_users_line() -> None:
    """Each rank numbers and lays out the code that it generates by itself."""
    stacks = (
        (Frame("<eval_with_key>.3", 10, "forward"), MINE),
        (Frame("<eval_with_key>.5", 12, "forward"), MINE),
        (Frame("<eval_with_key>.5", 12, "forward"), Frame("/src/train.py", 43, "step")),
        (MINE, Frame("<frozen runpy>", 88, "_run_code")),
    )
    first, second, third, last = (
        cast(Any, SimpleNamespace(named="all_reduce", stack=stack)) for stack in stacks
    )
    assert site(first) == site(second) == ("all_reduce", MINE)
    assert site(third) != site(second)
    assert site(last) == ("all_reduce", stacks[3])


HOUR = 3600 * 10**9


def lives(folder: Path) -> bool | None:
    (process,) = survey([str(folder)]).processes
    return look(process).alive


@pytest.mark.parametrize("set_ns", [0, -HOUR, HOUR])
def test_a_wall_clock_that_is_set_changes_nothing(tmp_path: Path, set_ns: int) -> None:
    """The time of boot moves with it; ticks since boot do not."""
    Journal(tmp_path, pid=os.getpid(), boot_id=proc.boot_id() or "", keys=proc.own(),
            host="a name like any other", offset_ns=10**18 + set_ns)  # fmt: skip
    assert lives(tmp_path) is True


def test_an_older_journal_says_too_little(tmp_path: Path) -> None:
    """Its number may be of another container of this host, so nothing is certain by it."""
    Journal(tmp_path, pid=os.getpid(), boot_id=proc.boot_id() or "", host=os.uname().nodename)
    (process,) = survey([str(tmp_path)]).processes
    assert look(process) == UNKNOWN


RANK = """
    import sys, time, disttrace
    disttrace.install(dir=sys.argv[1], quiet=True, job="nightly")
    print("up", flush=True)
    time.sleep(120)
"""
LOOK = """
    import sys
    from disttrace_viewer.analysis.liveness import look
    from disttrace_viewer.merge.surveying import survey
    print(*(look(p).alive for p in survey(sys.argv[1:]).processes))
"""
CONTAINER = ["unshare", "--map-root-user", "--pid", "--uts", "--fork", "--mount-proc", "sh", "-c"]
NAMED = 'hostname pod-0; exec sh -c "$0" "$@"'


def in_container(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A shell's script in a container of its own, all of which have one host name."""
    return subprocess.Popen(
        [*CONTAINER, NAMED, script, *arguments], env=clean_environ(RANK="0", WORLD_SIZE="2"),
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0,
    reason="no containers can be made here",
)
def test_containers_of_one_name_know_nothing_of_each_other(tmp_path: Path) -> None:
    """One kernel, name and folder: nobody elsewhere takes a rank for dead, or alive by a number."""
    python, rank, seen = sys.executable, dedent(RANK), dedent(LOOK)
    own = in_container(
        '"$0" -c "$1" "$3" & read wait; "$0" -c "$2" "$3"; kill -9 $!; wait; "$0" -c "$2" "$3"',
        python, rank, seen, str(tmp_path),
    )  # fmt: skip
    assert own.stdin is not None
    assert own.stdout is not None
    with ending(own):
        assert own.stdout.readline() == "up\n"
        other = in_container('sleep 60 & exec "$0" -c "$1" "$2"', python, seen, str(tmp_path))
        assert other.communicate(timeout=60)[0] == "None\n"
        assert lives(tmp_path) is None
        assert own.communicate("\n", timeout=60)[0] == "True\nFalse\n"
