"""From the start of an interpreter to its first import of torch: who this process is, and a hook.

What cannot be found out later is settled here: the process's id and clock, and the folder of the
journals, which is relative to where the program starts. Children started meanwhile inherit both.
As start-up calls this, nothing is imported that the bare interpreter has not loaded (see
``startup``).
"""

import atexit
import os
import sys

from disttrace.identity import JOB_VARIABLE, PARENT_VARIABLE, Identity, handed_down
from disttrace.import_hook import ImportHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

DIR_VARIABLE = "DISTTRACE_DIR"
DEFAULT_DIR = "disttrace-out"

PAST = (
    "torch was imported past the import hook of disttrace (another finder in sys.meta_path was "
    "asked first, or the list was filled anew)."
)

_state: "_Waiting | None" = None
_watching_forks = False
_without: "str | None" = None  # the folder in which a program started that held no project


class HandedDown:
    """Variables that were put into the environment for children, and what stood there before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def put(self, name: str, value: str) -> None:
        self._before.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def take_back(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Waiting:
    """What there is to take back, or to hand over to the session."""

    def __init__(self, identity: Identity, hook: ImportHook, say: "Callable[[str], None]") -> None:
        self.identity = identity
        self.hook = hook
        self.say = say
        self.environment = HandedDown()

    def hand_down(self) -> None:
        """Put into the environment what children need."""
        self.environment.put(PARENT_VARIABLE, handed_down(self.identity, self.identity.role))
        named = _of_project("dir")  # looked for in any case: later the file is the program's own
        folder = os.environ.get(DIR_VARIABLE) or named or DEFAULT_DIR
        if folder.strip() and not os.path.isabs(folder):
            try:
                self.environment.put(DIR_VARIABLE, os.path.abspath(os.path.expanduser(folder)))
            except OSError:
                pass  # the current directory was deleted: the journal will say so

    def end(self) -> None:
        self.hook.remove()
        self.environment.take_back()


def begin(
    arrived: "Callable[[], None]",
    on_error: "Callable[[BaseException], None]",
    say: "Callable[[str], None]",
) -> None:
    """Call ``arrived`` when the program imports torch, just before torch itself is executed.

    ``on_error`` gets what that raises; ``say`` a sentence where torch came past us.
    """
    global _state, _watching_forks
    if _state is not None:
        return
    hook = ImportHook(on_error)
    hook.uninstall = cancel
    _state = _Waiting(Identity(os.environ, job=_job()), hook, say)
    atexit.register(_at_exit)
    if not _watching_forks:
        _watching_forks = True
        os.register_at_fork(after_in_parent=_catch_up, after_in_child=_forked)
    _state.hand_down()
    if "torch" in sys.modules:
        arrived()
    else:
        hook.before_import("torch", arrived)


def without_project() -> str | None:
    """The folder where the program started, if no project's file was there: one that comes later
    is the program's own.
    """
    return _without


def is_waiting() -> bool:
    """Whether tracing will begin with torch."""
    return _state is not None


def take() -> Identity | None:
    """End the waiting, for tracing begins: who this process is; None if nothing waited.

    The variables stay as they were handed down; ``cancel`` still takes them back.
    """
    if _state is None:
        return None
    _state.hook.rest()
    atexit.unregister(_at_exit)
    return _state.identity


def cancel() -> None:
    """End the waiting, and take back what children would inherit."""
    global _state
    state, _state = _state, None
    if state is not None:
        atexit.unregister(_at_exit)
        state.end()


def _forked() -> None:
    """In a forked child: a process of its own."""
    state = _state
    if state is not None and state.hook.is_waiting():
        state.identity = Identity(os.environ, job=_job(), forked_from=state.identity)
        state.hand_down()
        _catch_up()


def _catch_up() -> None:
    """Begin now if torch came past the hook. What forks is here for it: nothing else calls us where
    nothing asks the hook any more."""
    if _state is not None and _state.hook.catch_up():
        _state.say(f"recorded from here on only: {PAST}")


def _at_exit() -> None:
    if _state is not None and _state.hook.missed("torch"):
        _state.say(f"nothing was recorded: {PAST}")


def _job() -> str | None:
    job = os.environ.get(JOB_VARIABLE, "").strip() or (_of_project("job") or "").strip()
    return job if job.isprintable() else None


def _of_project(keyword: str) -> str | None:
    """What the project says of a setting. Few programs start where a project's file is."""
    global _without
    if not os.path.exists("pyproject.toml"):
        try:
            _without = os.getcwd()
        except OSError:
            pass  # the directory is gone
        return None
    from disttrace.surroundings import project

    return project.text(keyword)
