"""What every process does now: one picture, or one that follows a job."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from disttrace_viewer.api.trace import Trace
from disttrace_viewer.trace.errors import ViewerError
from disttrace_viewer.views.terminal.paint.console import paper
from disttrace_viewer.views.terminal.paint.top import snapshot
from disttrace_viewer.views.terminal.top import snapshot_of
from disttrace_viewer.wording.names import names_of

REST = 3
"""Reading takes at most one part in so many and one of the time."""


def show(trace: Trace, *, width: int | None = None, color: bool | None = None) -> None:
    """One picture on standard output, of any length."""
    paper(width=width, color=color).print(_picture(trace))


def follow(
    read: Callable[[], Trace],
    *,
    interval_s: float = 1.0,
    width: int | None = None,
    color: bool | None = None,
) -> bool:
    """Pictures that fit the terminal until Ctrl-C; False at once where there is no terminal.

    ``read`` gives the trace anew; while it raises ``ViewerError`` the job is waited for.
    """
    out = paper(width=width, color=color)
    if not out.console.is_terminal:
        return False
    try:
        with Live(console=out.console, screen=True, auto_refresh=False) as live:
            while True:
                started = time.monotonic()
                try:
                    picture = _picture(read(), rows=out.console.height)
                except ViewerError as error:
                    # A job that has not begun to write yet is waited for.
                    picture = Text(f"{error}\n\nwaiting for journals (Ctrl-C leaves)")
                live.update(picture, refresh=True)
                spent = time.monotonic() - started
                time.sleep(max(interval_s - spent, REST * spent, 0.05))
    except KeyboardInterrupt:
        return True  # the way to leave


def _picture(trace: Trace, rows: int | None = None) -> RenderableType:
    return snapshot(snapshot_of(trace.model), names_of(trace.model), rows)
