"""Whether the process that wrote a journal runs: its own kernel knows, in its own namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from disttrace.journal import proc
from disttrace_viewer.analysis.liveness import UNKNOWN, look
from disttrace_viewer.merge.surveying import survey
from support.journals import Journal
from support.processes import clean_environ

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
        [*CONTAINER, NAMED, script, *arguments],
        env=clean_environ(RANK="0", WORLD_SIZE="2"),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0,
    reason="no containers can be made here",
)
def test_containers_of_one_name_know_nothing_of_each_other(tmp_path: Path) -> None:
    """They share the kernel, the host's name and the folder; in one of them the rank lives, and
    ends. Nobody elsewhere takes it for dead meanwhile, nor for alive because of another's number.
    """
    python, rank, seen = sys.executable, dedent(RANK), dedent(LOOK)
    own = in_container(
        '"$0" -c "$1" "$3" & read wait; "$0" -c "$2" "$3"; kill -9 $!; wait; "$0" -c "$2" "$3"',
        python, rank, seen, str(tmp_path),
    )  # fmt: skip
    assert own.stdin is not None
    assert own.stdout is not None
    try:
        assert own.stdout.readline() == "up\n"
        other = in_container('sleep 60 & exec "$0" -c "$1" "$2"', python, seen, str(tmp_path))
        assert other.communicate(timeout=60)[0] == "None\n"
        assert lives(tmp_path) is None
        assert own.communicate("\n", timeout=60)[0] == "True\nFalse\n"
    finally:
        own.kill()
        own.wait()
