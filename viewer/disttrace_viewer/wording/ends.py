"""The state of a process in words: how it ended, or why it does not run, to follow a subject."""

from __future__ import annotations

import re

from disttrace.journal.format import ABORTED, EXEC, STOPPED, UNINSTALLED
from disttrace_viewer.analysis.liveness import DISK, signal_name
from disttrace_viewer.analysis.process_ends import SILENT, UNKNOWN, End
from disttrace_viewer.trace.process import Failure
from disttrace_viewer.wording.quantities import roughly

BY = "SIGSTOP, or a debugger"
"""What stops a process."""
HELD = {
    STOPPED: f"stopped ({BY})",
    DISK: "in uninterruptible sleep (disk, NFS or a driver)",
}
"""What the kernel says of a process that lives and does not run."""
NOWHERE = "not in any collective"


LAUNCHER = "ended by its launcher"
UNSEEN = "SIGKILL, SIGTERM, out of memory, SIGXCPU, SIGALRM, SIGPIPE or the like, or a native crash"
"""What ends a process before Python can say anything."""

_MOST = 2  # further lines of an exception's text that are shown


def state(end: End) -> str:
    """``running``, ``killed, ended by its launcher``, ``silent for 28 min``."""
    if end.dumped:
        return "at that moment"
    found = end.state
    if found == UNKNOWN and end.silent_ns is not None:
        found = f"silent for {roughly(end.silent_ns)}"
    by_launcher = end.told_to_end and not end.interrupted and end.exit_word != ABORTED
    return f"{found}, {LAUNCHER}" if by_launcher else found


ENDED = "has ended"
"""Of one that ended well, as a word beside that state says too."""


def ended(end: End, *, many: bool = False, surely: bool = False) -> str:
    """``failed with ValueError: ...``, ``has ended``. ``many``: several processes did; ``surely``:
    somebody noticed the end of one of which no record tells.
    """
    if end.exit_word == ABORTED:
        return f"{'were' if many else 'was'} ended by DISTTRACE_ON_STALL=abort"
    if end.interrupted:
        return f"{'were' if many else 'was'} interrupted from outside"
    if end.silent_ns is not None and not surely and end.failure is None and end.code is None:
        return "fell silent"  # the same sentence whenever it is read
    if end.failure is not None:
        return f"failed with {raised(end.failure)}{came_about(end.failure, ' (', ')')}"
    if end.told_to_end and end.failure is None:
        by = f" ({signal_name(end.code)})" if end.code is not None and end.code < 0 else ""
        return f"{'were' if many else 'was'} {LAUNCHER}{by}"
    if end.code is not None and end.code < 0:
        return f"{'were' if many else 'was'} ended by {signal_name(end.code)}"
    if end.exit_word == UNINSTALLED:
        return "switched tracing off"
    if end.exit_word == EXEC:
        return "became another program (exec)"
    if end.exit_word == "os._exit":
        return f"left by os._exit({end.code})"
    if end.code:
        return f"ended with exit code {end.code}"
    if end.how == SILENT:
        return f"ended without an exit record ({UNSEEN})"
    return "have ended" if many else ENDED


def raised(failure: Failure) -> str:
    """``ValueError: bad batch``, and what its further lines number: indices, shapes, ports."""
    numbering = [tidy(line) for line in failure.lines if _NUMBERING.search(line)][-_MOST:]
    text = tidy(failure.text)
    text = "; ".join([text.partition(". ")[0], *numbering]) if numbering else text
    return failure.type + (f": {text}" if text else "")


_NUMBERING = re.compile(r"(?<![=\w])\d")
"""Not the `=1` of a variable that torch advises to set."""


def came_about(failure: Failure, before: str, after: str = "") -> str:
    """``after KeyError: 'lr'`` between two signs; empty without a cause."""
    return f"{before}after {tidy(failure.causes[-1])}{after}" if failure.causes else ""


def pattern(end: End) -> str:
    """What all that raised one exception share, each with a rank or a batch of its own; of those
    that lost a connection, whom they lost, where that is known.
    """
    if end.failure is None:
        return ended(end)
    return _NUMBER.sub(lambda found: f"#{found['lost'] or ''}", ended(end))


_NUMBER = re.compile(r"(?<=\]:)\d+(?P<lost> \([^()]*\))|\d+")
_SOURCE = re.compile(r"\[/[^\[\]\s]{0,250}/([\w.]{1,100}:\d{1,9})\] ")
"""Where in its sources a C++ library raised: its file says enough."""
_ADVICE = re.compile(r"\. This is typically caused by a remote worker .*", re.DOTALL)
"""What gloo adds to each of its errors."""


_HASHED = re.compile(r"(: )?~[0-9a-f]{16}(: )?")
"""Of another host, which keeps the text."""


def tidy(text: str) -> str:
    """The text without paths of a library's build, nor a full stop at its end: the sentence that
    it stands in has its own. The recorder has cut it, where the end says most.
    """
    text = _ADVICE.sub("", _SOURCE.sub(r"[\1] ", text))
    text = _HASHED.sub(lambda found: ": " if found[1] and found[2] else "", text)
    return text if text.endswith("..") else text.removesuffix(".")
