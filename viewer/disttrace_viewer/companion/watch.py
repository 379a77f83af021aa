"""The companion's duty of watching: when a job stands still, have one of its processes print why.

It holds none of the program's pipes, so it writes into a file of its own what is to be printed and
by which process (``lifecycle/announcer.py``). A child works out the verdict (``verdict.py``).
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import disttrace.journal.format as fmt
from disttrace.journal.proc import send, who
from disttrace.journal.standard_library import bare_command
from disttrace_viewer.companion import command
from disttrace_viewer.companion.command import Commands
from disttrace_viewer.companion.follower import HeartbeatMonitor
from disttrace_viewer.companion.service import DIED_S, CompanionLog, Order, Task, stay_s
from disttrace_viewer.load.announcements import keep, path_of
from disttrace_viewer.load.files import is_open
from disttrace_viewer.load.schema import json_object
from disttrace_viewer.load.tail import Tail
from disttrace_viewer.trace.values import asdict

if TYPE_CHECKING:
    from disttrace_viewer.companion.endpoint import PeerReply

_SOON_S = 1.0
_OFTEN_S, _LATEST_S, _SHARE = 5.0, 60.0, 50
"""Between two looks at a picture that does not change: the first at least, the second at most, and
so many times what one took."""
_LOOK_S = 0.5
_LOOK_SOON_S = 0.1
"""Where a stall may be near, and while one stands: a job that goes on may soon be over."""
_TOGETHER_S = 0.7
_ANSWER_S, _HEAR_S = 2.0, 0.05
"""So long a process has to print a request, for which one looks so often; then the next one gets
it."""
_WITHIN_S = 120.0
_LEAVE_S = 5.0
_AT_ONCE = 500
"""So many processes one line names: readers take 64 kB of it."""
_MOST_OF_OBJECTS = 32 << 10
"""Beyond that findings, which name every rank, are kept in the folder only: see above."""
_FEWER = 2
"""Times the limit for which a picture in which only fewer are missing is not reported anew."""
_AGAIN_S = 600.0
"""After so long a stall that goes on is reported again, then after twice that, and so on."""
_VERDICTS = "disttrace_viewer.companion.verdict"
ABORTED = 75
"""Exit code of a job that ``DISTTRACE_ON_STALL=abort`` ended (EX_TEMPFAIL of sysexits.h)."""
_CALLED = b'{"called"'
Tell = Callable[[str, Sequence[Sequence[Any]]], None]


class Watch(Task):
    """What is known of the stall, and which process is to print it."""

    def __init__(self, order: Order, log: CompanionLog, tell: Tell | None = None) -> None:
        self._order = order
        self._tell = tell
        self._log = log
        self._on_stall = os.environ.get("DISTTRACE_ON_STALL", "").strip()
        self._commands = Commands(self._on_stall, order.cwd)
        self._path = order.says
        self._file: int | None = None
        self._tail: Tail | None = None
        self._verdicts: subprocess.Popen[bytes] | None = None
        self._answer = b""
        self._aborted: set[str] = set()
        self._pause = _SOON_S
        self._monitors: dict[str, HeartbeatMonitor] = {}
        self._since = time.monotonic() if order.quiet_since is None else order.quiet_since / 1e9
        self._look_due = self._due = 0.0
        self._limit_s = order.stall_s
        self._signature: list[Any] | None = None
        self._standing: dict[str, Any] = {}
        self._noted: list[Any] = []
        self._stalled_since = 0.0
        self._judged_at = time.time()
        self._unheard: list[Any] | None = None
        """The picture that no process here could print: looked at anew, it has stood all along."""
        self._again_at, self._again_s = 0.0, _AGAIN_S
        self._number = time.monotonic_ns()
        """Rises from here, and is no number of an earlier companion whose file is left over."""
        self._held_back = False
        self._fewer_since: float | None = None
        self._gone: set[str] = set()
        self._diverged: set[str] = set()
        """Groups (ids) of which it was reported that ranks are out of step."""
        self._suspicions: list[Sequence[PeerReply]] = []

    def follow(self, base: str) -> None:
        """A process in which nothing has moved for a while; with an exporter, any."""
        if base not in self._monitors:
            self._monitors[base] = HeartbeatMonitor(self._order.directory, base, self._since)
            self._since = time.monotonic()  # only of the first it is known since when it is quiet

    def ended(self, base: str) -> None:
        if (pulse := self._monitors.pop(base, None)) is not None:
            pulse.close()
        self._gone.add(base)

    def turn(self) -> None:
        """Have a verdict worked out when one is due, and see that it is printed."""
        now = time.monotonic()
        self._commands.look(None if self._verdicts is None else self._verdicts.pid)
        self._receive()
        if self._suspicions:
            self._ask_of_suspicions()
        elif self._verdicts is not None and self._next_line().startswith(_CALLED):
            self._ask()  # a process of another host has waited for the limit: ours may be at work
        elif now >= self._look_due:
            moved = [pulse.look(now) for pulse in self._monitors.values()]
            if self._signature and any(moved):
                self._due = min(self._due, now)  # it may go on
            quiet = max((now - p.quiet_since for p in self._monitors.values()), default=0.0)
            soon = self._signature or quiet >= self._limit_s / 2
            self._look_due = now + (_LOOK_SOON_S if soon else _LOOK_S)
            died = bool(self._gone) and self._on_stall == "abort" and quiet >= DIED_S
            if now >= self._due and (quiet >= self._limit_s or self._signature or died):
                self._ask(b"died\n" if died else b"\n")
            elif self._verdicts is None and quiet >= self._limit_s / 2:
                self._verdicts = _start(self._order)  # it imports while there is time
                self._tell_child(b"ready\n")

    def finish(self) -> None:
        """Leave nothing behind here; elsewhere others may wait for those that failed here."""
        leave_s = _LEAVE_S
        gone = (os.path.join(self._order.directory, base) for base in self._gone)
        if any(fmt.ends_with(fmt.definitions_name(base), fmt.FAILURE) for base in gone):
            if self._verdicts is None:
                self._verdicts = _start(self._order)
            self._tell_child(b"stay_after_failure\n")
            leave_s += stay_s(self._order.stall_s)
        self._commands.finish()
        if self._file is not None:  # now: the next job of this name has one of that name
            os.close(self._file)
            fmt.remove_own(self._path)
        if (child := self._verdicts) is not None:
            assert child.stdin is not None
            try:  # it may take its leave of other hosts
                child.stdin.close()
                child.wait(leave_s)
            except (OSError, subprocess.TimeoutExpired):
                child.kill()
                child.wait()

    @property
    def standing(self) -> dict[str, Any] | None:
        """The verdict on a stall that was reported from this host and is not over."""
        return self._standing if self._signature else None

    def suspect(self, answers: Sequence[PeerReply] = ()) -> None:
        """Have judged whether ranks here, and those of ``answers``, are out of step."""
        self._suspicions.append(answers)

    # -- verdicts ----------------------------------------------------------------------------

    def _ask(self, what: bytes = b"\n") -> None:
        """Have the child work something out, and act on it."""
        if self._verdicts is None:
            self._verdicts = _start(self._order)
        began, line = time.monotonic(), b""
        if not self._tell_child(what):
            self._over("it ended")
            return
        while not line or line.startswith(_CALLED):  # such a call is being looked into
            line = self._next_line(_LOOK_S)
            if self.over.is_set():
                return
            if not line and self._verdicts.poll() is not None:
                self._over(f"exit code {self._verdicts.returncode}")
                return
            if time.monotonic() - began > _WITHIN_S:
                self._verdicts.kill()
                self._over(f"it took longer than {_WITHIN_S:g} s")
                return
        answer = json.loads(line)
        if not answer:  # another host prints
            self._due = time.monotonic() + _SOON_S
        elif "diverged" in answer:
            # Of each group once.
            new = not self._diverged.issuperset(answer["diverged"])
            self._diverged.update(answer["diverged"])
            if answer["lines"] and new:
                objects = _objects("diverged", answer["objects"])
                self._tell_command(objects, answer["alert"])
                self._announce(answer["lines"], answer["announcers"], objects)
        else:
            self._judge(answer, time.monotonic() - began)

    def _ask_of_suspicions(self) -> None:
        """Of all that came since the last time, at once: each rank has its own."""
        replies = [one for answers in self._suspicions for one in answers]
        sent = {one.sender: base64.b64encode(one.data).decode() for one in replies}
        self._suspicions.clear()
        known = self._diverged | {group for _, _, group, *_ in self._signature or () if group}
        self._ask(b"diverged %b\n" % json.dumps([sorted(known), [*sent.items()]]).encode())

    def _tell_child(self, line: bytes) -> bool:
        assert self._verdicts is not None
        assert self._verdicts.stdin is not None
        try:
            self._verdicts.stdin.write(line)
            self._verdicts.stdin.flush()
        except OSError:
            return False
        return True

    def _next_line(self, within_s: float = 0.0) -> bytes:
        assert self._verdicts is not None
        assert self._verdicts.stdout is not None
        pipe = [] if b"\n" in self._answer else [self._verdicts.stdout.fileno()]
        if pipe and select.select(pipe, [], [], within_s)[0]:
            self._answer += os.read(pipe[0], 1 << 20)
        line, newline, rest = self._answer.partition(b"\n")
        self._answer = rest if newline else self._answer
        return line if newline else b""

    def _over(self, why: str) -> None:
        """The child is of no use: log that once, and try again much later."""
        assert self._verdicts is not None
        self._verdicts.wait()
        self._verdicts, self._answer = None, b""
        self._due = time.monotonic() + _LATEST_S
        self._log.write(f"no verdict on a stall could be worked out ({why})")

    def _judge(self, verdict: dict[str, Any], took: float = 0.0) -> None:
        now = time.monotonic()
        signature = verdict["signature"]
        changed = (signature or None) != self._signature
        marks, unix = verdict["marks"], time.time()
        reminds = any(self._judged_at < mark <= unix for mark in marks)
        self._judged_at = unix
        over = verdict["over"] or not verdict["waiting"]
        if changed and signature and verdict["next_s"] <= _TOGETHER_S and not self._held_back:
            # Others are about to reach the limit as well: one picture and not two.
            self._held_back = True
            self._due = now + verdict["next_s"]
            return
        self._held_back = False
        lines: list[str] = []
        objects: list[dict[str, Any]] = []
        keeps = True
        held = changed and self._is_fewer(signature, now)
        if changed and signature and not held:
            if not self._signature and signature != self._unheard:
                self._stalled_since = now
            self._again_at, self._again_s = now + _AGAIN_S, _AGAIN_S
            lines, objects = verdict["lines"], _objects("stalled", verdict["objects"])
            self._standing = objects[0] if objects else {}
            self._tell_command(objects, verdict["alert"])
            if self._tell is not None and verdict["lines"]:
                self._tell(verdict["lines"][0], verdict["ops"])
        elif changed and self._signature is not None and over:
            if verdict["going_on"]:
                lines = [f"going on: {verdict['going_on']}"]
                objects = _objects("going on", [{"summary": verdict["going_on"]}])
        elif signature and not changed and (reminds or now >= self._again_at):
            self._again_s *= 2
            self._again_at = now + self._again_s
            first = verdict["lines"][: 2 if marks else 1]  # the second says what time is left
            lines, keeps = [*first, *verdict["lines"][1:][-1:]], False
            objects = _objects("stalled", verdict["objects"])
        elif not signature and verdict["notes"] and (reminds or verdict["noted"] != self._noted):
            lines, self._noted = verdict["notes"], verdict["noted"]
            objects = _objects(lines[0].partition(":")[0], verdict["objects"])
        if (signature and not held) or over:
            self._signature = signature or None
        if not signature and over:
            self._unheard = None
        if not signature and not verdict["waiting"]:
            # An agent whose rendezvous came about waits for its workers: that is its work.
            self._monitors = {b: p for b, p in self._monitors.items() if not p.launcher}
        # Reading everything again is dear: seldom, unless something moves (``turn``) or somebody
        # who is quiet is about to have waited for the limit.
        latest = max(_OFTEN_S, min(_SHARE * took, _LATEST_S))
        self._pause = _SOON_S if changed and not held else min(self._pause * 2, latest)
        soon = verdict["next_s"] if verdict["waiting"] and not signature else self._pause
        self._due = now + min(self._pause, soon, *(mark - unix for mark in marks if mark > unix))
        if lines:
            self._announce(lines, verdict["announcers"], objects, keep=keeps)
        stood = verdict["died"] or now - self._stalled_since >= self._order.stall_s
        if verdict["aborting"] and signature and stood:
            self._abort(verdict["aborting"], died=verdict["died"])

    def _is_fewer(self, signature: list[Any], now: float) -> bool:
        """Whether it is for now the picture that was reported, but that some of the missing have
        come: they may be slow and not stuck, and are not worth a line each."""
        blamed = {json.dumps([kind, *what]): {*who} for kind, who, *what in self._signature or ()}
        pictures = [(json.dumps([kind, *what]), {*who}) for kind, who, *what in signature]
        if not signature or any(
            who - blamed.get(what, set()) or what not in blamed for what, who in pictures
        ):
            self._fewer_since = None
            return False
        if self._fewer_since is None:
            self._fewer_since = now
        return now - self._fewer_since < _FEWER * self._order.stall_s

    def _abort(self, processes: list[dict[str, Any]], *, died: bool = False) -> None:
        """Each process ends itself; one that cannot (it holds the GIL) is killed a little later."""
        for process in processes:
            known = process["process"] in self._aborted
            if known and is_open(process["pid"], process["journal"]):
                send(who(process), signal.SIGKILL)
        named = [process["process"] for process in processes]
        self._aborted.update(named)
        for first in range(0, len(named), _AT_ONCE):
            order = {"abort": ABORTED, "died": died, "for": named[first : first + _AT_ONCE]}
            self._write(order)
        self._due = time.monotonic() + _ANSWER_S

    def _tell_command(self, objects: list[dict[str, Any]], more: dict[str, Any]) -> None:
        """Hand the verdict to the command of DISTTRACE_ON_STALL, once per picture."""
        if not objects or not self._on_stall or self._on_stall == "abort":
            return
        try:
            self._commands.run(command.line(objects, more))
        except OSError as error:
            self._log.write(f"DISTTRACE_ON_STALL could not be run: {error}")

    # -- speaking ----------------------------------------------------------------------------

    def tell(
        self, kind: str, line: str, objects: dict[str, Any], announcers: Sequence[str]
    ) -> None:
        """Have another line printed by one of these."""
        self._announce([line], [*announcers], _objects(kind, [objects]))

    def _announce(
        self,
        lines: list[str],
        announcers: list[str],
        objects: list[dict[str, Any]],
        *,
        keep: bool = True,
    ) -> None:
        if not announcers:
            return
        self._number += 1
        sent = objects
        if len(json.dumps(objects)) > _MOST_OF_OBJECTS:
            sent = [{k: v for k, v in one.items() if k != "finding"} for one in objects]
        for first in range(0, len(announcers), _AT_ONCE):  # each of this host has callbacks, maybe
            self._write({"verdict": sent, "for": announcers[first : first + _AT_ONCE]})
        if keep:
            self._keep([{**one, "process": announcers[0]} for one in objects])
        for announcer in announcers:
            self._write(
                {"n": self._number, "announcer": announcer, "lines": lines, "objects": sent}
            )
            until = time.monotonic() + _ANSWER_S
            while time.monotonic() < until:
                if self._receive() or self.over.wait(_HEAR_S):
                    return
        self._be_mute()

    def _be_mute(self) -> None:
        """None of the processes here prints, so another host has to."""
        if self._verdicts is not None:
            self._tell_child(b"mute\n")
            self._signature, self._unheard = None, self._signature

    def _keep(self, objects: list[dict[str, Any]]) -> None:
        order = self._order
        try:
            keep(path_of(order.directory, order.in_names.removesuffix("-"), order.root), objects)
        except OSError as error:
            self._log.write(f"a verdict could not be kept: {error}")

    def _receive(self) -> bool:
        """Whether the newest announcement was printed (a process that holds the GIL does not
        answer); and whether ranks seem to be out of step to one of them."""
        if self._tail is None:
            try:
                self._tail = Tail(self._path)
            except OSError:
                return False
        records = [*filter(None, map(json_object, self._tail.lines()))]
        if any("suspect" in record for record in records):
            self.suspect()
        return any(record.get("said") == self._number for record in records)

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            self._file = fmt.open_own(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.write(self._file, json.dumps(record).encode() + b"\n")


def _objects(kind: str, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for programs: at one time, however many findings it is."""
    at = time.time()
    return [{"disttrace": 1, "kind": kind, "at": at, **one} for one in objects]


def _start(order: Order) -> subprocess.Popen[bytes]:
    """A process that works out verdicts: it answers each line with one."""
    command = bare_command(sys.executable, sys.path, _VERDICTS, json.dumps(asdict(order)))
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing)
