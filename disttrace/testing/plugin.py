"""``@pytest.mark.distributed(n)``: a test that runs in n ranks, and learns what went wrong.

The ranks are forked from the test process, each with torchrun's variables and a port of its own,
traced by disttrace. One failure is shown once, a hang as its diagnosis. Nothing of torch is
imported before the first such test.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from disttrace.testing import ranks
from disttrace.testing.ranks import ENDED, STALLED, diagnosed

PASSED, FAILED, SKIPPED, XFAILED = "passed", "failed", "skipped", "xfailed"
LOST = "lost"
"""The rank ended without a word: by a signal, or by ``os._exit``."""
RUNNING = "running"


@dataclass(slots=True)
class RankOutcome:
    """``text``: the failure as pytest prints it, or the reason of a skip; ``first``: its last line;
    ``at_s``: when it was known, on the clock of this machine; ``echo``: it passes on that others
    went away.
    """

    rank: int
    how: str = RUNNING
    text: str = ""
    first: str = ""
    at_s: float = float("inf")
    echo: bool = False
    code: int | None = None

    @property
    def ended(self) -> str:
        """How a rank ended that left no word."""
        if self.code is not None and self.code < 0:
            try:
                return f"was ended by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"was ended by signal {-self.code}"
        return f"left with exit code {self.code} before the test was over (os._exit?)"


def culprit(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """The first failure: one of its own, before any that passes on that others went away."""
    bad = [one for one in outcomes if one.how in (FAILED, LOST)]
    return min(bad, key=lambda one: (one.echo and one.how == FAILED, one.at_s), default=None)


def echoes(outcomes: Sequence[RankOutcome], first: RankOutcome) -> str:
    """One line about the failures of all other ranks."""
    others = [one for one in outcomes if one.how in (FAILED, LOST) and one is not first]
    if not others:
        return ""
    alike: dict[str, list[int]] = {}
    for one in others:
        alike.setdefault(one.first if one.how == FAILED else one.ended, []).append(one.rank)
    return "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}: {text}"
        for text, ranks in alike.items()
    )


MARK = "distributed"
_RANK_FILE = "_DISTTRACE_TEST_OUTCOME"
"""Where a rank that is a program of its own writes what became of it."""
_MEET_S = 10.0
"""One that failed before it had the group never comes."""
_SECTION = 4_000
"""Characters of a rank's output that a report shows."""
_KIND = re.compile(r"^1\. (?:ERROR|WARNING) (\w+)", re.MULTILINE)
_ECHOES = ("closed by peer", "reset by peer", "broken pipe", "socket", "connection refused")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("distributed tests (disttrace)")
    group.addoption("--dist-timeout", type=float, help="seconds a test may take (default: 60)")
    group.addoption(
        "--dist-stall",
        type=float,
        default=3.0,
        help="seconds without progress that count as a hang (3)",
    )
    group.addoption("--dist-start", choices=("fork", "spawn"), default="fork")
    group.addoption("--dist-keep", action="store_true", help="keep the journals of tests that pass")


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(n, backend='gloo', timeout=60, init=True, env={{}}): run the test in n ranks",
    )


