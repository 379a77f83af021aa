"""Keeps the garbage collector from running while the recorder is put in place.

What that allocates would bring on a collection of everything that torch has made, which takes as
long as all the rest of it. The program's own allocations bring it on when they would have untraced.
"""

import gc

_NEVER = 2**30 + 1
"""A threshold that nobody reaches, nor would choose: who finds another one leaves it."""


class Paused:
    """A context in which no collection begins by itself.

    By the threshold, not by `gc.disable`: what another thread says meanwhile, that the collector
    shall rest or at which threshold it shall begin, would be taken back with ours.
    """

    def __enter__(self) -> None:
        self._before = gc.get_threshold()
        gc.set_threshold(_NEVER, *self._before[1:])

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if gc.get_threshold()[0] == _NEVER:
            gc.set_threshold(*self._before)
