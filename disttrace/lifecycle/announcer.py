"""Prints what the companion asks this process to announce, and starts the companion when all is
quiet.

The companion holds none of the program's pipes, so it asks one process of the job at a time, by a
file of this host (``rendezvous_folder.py``), for which the background thread looks.

The file's name has no more than job and host, and it outlives a companion that is killed: what lies
in it may be meant for others. So each line names the processes that it is for by their ids, which
are drawn anew for each, and a process that begins starts to read behind what lies there already:

* ``{"n": N, "announcer": ID, "lines": [...], "objects": [...]}``: print this, in one form
  or the other (DISTTRACE_LOG), and note that (``{"said": N}``);
* ``{"verdict": [...], "for": [ID, ...]}``: what is being announced, for callbacks (``listeners``);
* ``{"abort": CODE, "for": [ID, ...]}``: end with that code, where DISTTRACE_ON_STALL is set so
  here;
* ``{"stacks": 1, "under": ID}``: note where every thread is, if that launcher started this process;
* ``{"suspect": ID}``, for the companion: that process sees that ranks may be out of step.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable

from disttrace import errors
from disttrace.config import Config
from disttrace.identity import AGENT, Identity
from disttrace.journal.descriptors import attempt
from disttrace.journal.format import opened_own, remove_own
from disttrace.journal.originals import sleep
from disttrace.lifecycle import listeners
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.rendezvous_folder import records_in

LOOK_NS = 500_000_000
"""How often the background thread looks."""
LOOK_QUIET_NS = 150_000_000
"""While nothing moves and a companion was requested: it may have something to announce."""

_START_AT = 0.4
"""Of the limit: so long nothing has moved when the companion is started; it is ready in time."""
_ALONE_NS = 200_000_000
"""After so long a rank looks whether it is alone: others started with it have journals then."""
_SLOW_NS = 30_000_000_000
"""After so long a rank wants a companion that sees slow ranks; shorter jobs need none."""
_FAR_NS = 2_000_000_000
"""The same where other hosts are to hear soon what is called here."""
_MOST_STARTS = 3  # one that was killed is replaced, but not for ever
_HURRY_NS = 5_000_000_000
"""For so long after a suspicion a verdict is expected."""
_LONGEST = 64 << 10
_STALLED, _GOING_ON = "stalled", "going on"
_NOTED_WITHIN_S = 0.8
_ABORT = "abort"
"""The value of DISTTRACE_ON_STALL that is no command."""


class Announcer:
    """This process's part in telling of stalls."""

    def __init__(
        self,
        config: Config,
        companion: Companion,
        progress_mark: Callable[[], object],
        end: Callable[[int], None],
        begun: Callable[[], int],
    ) -> None:
        """``progress_mark`` is equal while nothing moves, and None where nothing needs to; ``end``
        ends the process; ``begun`` counts operations but those of a store, which are questions.
        """
        self._config = config
        self._companion = companion
        self._start_after = int(config.stall * _START_AT * 1e9)
        self._progress_mark = progress_mark
        self._end = end
        self._begun = begun
        self.sample: Callable[[], None] = lambda: None
        """Notes where every thread of this process is."""
        self.stands = False
        """Whether what this process has announced last is a stall."""
        self._identity: Identity | None = None
        self._file: tuple[int, int] | None = None
        self._position = self._since = self._looked = self._hurry_until = 0

    def start(self, identity: Identity) -> None:
        self._identity = identity
        self._path = self._companion.announcements(identity)
        self._asked = self._ask_at = 0
        self._look_at_file(skip=True)
        self._seen: object = None
        self._stood: int | None = None
        self._began = time.monotonic_ns()
        # A rank that gets on has a companion too, after so long, if one of these wants it.
        self._wanted_after = {
            _ALONE_NS: self._companion.is_alone,
            _FAR_NS: self._companion.compares,
            _SLOW_NS: self._companion.tells_slow,
        }

    def ask_for_stacks(self) -> None:
        """Have workers note where they are before a launcher ends them: nothing shows it later."""
        if self._identity is None:
            return
        new = not os.path.exists(self._path)
        with opened_own(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) as fd:
            os.write(fd, b'{"stacks": 1, "under": "%s"}\n' % self._identity.process.encode())
        if new:
            atexit.register(remove_own, self._path)  # of no use any more
        sleep(_NOTED_WITHIN_S)

    def suspect(self) -> None:
        """Ranks of this host may be out of step: have a companion judge it, from their journals."""
        if self._identity is not None:
            with opened_own(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) as fd:
                os.write(fd, b'{"suspect": "%s"}\n' % self._identity.process.encode())
            self._hurry_until = time.monotonic_ns() + _HURRY_NS
            self._companion.start(self._identity)

    @property
    def pause_ns(self) -> int:
        if _ALONE_NS in self._wanted_after:
            return _ALONE_NS
        hurry = self._asked or time.monotonic_ns() < self._hurry_until
        return LOOK_QUIET_NS if hurry else LOOK_NS

    def look(self) -> None:
        if self._identity is None:
            return
        self._companion.look(self._identity)
        now = time.monotonic_ns()
        for after, wants in list(self._wanted_after.items()):
            if now - self._began >= after and (after == _ALONE_NS or self._begun() > 0):
                del self._wanted_after[after]
                if self._identity.role != AGENT and wants(self._identity):
                    self._companion.start(self._identity)
        place = self._progress_mark()
        before, self._looked = self._looked or now, now
        if place is None or (place != self._seen and self._gets_on()):
            self._since = before  # it may have come just after that look
            self._asked = self._ask_at = 0
        elif now - self._since >= self._start_after and now >= self._ask_at:
            self._ask_at = now + 8 * self._start_after  # it may have been killed meanwhile
            if self._asked < _MOST_STARTS:
                self._asked += 1
                self._companion.start(self._identity, quiet_since=self._since)
        self._seen = place
        self._read(self._identity)

    def finish(self) -> None:
        """The process ends: print what was requested, and nothing after that."""
        if self._identity is not None:
            self._read(self._identity)

    def _gets_on(self) -> bool:
        """Whether what moved is more than questions to a store."""
        if self._identity is None or self._identity.role == AGENT:
            return True  # a launcher asks its store all the time
        stood, self._stood = self._stood, self._begun()
        return stood != self._stood

    def _read(self, who: Identity) -> None:
        if not self._look_at_file():
            return
        me = who.process
        with opened_own(self._path, os.O_RDWR | os.O_APPEND) as fd:
            data = os.pread(fd, _LONGEST, self._position)
            end = data.rfind(b"\n") + 1
            self._position += end
            records = list(records_in(data[:end]))
            announced = {record.get("said") for record in records}
            to_say = [
                r for r in records if r.get("announcer") == me and r.get("n") not in announced
            ]
            for record in to_say:
                os.write(fd, b'{"said": %d}\n' % int(record.get("n", 0)))
        for record in to_say:  # stderr may be slow, and the descriptor another's meanwhile
            self.announce(record.get("lines"), record.get("objects"))
        ours = [r for r in records if isinstance(r.get("for"), list) and me in r["for"]]
        for record in ours:
            if "verdict" in record:
                listeners.tell(record["verdict"])
        above = [one for one in (who.parent, who.launcher) if one is not None]
        if any("stacks" in record and record.get("under") in above for record in records):
            self.sample()
        order = next((r for r in ours if isinstance(r.get("abort"), int)), None)
        if order is not None and self._config.on_stall == _ABORT:
            stood = "it was stalled for twice the limit"
            died = "a process that it waits for has died"
            why = f"ended by DISTTRACE_ON_STALL=abort: {died if order.get('died') else stood}"
            ended = [{"disttrace": 1, "kind": "ended", "at": time.time(), "summary": why}]
            self.announce([why], ended)
            listeners.tell(ended)
            listeners.wait()
            self._end(order["abort"])

    def announce(self, lines: object, objects: object) -> None:
        """Print what is announced, in one form or the other."""
        word = str(lines[0]) if isinstance(lines, list) and lines else ""
        self.stands = word.startswith(_STALLED) or (self.stands and not word.startswith(_GOING_ON))
        if self._config.log != "json":
            _print(lines)
        elif isinstance(objects, list):
            _write("".join(f"{json.dumps(one)}\n" for one in objects))

    def _look_at_file(self, *, skip: bool = False) -> bool:
        """Whether there is anything new in the file; ``skip``: what is there now was for others."""
        found = attempt(os.stat, self._path)
        if found is None:
            self._file, self._position = None, 0
            return False
        if (found.st_dev, found.st_ino) != self._file or found.st_size < self._position:
            self._file, self._position = (found.st_dev, found.st_ino), 0
        if skip:
            self._position = found.st_size
        return found.st_size > self._position


def _print(lines: object) -> None:
    """In one write, apart from lines of others; the first, the finding, ends with the time."""
    if not isinstance(lines, list) or not lines:
        return
    found, *rest = (f"disttrace: {errors.plain(str(line))}" for line in lines)
    text = "\n".join([f"{found} ({time.strftime('%H:%M:%S')})", *rest, ""])
    _write(text)


def _write(text: str) -> None:
    """From the beginning of a line on: that of a progress bar is open."""
    errors.tell(f"\n{text}", sys.__stderr__)
