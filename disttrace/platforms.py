"""Where the recorder does not run. The viewer runs anywhere."""

import sys


def refusal() -> str | None:
    """Why this interpreter is not traced, in one sentence; None where it is.

    To be asked before anything else is imported: an extension module that was not made for it
    switches the GIL of a free-threaded interpreter on again.
    """
    if sys.platform == "win32":
        return "not tracing: disttrace runs on Linux, and on macOS as far as it goes."
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return (
            "not tracing: this Python runs without the GIL, on which the records count; "
            "PYTHON_GIL=1 switches it on."
        )
    return None
