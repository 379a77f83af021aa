"""Tracing for torch.distributed: what each rank did, in what order, and which rank waits for which.

`install`, `trace`, `annotate` and `operation` record; `on_verdict` hears what the job reports of
itself meanwhile; `load`, `diagnose`, `stats` and `diff` read what was recorded and need the extra
`disttrace[viewer]`. Importing this package imports neither torch nor polars, and what it offers
(`api.py`) when that is used: every interpreter that starts with DISTTRACE=1 imports it, and from
3.15 on every one, so that pytest comes too late for its asserts: PYTEST_DONT_REWRITE.
"""

# ruff: noqa: F405
TYPE_CHECKING = False  # as type checkers read it; importing typing would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

    from disttrace._version import __version__
    from disttrace.api import *  # noqa: F403 - what stands below

__all__ = [
    "__version__",
    "allow",
    "annotate",
    "diagnose",
    "diff",
    "expect_equal",
    "install",
    "is_installed",
    "live",
    "load",
    "on_verdict",
    "operation",
    "stats",
    "trace",
    "uninstall",
]


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from disttrace import api

    found = globals()[name] = getattr(api, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
