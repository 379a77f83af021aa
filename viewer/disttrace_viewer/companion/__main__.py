"""The companion process: ``python -m disttrace_viewer.companion ORDER``, with ORDER as JSON.

A traced process of the job starts it with the locked registry as standard output and its log as
standard error, in the root directory, and with no other descriptor of the program's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disttrace_viewer.companion.service import CompanionLog, Order, Task, TaskThread
    from disttrace_viewer.companion.watch import Tell, Watch


BEGIN_S, SOON_S = 10.0, 1.0
"""Hosts compare their calls from then on: where a stall had the companion started, whose first
seconds are the verdict's, and where none had."""


def main(argv: list[str]) -> int:
    """Run until the job is over."""
    wanted = json.loads(argv[0])
    descriptor = os.dup(1)
    log_descriptor = os.dup(2)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 1)
    os.close(quiet)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # sent to the program; we end after it
    os.nice(19)  # training comes first

    from disttrace_viewer.companion import service

    log = service.CompanionLog(log_descriptor)
    order = service.Order(**wanted)
    registry = service.JournalRegistry(order.registry, descriptor)
    duties: list[service.TaskThread] = []
    tell: Tell | None = None
    if order.exports:
        make = partial(_export, order, log, registry.owner)
        exporting = service.TaskThread(make, log, what="nothing is exported")
        duties.append(exporting)
        tell = lambda *stall: exporting.post(methodcaller("stalled", *stall))  # noqa: E731
    if order.watches:
        from disttrace_viewer.companion.watch import Watch

        watch = Watch(order, log, tell)
        watching = service.TaskThread(lambda: watch, log)
        begin_s = SOON_S if order.quiet_since is None else BEGIN_S
        talking = service.TaskThread(lambda: _talk(order, watch, watching), log, begin_s)
        duties += [watching, talking]
    try:
        service.serve(duties, registry, log)
    except Exception as error:
        log.write(f"the companion of this job ended: {type(error).__name__}: {error}")
    from disttrace.journal.format import remove_own
    from disttrace.lifecycle.rendezvous_folder import own_folder

    log_path = os.path.splitext(order.registry)[0] + ".log"
    with suppress(OSError):  # the folder may be gone
        if os.path.getsize(log_path) == 0:
            remove_own(log_path)
    if (folder := own_folder()) is not None:
        service.sweep(folder)
    # The SDK's threads may still wait for a collector that never answers.
    os._exit(0)


def _export(order: Order, log: CompanionLog, owner: int) -> Task:
    from disttrace_viewer.load.problems import ViewerError

    try:
        from disttrace_viewer.companion.export import Export
    except ImportError as error:  # not there, or a part of it is not
        raise ViewerError(f"{error.name} is missing; pip install 'disttrace[otlp]'") from error
    return Export(order, log, owner=owner)


def _talk(order: Order, watch: Watch, watching: TaskThread) -> Task:
    from disttrace_viewer.companion.comparison import ABOUT, Talk
    from disttrace_viewer.companion.peers import Peers
    from disttrace_viewer.companion.slow import LiveFile, Slowness

    slowness = None
    if order.slow:
        live = LiveFile(order.live, order.job, socket.gethostname(), lambda: watch.standing)
        slowness = Slowness(
            live, order.slow, lambda *said: watching.post(methodcaller("tell", *said))
        )
    meet = partial(Peers, uuid.uuid4().hex[:12], about=ABOUT)
    suspect = lambda replies: watching.post(methodcaller("suspect", replies))  # noqa: E731
    return Talk(order.directory, slowness, partial(_calls, order), suspect, meet)


def _calls(order: Order) -> bytes:
    """The newest calls on this host; nothing where they cannot be read."""
    from disttrace_viewer.companion.verdict import Judge  # a good deal that few jobs need

    try:
        return Judge(order).calls()
    except Exception:
        return b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