@dataclass(frozen=True)
class Wanted:
    """What a mark asks for."""

    n: int
    backend: str = "gloo"
    timeout: float | None = None
    init: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse what cannot run in ranks, where it is collected."""
    for item in items:
        mark = item.get_closest_marker(MARK)
        function = getattr(item, "function", None)
        if mark is None or function is None:
            continue
        if inspect.iscoroutinefunction(function):
            raise pytest.UsageError(f"{item.nodeid}: an async test cannot be distributed.")
        if getattr(item, "cls", None) is not None:
            raise pytest.UsageError(f"{item.nodeid}: a test of a class cannot be distributed.")
        try:
            wanted = Wanted(*mark.args, **mark.kwargs)
        except TypeError as error:
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.{MARK}: {error}.") from error
        if type(wanted.n) is not int or wanted.n < 1:
            raise pytest.UsageError(f"{item.nodeid}: {MARK} takes the number of ranks first.")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in its ranks."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}
    wanted = Wanted(*mark.args, **mark.kwargs)
    if _RANK_FILE in os.environ:
        _as_rank(pyfuncitem, given, wanted, Path(os.environ[_RANK_FILE]))
        return True
    _Run(pyfuncitem, given, wanted).run()
    return True


class _Run:
    """One test in its ranks."""

    def __init__(self, item: pytest.Function, given: dict[str, Any], wanted: Wanted) -> None:
        self.item, self.given, self.wanted = item, given, wanted
        options = item.config.option
        self.timeout = options.dist_timeout or wanted.timeout or 60.0
        self.stall, self.keep = options.dist_stall, options.dist_keep
        self.fork = options.dist_start == "fork"
        self.folder = Path(tempfile.mkdtemp(prefix="disttrace-test-"))
        self.journals = self.folder / "journals"
        self.verdict = ""
        self.given_up: str | None = None

    def run(self) -> None:
        """Start, wait, and raise what became of it."""
        ranks.import_once()
        failed = True
        try:
            running = self._start()
            try:
                self._wait(running)
            finally:
                running.end()
            self._judge(running)
            failed = False
        except (pytest.skip.Exception, pytest.xfail.Exception):
            failed = False
            raise
        finally:
            if failed or self.keep:
                self.item.add_report_section("call", "journals", f"{self.journals}")
            else:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> ranks.RunningRanks:
        port, world = ranks.free_port(), self.wanted.n
        reason = ranks.why_not_fork() if self.fork else "--dist-start spawn"
        pids = {}
        for rank in range(world):
            env = {
                **ranks.environment(rank, world, port),
                **ranks.settings(self.journals, self.stall),
                _RANK_FILE: str(self.folder / f"{rank}.json"),
                **self.wanted.env,
            }
            out = self.folder / f"{rank}.out"
            if reason is None:
                pids[ranks.fork(rank, self._body, env, out)] = rank
            else:
                pids[self._spawn(env, out)] = rank
        return ranks.RunningRanks(pids)

    def _body(self) -> int:
        if faulthandler.is_enabled():  # into the rank's section: pytest's own is of all ranks
            faulthandler.enable(2)
        try:
            return _as_rank(self.item, self.given, self.wanted, Path(os.environ[_RANK_FILE]))
        except BaseException:
            import traceback

            traceback.print_exc()
            return 70

    def _spawn(self, env: Mapping[str, str], out: Path) -> int:
        """A rank as a pytest of its own, which makes its fixtures itself."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        with open(out, "wb") as file:
            process = subprocess.Popen(
                [*command, self.item.nodeid],
                env={**os.environ, **env},
                cwd=self.item.config.rootpath,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        process.returncode = 0  # it is reaped with all of them
        return process.pid

    def _wait(self, running: ranks.RunningRanks) -> None:
        how = running.wait(self.journals, self.stall, time.monotonic() + self.timeout)
        if how != ENDED and culprit(self._outcomes(running)) is None:
            late = f"took longer than {self.timeout:g} s"
            self.given_up = "hangs" if how == STALLED else late
            self.verdict = self._diagnosed()

    def _diagnosed(self) -> str:
        options = ("--stall", str(min(self.stall, 1.5)), "--width", "100")
        return diagnosed(self.journals, "text", *options).decode("utf-8", "replace")

    def _outcomes(self, running: ranks.RunningRanks) -> list[RankOutcome]:
        found = []
        for rank in running.pids.values():
            one = RankOutcome(rank, code=running.codes.get(rank))
            try:
                one = RankOutcome(rank, **json.loads((self.folder / f"{rank}.json").read_bytes()))
                one.code = running.codes.get(rank)
            except (OSError, ValueError):
                if rank in running.codes:
                    one.how, one.at_s = LOST, running.ended_s[rank]
            found.append(one)
        return found

    def _judge(self, running: ranks.RunningRanks) -> None:
        outcomes = self._outcomes(running)
        for one in outcomes:
            self._show(one.rank)
        if self.given_up is not None:
            text = f"the test {self.given_up}"
            if self.verdict:
                self._property(self.verdict)
                text += f":\n{self.verdict}"
            pytest.fail(text, pytrace=False)
        first = culprit(outcomes)
        if first is not None:
            text = f"rank {first.rank} {first.ended}" if first.how == LOST else first.text
            rest = echoes(outcomes, first)
            text = f"on rank {first.rank} of {len(outcomes)}:\n{text}"
            if first.how == LOST or first.echo:  # what became of something that journals may tell
                text = self._found_first(text)
            pytest.fail(text + f"\n(and then {rest})" * bool(rest), pytrace=False)
        ways = {one.how for one in outcomes}
        if ways == {SKIPPED}:
            pytest.skip(outcomes[0].text)
        if ways == {XFAILED}:
            pytest.xfail(outcomes[0].text)
        if ways != {PASSED}:
            each = ", ".join(f"rank {one.rank} {one.how}" for one in outcomes)
            pytest.fail(f"the ranks do not agree: {each}", pytrace=False)

    def _found_first(self, text: str) -> str:
        """The text below the finding, where the journals tell more than that a rank ended."""
        verdict = self._diagnosed()
        kind = _KIND.search(verdict)
        if kind is None or kind[1] == "process_failed":
            return text
        self._property(verdict)
        return f"{verdict}\n{text}"

    def _property(self, verdict: str) -> None:
        kind = _KIND.search(verdict)
        if kind is not None:
            self.item.user_properties.append(("disttrace", kind[1]))

    def _show(self, rank: int) -> None:
        try:
            text = (self.folder / f"{rank}.out").read_text("utf-8", "replace")
        except OSError:
            return
        if text.strip():
            self.item.add_report_section("call", f"rank {rank}", text[-_SECTION:])


def _as_rank(item: pytest.Function, given: Mapping[str, Any], wanted: Wanted, file: Path) -> int:
    """The test in this process, which is one of the ranks; its exit code."""
    import torch
    import torch.distributed as dist

    import disttrace
    from disttrace import session

    torch.set_num_threads(1)
    disttrace.install()
    code = 0
    try:
        if wanted.init and not dist.is_initialized():
            dist.init_process_group(wanted.backend)
            _meet(file.with_suffix(".met"), dist.get_world_size())
        item.obj(**given)
        _write(file, PASSED)
    except pytest.skip.Exception as error:
        _write(file, SKIPPED, str(error))
    except pytest.xfail.Exception as error:
        _write(file, XFAILED, str(error))
    except BaseException as error:
        code = 1
        session.failed(error)
        info = pytest.ExceptionInfo.from_exception(error)
        first = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        text = str(item.repr_failure(info))
        _write(file, FAILED, text, first=first, echo=any(e in first.lower() for e in _ECHOES))
        return code
    if wanted.init and dist.is_initialized():
        dist.destroy_process_group()
    session.uninstall()
    return code


def _meet(mine: Path, ranks: int) -> None:
    """Go on when all have the group, for gloo fails if a peer has ended; by files, not by the
    test's stores."""
    mine.touch()
    until = time.monotonic() + _MEET_S
    while len(list(mine.parent.glob("*.met"))) < ranks and time.monotonic() < until:
        time.sleep(0.002)


def _write(file: Path, how: str, text: str = "", **more: Any) -> None:
    value = {"how": how, "text": text, "at_s": time.monotonic(), **more}
    file.write_text(json.dumps(value))  # a part of it is none yet
