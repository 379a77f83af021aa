"""Activation by DISTTRACE=1: called once by every interpreter that starts with the variable set.

The callers are `disttrace.pth` (one line, which imports nothing of disttrace unless the variable
is set), `disttrace.start` (the same for Python 3.15 and later, which resolves the function before
it can ask) and the `sitecustomize` of `disttrace run`. The interpreter reads `.pth` files twice in
a virtual environment, and several callers may come together: only the first call counts.

At this point the program's folder is not on `sys.path` yet. A module imported now would stay in
`sys.modules`, and a program that has a `secrets.py` or `queue.py` of its own would never get it.
So nothing is imported here but modules of ours that import nothing themselves (not even
`__future__`), until the program imports torch. They are few: most interpreters that start with the
variable set never import torch, and each module takes a tenth of a millisecond.
"""

import os
import sys

_called = False


def main() -> None:
    """Wait for torch if DISTTRACE is on; whatever fails is one sentence, never an exception."""
    global _called
    if _called:
        return
    _called = True
    try:
        if _is_on(os.environ.get("DISTTRACE")):
            refused = refusal()
            if refused is None:
                from disttrace import waiting

                waiting.begin(_install, _not_installed, _say)
            else:
                _say(refused)
    except ValueError as error:
        _say(str(error))
    except (Exception, SystemExit) as error:
        _failed(error)


def refusal() -> str | None:
    """Why this interpreter is not traced, in one sentence; None where it is.

    To be called before anything else is imported: an extension module that was not made for it
    switches the GIL of a free-threaded interpreter on again. The viewer runs anywhere.
    """
    if sys.platform == "win32":
        return "not tracing: disttrace records on Linux and macOS, not on Windows."
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "not tracing: this Python runs without the GIL, on which the records count; "
            "PYTHON_GIL=1 switches it on."
        )
    return None


def _is_on(value: str | None) -> bool:
    if value in (None, "", "0", "1"):  # nearly always; the module is for all other words
        return value == "1"
    from disttrace.project import is_on

    return is_on(value)


def _install() -> None:
    from disttrace import install

    install()


def _not_installed(error: BaseException) -> None:
    """In the program's import of torch: what struck (Ctrl-C, a handler's) goes on to it."""
    from disttrace.journal.standard_library import StandardLibrary

    try:
        with StandardLibrary():
            from disttrace.foreign import is_ours
        goes_on = not is_ours(error)
    except ImportError:
        goes_on = False  # nothing of ours can be imported
    if goes_on:
        raise error
    _failed(error)


def _failed(error: BaseException) -> None:
    _say(f"tracing is off, starting it failed: {type(error).__name__}: {error}")


def _say(sentence: str) -> None:
    if not sentence.isprintable():  # the name of a folder can be anything
        sentence = ascii(sentence)[1:-1]
    try:
        sys.stderr.write(f"disttrace: {sentence}\n")
    except Exception:
        pass  # stderr is closed, absent, or anything
