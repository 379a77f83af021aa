"""What `import disttrace` offers: each function imports what it needs when it is called."""

import sys

from disttrace._version import __version__ as __version__

TYPE_CHECKING = False  # as type checkers read it; importing typing would cost milliseconds
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn, TypeAlias, TypeVar

    from disttrace.capture.instrumentation.declared import Annotated, Declared
    from disttrace_viewer.api.difference import Diff
    from disttrace_viewer.api.report import Report
    from disttrace_viewer.api.statistics import Stats
    from disttrace_viewer.api.trace import Trace

    Function = TypeVar("Function", bound=Callable[..., Any])
    Path: TypeAlias = str | os.PathLike[str]
    Words: TypeAlias = str | Iterable[str] | None


def install(
    *,
    dir: "Path | None" = None,  # noqa: A002 - the setting is DISTTRACE_DIR
    export: "Words" = None,
    max_mb: "int | None" = None,
    slow_write: "float | None" = None,
    stall: "float | None" = None,
    on_stall: "str | None" = None,
    slow: "float | None" = None,
    digest: "int | None" = None,
    quiet: "bool | None" = None,
    log: "str | None" = None,
    stack_depth: "int | None" = None,
    job: "str | None" = None,
    store_trace: "Words" = None,
    device: "str | None" = None,
    heartbeat: "bool | None" = None,
    mask: "bool | None" = None,
    redact: "Words" = None,
    file_mode: "int | str | None" = None,
    pending: "float | None" = None,
    core: "str | None" = None,
    **unknown: "NoReturn",
) -> None:
    """Trace this process, and the processes that it starts from now on.

    May be called at any time, before or after `import torch`, and again without effect. The
    keywords are the settings (`DISTTRACE_DIR`, ...: `docs/settings.md` lists them) and win over the
    variables; None leaves a setting to its variable. What children need to know is put
    into `os.environ`. A wrong value is one sentence on stderr, and the default holds. Where
    disttrace does not run (Windows, Python without the GIL) it prints why and does nothing.

    Raises:
        TypeError: for a keyword that is no setting.
    """
    given = {name: value for name, value in locals().items() if name != "unknown"}
    from disttrace.journal.standard_library import Paused

    with Paused():
        from disttrace.startup import refusal

        refused = refusal()
        if refused is not None:
            from disttrace.errors import Reporter

            Reporter().report("platform", refused)
            return
        from disttrace.journal import standard_library

        stayed = standard_library.stay()
        try:
            with standard_library.StandardLibrary():
                from disttrace.session import install as start
            start(**given, **unknown)
        except BaseException:
            if not stayed:
                standard_library.leave()
            raise


def uninstall() -> None:
    """End tracing in this process: every patched attribute is the original object again.

    Processes started afterwards are not traced. Without a preceding `install` it does nothing.
    """
    from disttrace import waiting

    if "disttrace.session" in sys.modules:
        from disttrace.session import uninstall as stop

        stop()
    waiting.cancel()
    for hook in waiting.hooks():  # of a copy of this package that was taken out of `sys.modules`
        hook.uninstall()


def is_installed() -> bool:
    """Whether this process is being traced, by `install` or by `DISTTRACE=1`.

    With `DISTTRACE=1` it is from its start on, although nothing is patched before torch is there.
    """
    if "disttrace.session" in sys.modules:
        from disttrace.session import installed

        if installed():
            return True
    from disttrace.waiting import hooks, is_waiting

    return is_waiting() or bool(hooks())


