"""Start tracing in an interpreter under `disttrace run`, then let the user's own module run.

The interpreter imports the first `sitecustomize` on its path, which is this one. Afterwards all is
as if it had not been there.
"""

import os
import sys


def _trace() -> None:
    try:
        from disttrace.startup import main
    except (Exception, SystemExit) as error:
        if sys.stderr is not None:
            sys.stderr.write(
                f"disttrace: not tracing this process, {sys.executable} cannot import disttrace "
                f"({type(error).__name__}: {error})\n"
            )
    else:
        main()


def _chain() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the user's
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours  # the import system expects to find what it is importing


if os.environ.get("DISTTRACE", "0") not in ("", "0"):
    _trace()
_chain()
