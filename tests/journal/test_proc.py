"""Which process is meant, and whether it runs: by what its kernel says, for equality alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from disttrace.journal import proc
from support.processes import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is /proc on Linux only")


def who(pid: int) -> proc.Who:
    """A process of this namespace as it would have written itself down."""
    return proc.Who(proc.here(), pid, proc.stat(pid).ticks)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_process_writes_down_who_it_is() -> None:
    record = {"boot_id": proc.boot_id(), "pid": os.getpid(), **proc.own()}
    assert proc.who(record) == who(os.getpid())
    alive, found = proc.find(proc.who(record))
    assert alive is True
    assert found is not None
    assert found.state in "RSD"


@pytest.mark.parametrize(
    ("changed", "alive"),
    [
        ({"ticks": 1}, False),  # the number was given to another one
        ({"pid": 2**31 - 2}, False),
        ({"place": {"boot_id": "another boot"}}, None),  # of this host, or of another one
        ({"place": {"pid_ns": 1}}, None),  # another container
        ({"place": {"time_ns": 1}}, None),  # in which ticks are counted otherwise
        ({"ticks": None}, None),  # an older recorder
        ({"place": {"pid_ns": None}}, None), ({"place": {"boot_id": None}}, None),
        ({"pid": None}, None), ({"pid": 0}, None), ({"pid": -1}, None),
    ],
)  # fmt: skip
def test_what_differs_is_another_or_unknown(changed: dict[str, object], alive: bool | None) -> None:
    """Ended only where this kernel says it of this namespace, and never of another one."""
    known = who(os.getpid())
    place = changed.pop("place", {})
    other = known._replace(place=known.place._replace(**place), **changed)  # type: ignore[arg-type]
    assert proc.find(other)[0] is alive


def test_a_zombie_has_ended(child: subprocess.Popen[bytes]) -> None:
    """And its status is there for those who may read it."""
    known = who(child.pid)
    assert proc.find(known)[0] is True
    child.send_signal(signal.SIGTERM)
    wait_until(lambda: proc.find(known)[0] is False)
    _, found = proc.find(known)
    assert found is not None
    assert found.status == signal.SIGTERM
    child.wait()
    assert proc.find(known) == (False, None)


def test_a_process_that_is_hidden_has_not_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounted with ``hidepid``, ``/proc`` has no folder for the processes of others."""
    known = who(child.pid)
    stat = proc.stat

    def hidden(task: int | str) -> proc.Stat:
        if task == child.pid:
            raise FileNotFoundError
        return stat(task)

    monkeypatch.setattr(proc, "stat", hidden)
    assert proc.find(known) == (None, None)


def test_a_signal_goes_to_the_very_process(child: subprocess.Popen[bytes]) -> None:
    """Not to one that has its number by now, nor across namespaces."""
    known = who(child.pid)
    assert known.ticks is not None
    for other in (
        known._replace(ticks=known.ticks + 1),
        known._replace(place=known.place._replace(pid_ns=1)),
        known._replace(place=known.place._replace(boot_id="another boot")),
    ):
        assert not proc.send(other, signal.SIGKILL)
    assert proc.find(known)[0] is True
    assert proc.send(known, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    assert not proc.send(known, signal.SIGKILL)


def test_a_number_that_changes_hands_meanwhile_gets_no_signal(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again once the kernel's descriptor of it is open."""
    answers = iter([(True, None), (False, None)])
    monkeypatch.setattr(proc, "find", lambda process: next(answers))
    assert not proc.send(who(child.pid), signal.SIGKILL)
    assert child.poll() is None