class trace:  # noqa: N801 - used as `with disttrace.trace(...)` and `@disttrace.trace(...)`
    """Trace a part of a program: `install` at its beginning, `uninstall` at its end.

    A context manager, and a decorator for functions; it may be used again. Where tracing is on
    already, it changes nothing and leaves it on.

    Args:
        dir: the folder for the journals; None: that of `DISTTRACE_DIR`.
        settings: the other keywords of `install`.
    """

    def __init__(self, dir: "Path | None" = None, /, **settings: "Any") -> None:  # noqa: A002
        self._settings = settings if dir is None else {"dir": dir, **settings}
        self._depth = 0
        self._ours = False

    def __enter__(self) -> "trace":
        if self._depth == 0:
            self._ours = not is_installed()
            install(**self._settings)
        self._depth += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._ours:
            uninstall()

    def __call__(self, function: "Function", /) -> "Function":
        """`function`, traced whenever it runs."""
        import functools

        @functools.wraps(function)
        def traced(*args: "Any", **keywords: "Any") -> "Any":
            with trace(**self._settings):
                return function(*args, **keywords)

        return traced  # type: ignore[return-value]


def annotate(name: str) -> "Annotated":
    """Name a part of the program: a context manager, and a decorator for functions.

    The part becomes an operation `annotate` with this name, and the parent of the operations
    issued in it. Without tracing it does nothing.
    """
    from disttrace.capture.instrumentation.declared import Annotated

    return Annotated(name)


def operation(
    name: str, group: "Any" = None, peers: "Iterable[int] | None" = None, **fields: "Any"
) -> "Declared":
    """Record communication that is not `torch.distributed`'s: a context manager and decorator.

    The block is to end when the communication is over for this process. Without tracing it does
    nothing.

    Args:
        name: of the operation; all ranks give the same one for the same exchange.
        group: the process group whose members take part, all of them in the same order; None: the
            default group. A rank that does not come is reported as for a collective.
        peers: the global ranks that take part, where those are not all of the group: the operation
            is recorded then, and not compared with others.
        fields: what else is worth recording: numbers and text.
    """
    from disttrace.capture.instrumentation.declared import Declared

    return Declared(name, group, peers, fields)


def expect_equal(name: str, tensors: "Any", group: "Any" = None) -> None:
    """Declare that all members of a group have equal tensors here: replicated parameters, for
    example.

    Every n-th time, as `DISTTRACE_DIGEST` sets, a checksum of their bytes is compared with those of
    the other members, and a difference is reported. It is not taken of tensors on devices. Without
    that setting, and without tracing, nothing happens. No rank waits for another.

    Args:
        name: what they are; all members call with the same names, each in the same order.
        tensors: one tensor, or an iterable of them.
        group: a `ProcessGroup`; None: the default group.
    """
    if "disttrace.session" in sys.modules:
        from disttrace.capture.wrapping import context

        if context.current is not None and context.current.digests is not None:
            context.current.digests.expect_equal(name, tensors, group, sys._getframe(1))


def allow(minutes: float, group: "Any" = None) -> float:
    """Ask for more time: from now on operations of `group` may take so many minutes longer than its
    time limit so far, on this rank, by torch's own means (`set_timeout`).

    Before a step that only some ranks make (tokenising, saving, evaluating) all ranks of the group
    call it: the limit of those that wait counts, and of an operation that has begun already the
    limit stays what it was. A negative number takes time back. It works without tracing, too.

    Args:
        minutes: what is added to the limit.
        group: a `ProcessGroup`; None: the default group.

    Returns:
        The limit in minutes that holds now.

    Raises:
        ValueError: where nothing would be left of the limit, and for a group that this process is
            not a member of, or before `init_process_group`.
        RuntimeError: where this torch, or the backend of the group, cannot change its limit.
    """
    from disttrace.capture.objects.groups import extend

    return extend(minutes, group)


def live() -> "dict[str, Any]":
    """What this process knows of itself now, for a tracker, without a message to another process.

    It costs the traced calls nothing, and its caller microseconds. Shares are read
    from a file that the companion of this host writes each second, from some 40 s after the
    start on; not with `DISTTRACE_SLOW=0` or `DISTTRACE_HEARTBEAT=off`.

    Returns:
        Empty without tracing, and before torch is imported. Else a dict with `rank` (None where
        there is none yet), `begun` (operations begun so far, without those of stores), `in_flight`
        (how many are not known to be over, those of stores among them), of the oldest of these
        `oldest_op`, `oldest_age_s` (seconds since its begin) and `oldest_line` (`file:line` of the
        program), each None where there is none or that is unknown, `waiting_share` (the part of the
        last minute that this rank was held by communication, transfers included; None: unknown),
        `slow` (ranks of the job that make the others wait now, the worst first: dicts with `rank`,
        `share`, `since` in unix seconds, `line`, how many `others`, and the `rank_hours` that these
        have lost), and `said`: the last thing that the job reported of itself on this host, as
        `on_verdict` has it, or None.
    """
    if "disttrace.session" not in sys.modules:
        return {}
    from disttrace.session import live as now

    return now()


