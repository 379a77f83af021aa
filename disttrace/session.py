"""Puts recorder, capture and the journal together, and takes them apart again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from disttrace import errors, foreign, project, redact, waiting
from disttrace._version import __version__
from disttrace.capture.wrapping import context
from disttrace.capture.wrapping.context import Capture
from disttrace.config import Config, chosen, resolve, to_environ
from disttrace.identity import (
    AGENT,
    JOB_VARIABLE,
    MAIN,
    PARENT_VARIABLE,
    WORKER,
    Identity,
    command_line,
    launched_rank,
)
from disttrace.journal import proc, standard_library
from disttrace.journal.format import DEF, FORMAT, UNINSTALLED, job_trace_id, process_span_id
from disttrace.journal.originals import Lock
from disttrace.journal.own_file import OfParent, SlowWrites
from disttrace.journal.segment import filesystem
from disttrace.journal.standard_library import Paused, StandardLibrary
from disttrace.journal.writer import JournalWriter, make_folder_below
from disttrace.lifecycle import detached, gil_free_stacks, last_word, listeners
from disttrace.lifecycle.announcer import Announcer
from disttrace.lifecycle.companion import Companion
from disttrace.lifecycle.exit_hooks import Ending, end_process
from disttrace.lifecycle.gil_free_stacks import GilFreeStacks
from disttrace.lifecycle.heartbeat import COMPARE_NS, IN_MEMORY, InStep, Live, Periodic, Syncing
from disttrace.lifecycle.last_word import ExitSummary
from disttrace.recording import forks
from disttrace.recording.core import choose
from disttrace.recording.interning import LOCK
from disttrace.recording.recorder import Recorder
from disttrace.waiting import ImportHook, hooks

_DISTRIBUTED = "torch.distributed.distributed_c10d"

_TRACEPARENT = "TRACEPARENT"
_ALWAYS_ON = ("", "always_on", "parentbased_always_on")

_lock = Lock()
_session: Session | None = None


class Session:
    """Tracing in this process, from install to uninstall."""

    def __init__(self, config: Config, reporter: errors.Reporter, drawn: Identity | None) -> None:
        """``drawn``: who this process is, where that was settled when it started."""
        self.config = config
        self.identity = drawn or Identity(os.environ, job=config.job)
        if config.job is not None and self.identity.job != config.job:
            self.identity.job, self.identity.job_source = config.job, JOB_VARIABLE
        self._reporter = reporter
        self._versions: dict[str, Any] | None = None
        self._journal: JournalWriter | None = None
        self.recorder = Recorder(
            t0=self.identity.clock.mono_ns,
            process=lambda: self.identity.process,
            open_journal=self._open_journal,
            opening=self._opening,
            on_failure=self._journal_failed,
            on_loss=self._segment_lost,
            core=choose(config.core)[0],
        )
        self.capture = Capture(self.recorder, reporter, stack_depth=config.stack_depth)
        self.capture.on_identity = self._identified
        self.capture.left_journal = self._left_journal
        self._hook = ImportHook(lambda error: self.capture.fail("import hooks", error))
        self._hook.uninstall = uninstall
        self._companion = Companion(config, reporter.report)
        joined_as = self.capture.groups.default_rank
        self._summary = ExitSummary(
            *(config, self.identity, lambda: self._journal is not None, joined_as),
            lambda: self._ending.failed,
        )
        self._announcer: Announcer | None = None
        self._without_gil = without_gil = GilFreeStacks(self.capture)
        self._in_step: InStep | None = None
        tasks: list[Periodic] = []
        if config.heartbeat:
            begun = functools.partial(getattr, self.recorder.core, "begun")
            announcer = Announcer(config, self._companion, self._progress_mark, end_process, begun)
            announcer.sample = lambda: self.live.sample()
            self.capture.on_stopping = announcer.ask_for_stacks
            in_step = InStep(self.recorder.courses, config.dir, announcer.suspect)
            tasks = [
                Periodic(gil_free_stacks.PART, without_gil.look),
                Periodic(
                    "telling of stalls", lambda _: announcer.look(), lambda: announcer.pause_ns
                ),
                Periodic("comparisons of calls between ranks", in_step.look, lambda: COMPARE_NS),
            ]
            if filesystem(config.dir) not in IN_MEMORY:
                syncing = Syncing(self.capture, without_gil)
                tasks.append(Periodic("writing the journal to the disk", syncing.look))
            self._announcer, self._in_step = announcer, in_step
        self.live = Live(
            self.capture, beats=config.heartbeat, further=tasks, without_gil=without_gil
        )
        self.capture.wake = self.live.wake
        self.capture.store_trace = config.store_trace
        self.capture.asks_devices = config.device != "off"
        # What is over must not look hung.
        self.capture.unseen_s = min(self.capture.unseen_s, 0.4 * config.stall)
        self.capture.digest_every = config.digest
        self.capture.when_imported = self._hook.when_imported
        self._ending = Ending(self.capture, self._close, self._last_word)
        self._environment = waiting.HandedDown()
        self._only_adopts = False

    def start(self) -> None:
        """Hand the settings down, and install every part once torch is there."""
        patterns = redact.split(self.config.redact or "")
        redact.use(redact.Masker(patterns) if self.config.mask else redact.Unmasked())
        self._hand_down()
        self.recorder.main_thread()  # is number 0, whatever imports torch
        self._summary.install()
        self._ending.install(self._hook)
        if self.config.heartbeat:
            self._without_gil.install()
        if self._companion.exports:
            self._hook.when_imported("opentelemetry.trace", _note_spans(self.recorder))
        self._hook.when_imported(_DISTRIBUTED, self._torch_arrived)
        # Who adopts orphans has to be there for those who want a companion, and wants none itself.
        is_of_job = self.identity.role in (AGENT, WORKER)
        self._only_adopts = not is_of_job and detached.adopts()
        if is_of_job or self._only_adopts:
            self.recorder.open()

    def stop(self) -> None:
        """Take everything apart: every patched attribute is the original object again."""
        self._hook.remove()
        self._ending.exit(UNINSTALLED, None)
        self.live.stop()  # it uses what is taken apart from here on
        listeners.stop()
        self.capture.engine.undo()
        context.current = None
        self._close()
        self.recorder.core.let_go()
        self._companion.stop()
        self._summary.remove()
        redact.use(redact.Masker())
        self._environment.take_back()

    def failed(self, error: BaseException) -> None:
        """Note an exception that ends this process although it is caught (by a test's harness)."""
        self._ending.failure(error)
        self._ending.exit("exception", 1)
        self._close()

    def forked(self) -> None:
        """In a forked child: a process of its own, with a journal of its own."""
        self.identity = Identity(os.environ, job=self.config.job, forked_from=self.identity)
        self._only_adopts = False
        self.recorder.after_fork(t0=self.identity.clock.mono_ns)
        self.live.in_child()
        self._companion.forked()
        self._summary.remove()
        for forget in self.capture.on_fork:
            forget()
        self.capture.groups.in_child()
        if self._versions is not None:
            self._versions["t"] = self.recorder.now()
        self._ending.forked()
        os.environ[PARENT_VARIABLE] = self.identity.handed_down()
        self._hook.catch_up()  # torch may have come past it

    @property
    def _folder(self) -> str:
        return self.identity.folder(self.config.dir)

    def _open_journal(self) -> JournalWriter:
        folder, instead_of = self._made_folder()
        journal = JournalWriter(
            folder,
            self.identity.base_name(),
            max_bytes=self.config.max_mb * 2**20,
            slow_write=self.config.slow_write,
            mode=int(self.config.file_mode, 8),
        )
        self._journal = journal
        if instead_of is not None:
            self._reporter.report(
                "folder",
                f"the journal of process {os.getpid()} lies in {folder} itself, because"
                f" {instead_of}",
            )
        self._without_gil.start(journal.definitions)
        if self._announcer is not None:
            self._announcer.start(self.identity)
        if self._in_step is not None:
            self._in_step.start(self.identity)
        self._companion.enter(self.identity)
        self.live.start()  # its first turn waits for the lock under which journals are opened
        if self._companion.exports:
            self._companion.start(self.identity)
        return journal

    def _made_folder(self) -> tuple[str, str | None]:
        """The folder of the journal; that of all of them where its own cannot be used, and why."""
        root, mode = self.config.dir, int(self.config.file_mode, 8)
        folder = self.identity.folder(root)
        if folder == root:
            return root, None
        try:
            make_folder_below(root, folder, mode)
        except foreign.ours(OSError) as error:
            self.identity.spread = False
            self._is(self.identity.role)  # what it starts needs not try
            return root, f"{folder} cannot be used ({errors.first_line(error)})"
        return folder, None

    def _close(self) -> None:
        """Before the interpreter finalizes, or at uninstall: no thread, no journal."""
        if self._hook.missed(_DISTRIBUTED):
            self._reporter.report("import hook", f"nothing was recorded: {waiting.PAST}")
        self.live.stop()
        self._without_gil.stop()
        self.recorder.close()

    def _last_word(self, code: int, *, failed: bool) -> None:
        if self._announcer is None:
            return
        if failed and self._journal is not None:
            self._companion.stay_after_failure(self.identity)
        try:
            self._announcer.finish()
            stands = self._announcer.stands
            found = last_word.ask(self.config, self.identity, code=code, stands=stands)
            if found is not None:
                self._announcer.announce(found.get("lines"), found.get("objects"))
                listeners.tell(found.get("objects"))
            listeners.wait()
        except foreign.ours(OSError, ValueError, RuntimeError):
            pass  # then there is none

    def _opening(self) -> list[Mapping[str, Any]]:
        """The records a journal starts with."""
        header = self.identity.record(redact.current.argv(command_line()))
        first = {
            DEF: "process",
            "format": FORMAT,
            **header,
            "boot_id": self.identity.host,  # no Linux: processes of one host still compare
            **proc.own(),
            "disttrace": __version__,
            "settings": chosen(self.config),
            "filesystem": filesystem(self.config.dir),
        }
        versions = [] if self._versions is None else [{DEF: "versions", **self._versions}]
        if self.identity.role == MAIN and (claimed := launched_rank(os.environ)) is not None:
            self._is(WORKER)
            mine = {DEF: "identity", "t": self.recorder.now(), **claimed, "role": WORKER}
            versions.append(mine)
        return [first, *versions, *self.capture.groups.definitions()]

    def _torch_arrived(self, module: ModuleType) -> None:
        """torch.distributed was imported: find out what it can do and install the parts."""
        try:
            with Paused(), StandardLibrary():
                import torch

                from disttrace.capture import parts  # and all that it needs
            self.capture.sites.torch_home(os.path.dirname(torch.__file__))
            with Paused():
                parts.activate(self.capture)
            self._versions = {
                "t": self.recorder.now(),
                "torch": torch.__version__,
                "backends": parts.backends(module),
                "parts": [part for part, _ in parts.parts()],
                "not_captured": parts.not_captured(),
            }
            if self.recorder.is_open:
                self.recorder.note("versions", **self._versions)
        except BaseException as error:
            self.capture.fail("torch.distributed", error)

    def _progress_mark(self) -> object:
        role = self.identity.role
        ranks = role in (AGENT, WORKER)
        if self._only_adopts and not ranks and not self.recorder.core.begins_in_flight():
            return None
        return self.recorder.progress_mark(launcher=role == AGENT)

    def _identified(self, keys: Mapping[str, Any]) -> None:
        """The process claims a rank towards others, or launches such processes."""
        role = keys.get("role", WORKER)
        if role == self.identity.role == AGENT:
            return
        self._is(role)
        self.recorder.note(
            "identity", **self.identity.launched(os.environ), **{**keys, "role": role}
        )

    def _is(self, role: str) -> None:
        self.identity.role = role
        os.environ[PARENT_VARIABLE] = self.identity.handed_down()

    def _left_journal(self, pid: int, unknown: bool) -> bool:
        """Whether a process launched here has a journal; ``unknown`` where there is no telling."""
        name = self.identity.name_of(pid)
        folders = {self._folder, self.config.dir}  # its own may not have been to be made
        try:
            return any(file.startswith(name) for one in folders for file in os.listdir(one))
        except foreign.ours(OSError):
            return unknown

    def _journal_failed(self, error: BaseException) -> None:
        """Writing is over: report it once and get out of the program's way."""
        if foreign.is_a(error, OfParent):
            return  # nothing is known of such a copy's locks: stderr's may be held for ever
        journal = f"its journal in {self._folder}"
        if foreign.is_a(error, SlowWrites):
            if self._journal is not None:  # one more write, or it would look as if it had died
                record = {DEF: "exit", "t": self.recorder.now(), "how": UNINSTALLED, "code": None}
                foreign.attempt(self._journal.define, record)
            text = foreign.text_of(error)
            why = f"{journal} holds the program up ({text}; DISTTRACE_SLOW_WRITE is the bound)"
        else:
            why = f"{journal} cannot be written ({errors.first_line(error)})"
        self._reporter.report(
            "journal", f"tracing is off in process {os.getpid()}: {why}; the program goes on"
        )
        self.capture.engine.undo()

    def _segment_lost(self, why: str) -> None:
        self._reporter.report(
            "segments",
            f"a file of the journal of process {os.getpid()} in {self._folder} is lost ({why}); "
            "it goes on in the next one",
        )

    def _hand_down(self) -> None:
        """Put into the environment what children need, and remember what stood there."""
        handed = {
            **to_environ(self.config, os.environ),
            PARENT_VARIABLE: self.identity.handed_down(),
        }
        if self._companion.exports:
            handed |= _trace_of(self.identity, os.environ)
        for name, value in handed.items():
            self._environment.put(name, value)


def _trace_of(identity: Identity, environ: Mapping[str, str]) -> dict[str, str]:
    """What a launcher hands to its children, so that their spans are in the job's trace; nothing
    where there is one, or a sampler may drop it."""
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if identity.role != AGENT or environ.get(_TRACEPARENT) or sampler not in _ALWAYS_ON:
        return {}
    trace = job_trace_id(identity.job)
    return {_TRACEPARENT: f"00-{trace}-{process_span_id(trace, identity.process)}-01"}


def _note_spans(recorder: Recorder) -> Callable[[Any], None]:
    """The callback that has begins name the program's span, once OpenTelemetry is imported."""

    def imported(module: Any) -> None:
        get_current_span = module.get_current_span

        def under_span() -> bytes:
            context = get_current_span().get_span_context()
            if not context.span_id:
                return b""
            ids = (context.trace_id, context.span_id, context.trace_flags)
            return b',"sp":"%032x-%016x-%02x"' % ids

        recorder.core.ambient = under_span

    return imported


def install(**settings: object) -> None:
    """See ``disttrace.install``."""
    global _session
    with _lock:
        if _session is not None:
            return
        for hook in hooks():
            if not isinstance(hook, ImportHook):  # of a copy that was taken out of `sys.modules`
                hook.uninstall()
        if (folder := waiting.without_project()) is not None:
            project.found_none(folder)
        config, complaints = resolve(settings, os.environ, project.read())
        reporter = errors.Reporter()
        for complaint in complaints:
            reporter.report(complaint, complaint)
        _session = Session(config, reporter, waiting.take())
        _watch_forks()
        _session.start()


def failed(error: BaseException) -> None:
    """The process ends because of this exception, which other code catches and reports."""
    session = _session
    if session is not None:
        session.failed(error)


def uninstall() -> None:
    """See ``disttrace.uninstall``."""
    global _session
    with _lock:
        session, _session = _session, None
        if session is not None:
            session.stop()
        waiting.cancel()
        standard_library.leave()


def installed() -> bool:
    """Whether this process is being traced, or will be as soon as it imports torch."""
    return _session is not None or waiting.is_waiting()


def live() -> dict[str, Any]:
    """See ``disttrace.live``."""
    session = _session
    if session is None:
        return {}
    # Who merely inherited the variables has no rank.
    rank = listeners.launched_as() if session.identity.role == WORKER else None
    who, has_journal = session.identity, session._journal is not None
    # None: the folder is gone.
    path = foreign.attempt(session._companion.live, who) if has_journal else None
    of_ranks = {} if path is None else listeners.known(path)
    return listeners.standing(session.capture, rank, of_ranks, who.process)


@functools.cache
def _watch_forks() -> None:
    forks.watch(LOCK, _before_fork, _after_fork, _in_child)


def _before_fork() -> None:
    if _session is not None:
        _session.live.before_fork()


def _after_fork() -> None:
    if _session is not None:
        _session.live.after_fork()
        _session._hook.catch_up()


def _in_child() -> None:
    global _lock
    _lock = Lock()
    session = _session
    if session is not None:
        try:
            session.forked()
        except BaseException as error:
            session.capture.fail("forked children", error)
