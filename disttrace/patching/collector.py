"""Keeps the garbage collector from running while the recorder is put in place.

What that allocates would bring on a collection of everything that torch has made, which takes as
long as all the rest of it. The program's own allocations bring it on when they would have untraced.
"""

import gc


class Paused:
    """A context in which no collection begins by itself; where the program has none, none after."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._was_enabled:
            gc.enable()
