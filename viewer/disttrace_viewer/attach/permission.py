"""Whether this process may look into others, asked before the first look."""

from __future__ import annotations

import os
import shutil
import sys

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_SYS_PTRACE = 1 << 19


def py_spy() -> str | None:
    """The command; None where it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def refusal() -> str | None:
    """One sentence with the remedy; None: nothing is in the way that can be seen from here."""
    if py_spy() is None:
        return "py-spy is not installed; get it by pip install 'disttrace[attach]'"
    if _may_trace_all():
        return None
    try:
        with open(_SCOPE, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope == 0:
        return None
    return (
        f"the kernel lets nobody look into processes that are not its children ({_SCOPE} is"
        f" {scope}); run this as root or with CAP_SYS_PTRACE (in a container: --cap-add"
        " SYS_PTRACE), or give stacks that were made elsewhere: --stacks FILE ..."
    )


def _may_trace_all() -> bool:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            line = next(text for text in file if text.startswith("CapEff:"))
        return bool(int(line.split()[1], 16) & _SYS_PTRACE)
    except (OSError, StopIteration, ValueError):
        return False
