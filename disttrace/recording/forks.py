"""What happens around a fork, also where a signal handler of the program's raises meanwhile.

The interpreter calls handlers for forks itself, so what is raised in one reaches nobody, and what
stands behind it there is not done. A signal that comes while the kernel copies the process strikes
the first bytecode of the first handler that has one. So the lock is taken and made anew by C's
methods, which no signal interrupts; a function that does nothing stands before ours; and each of
ours may be called again from its start.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from disttrace import foreign
from disttrace.journal.originals import PATIENCE_S

_TIMES = 20
"""A timer may strike as often; then it is left as it is."""


def watch(
    lock: Any,
    before: Callable[[], None],
    after_in_parent: Callable[[], None],
    in_child: Callable[[], None],
) -> None:
    """Call these around each fork, with ``lock`` (an RLock) held while the process is copied, if it
    can be had within a second. They cannot be taken away again, so they are held weakly: a package
    may be imported anew. Those before a fork are called from the last to the first."""

    def release() -> None:
        if lock._is_owned():
            lock.release()

    called = [weakref.ref(action) for action in (before, after_in_parent, in_child)]
    os.register_at_fork(after_in_parent=_takes_what_came, after_in_child=_takes_what_came)
    os.register_at_fork(
        before=partial(lock.acquire, True, PATIENCE_S),
        after_in_parent=lambda: _through(release),
        after_in_child=lock._at_fork_reinit,
    )
    os.register_at_fork(
        before=lambda: _through(called[0]()),
        after_in_parent=lambda: _through(called[1]()),
        after_in_child=lambda: _through(called[2]()),
    )


def _takes_what_came() -> None:
    """What a handler raises here is lost, as in `logging`'s handlers, and interrupts nothing."""


def _through(action: Callable[[], None] | None) -> None:
    if action is None:
        return
    struck = None
    for _ in range(_TIMES):
        try:
            action()
            break
        except BaseException as error:
            if foreign.is_ours(error):
                raise
            struck = error
    if struck is not None:
        raise struck  # the interpreter says that it is lost
