"""The exporter process: ``python -m disttrace_viewer.otlp DIR REGISTRY PENDING KEEP``.

The first traced process of a job on a host starts it with the locked registry as standard output
and its log as standard error.
"""

from __future__ import annotations

import os
import signal
import sys


def main(argv: list[str]) -> int:
    """Run until the job is over."""
    directory, path, pending, keep = argv
    descriptor = os.dup(1)
    log_descriptor = os.dup(2)
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    # Pipes of the program (`3> >(tee)`) must not stay open because we live a second longer.
    os.closerange(max(descriptor, log_descriptor, quiet) + 1, 65536)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # sent to the program; we end after it
    os.nice(19)  # training comes first

    from disttrace_viewer.otlp.follow.registry import Registry
    from disttrace_viewer.otlp.send.log import Log

    log = Log(log_descriptor)
    try:
        from disttrace_viewer.otlp.service import Order, Service

        order = Order(directory, float(pending), keep == "keep")
        Service(order, Registry(path, descriptor), log).run()
    except ModuleNotFoundError as error:
        log.say(f"nothing is exported: {error.name} is missing; pip install 'disttrace[otlp]'")
    except Exception as error:
        if not isinstance(getattr(error, "exit_code", None), int):
            import traceback

            log.say(traceback.format_exc().rstrip())
        log.say(f"exporting ended: {type(error).__name__}: {error}")
    _remove_if_empty(os.path.splitext(path)[0] + ".log")
    # The SDK's threads may still wait for a collector that never answers.
    os._exit(0)


def _remove_if_empty(path: str) -> None:
    from disttrace.journal.format import is_own

    try:
        if is_own(path) and os.path.getsize(path) == 0:
            os.unlink(path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