def on_verdict(callback: "Callable[[dict[str, Any]], object]") -> "Callable[[], None]":
    """Have `callback` called with what the job reports of itself, when it does.

    It is called in every process of the host that reports it, whichever of them prints it, and not
    on other hosts; in a thread of ours, for one object after the other. What it does while it runs
    is its own affair: it may block, and the program goes on. What it raises is one sentence on
    stderr, goes no further, and that callback is not called again. One that wants the program to
    know does it itself: `_thread.interrupt_main()` raises KeyboardInterrupt in the main thread,
    where that runs Python, and `os.kill(os.getpid(), signal.SIGTERM)` ends a process that is
    blocked in C++ too. At the end of a process a callback has one second.

    Without tracing none is called; callbacks may be registered before tracing begins, outlast
    `uninstall`, and are inherited by children that are forked.

    Args:
        callback: gets a dict of its own, with `disttrace` (1), `kind` (`"stalled"`,
            `"going on"`, ...), `at` (unix seconds), `certainty` (`"certain"`, `"likely"`, or None
            where nothing is wrong), `summary` (a sentence), `culprit_ranks` (a list of ranks, empty
            where none is to blame) and `finding` (a dict with the fields of `diagnose --json`;
            None where there is none, or where all of them take more than 32 kB).

    Returns:
        A function that takes the registration back; it may be called more than once.

    Raises:
        TypeError: where `callback` cannot be called.
    """
    from disttrace.lifecycle import listeners

    return listeners.register(callback)


def load(path: "Path | Sequence[Path] | None" = None, job: "str | None" = None) -> "Trace":
    """Read the journals below `path` as Polars frames (`docs/python.md`).

    Args:
        path: a folder, read recursively, or several; None: that of `DISTTRACE_DIR`.
        job: a job's id or the beginning of it, `"all"`, or None for the newest.

    Raises:
        ImportError: without the extra `disttrace[viewer]`.
        disttrace_viewer.api.ViewerError: when there are no journals, or no such job.
    """
    return _viewer("load")(path, job)  # type: ignore[no-any-return]


def diagnose(path: "Path | Sequence[Path] | None" = None, job: "str | None" = None) -> "Report":
    """What is wrong in a job: `print` it, or ask `.healthy`, `.findings` and `.positions`.

    Arguments and errors are those of `load`.
    """
    return _viewer("diagnose")(path, job)  # type: ignore[no-any-return]


def stats(path: "Path | Sequence[Path] | None" = None, job: "str | None" = None) -> "Stats":
    """Where the time of a job goes: `print` it, or ask `.operations`, `.ranks` and `.origins`.

    Arguments and errors are those of `load`.
    """
    return _viewer("stats")(path, job)  # type: ignore[no-any-return]


def diff(a: "Path | Sequence[Path]", b: "Path | Sequence[Path]") -> "Diff":
    """What the ranks of run `b` do otherwise than those of `a` (`docs/diff.md`): `print` it, or ask
    `.alike` and `.differences`. Errors are those of `load`."""
    return _viewer("diff")(a, b)  # type: ignore[no-any-return]


def _viewer(name: str) -> "Any":
    """A function of the viewer's API. Raises ImportError with the name of the missing extra."""
    try:
        from disttrace_viewer import api

        return getattr(api, name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("disttrace"):
            raise
        raise ImportError(
            f"disttrace.{name} needs {error.name}, which is not installed; "
            "get it by pip install 'disttrace[viewer]'",
            name=error.name,
        ) from error
