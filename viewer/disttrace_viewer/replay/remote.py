"""Remote calls (``torch.distributed.rpc``): which function of which worker answers each of them."""

from __future__ import annotations

import keyword
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from disttrace.journal.format import RPC_RUN
from disttrace_viewer.analysis.operation import innermost
from disttrace_viewer.replay.calls import ENDS, FAILS, LATER, STAYS, Call
from disttrace_viewer.replay.sequences import (
    AWAITS,
    CALLS,
    COMES,
    ISSUE,
    LEAVES,
    WAIT,
    Composed,
    Script,
)
from disttrace_viewer.trace.process import Process

_TAKEN = ("dist", "groups", "os", "rpc", "signal", "store", "tensor", "threads", "time", "torch")
"""Names of the replay's own."""
_Op = tuple[str, int]
"""The id of a journal, and the number of an operation."""
_Step = tuple[int | str, int, str, Call]
"""Thread or function, line of the journal, whether it is issued or waited for, and the call."""


class Remote:
    """The remote calls of some processes, and what answers them.

    Of one function that a worker ran several times the first run is for the first call: no record
    says which it is for.
    """

    def __init__(
        self,
        scripts: Sequence[Script],
        processes: Mapping[str, Process],
    ) -> None:
        self._processes = processes
        self._workers = dict(_workers(scripts, processes))
        self._names: dict[_Op, str] = {}
        """Of what is run and of calls: the function of the replay."""
        self._run_by: dict[_Op, Composed] = {}
        """By the call that it answers."""
        self._answered: dict[str, bool] = {}
        """By function whether its caller got an answer, or asked for none."""
        runs: dict[tuple[str, object], deque[Composed]] = {}
        for script in scripts:
            for one in script.those(RPC_RUN):
                runs.setdefault((script.journal.id, one.args.get("func")), deque()).append(one)
        used: Counter[str] = Counter()
        made = [(one, script) for script in scripts for one in script.those(*CALLS)]
        for call, script in sorted(made, key=lambda item: item[0].at_ns):
            name = _identifier(call.args.get("func"))
            used[name] += 1
            name = name if used[name] == 1 else f"{name}__{used[name]}"
            worker = self.worker(call.args.get("to"))
            self._names[script.journal.id, call.number] = name
            # An answer takes a thread of the caller's, too.
            self._answered[name] = call.over or _all_taken(script)
            theirs = runs.get((worker or "", call.args.get("func")))
            if theirs:
                run = theirs.popleft()
                self._names[worker or "", run.number] = name
                self._run_by[script.journal.id, call.number] = run
        self._steps = {script.journal.id: list(self._steps_of(script)) for script in scripts}

    def worker(self, to: object) -> str | None:
        """The journal of the worker with that name, or that id."""
        return self._workers.get(to)

    def thread(self, script: Script, thread: int, run: int | None) -> int | str | None:
        """Where a process does what it does in a thread, or for a call: in a function, which is
        None where nothing is known of the call.
        """
        return thread if run is None else self._names.get((script.journal.id, run))

    def ends(self, script: Script) -> dict[str, tuple[str, str]]:
        """How the functions that a process ran ended, and where they stay."""
        found = {}
        for run in script.those(RPC_RUN):
            name = self._names.get((script.journal.id, run.number))
            if name is not None:
                found[name] = self._end(script, run, answered=self._answered[name])
        return found

    def _end(self, script: Script, run: Composed, *, answered: bool) -> tuple[str, str]:
        if run.gave_up_ns is not None:
            return FAILS, run.error
        if not run.over:
            sample = self._processes[script.journal.id].latest_samples.get(run.thread)
            at = None if sample is None else innermost(sample.stack)
            return STAYS, "" if at is None else f"{at.file.rpartition('/')[2]}:{at.line}"
        return (ENDS if answered else LATER), ""

    def steps(self, script: Script) -> Sequence[_Step]:
        """What a process calls, and waits for."""
        return self._steps[script.journal.id]

    def _steps_of(self, script: Script) -> Iterator[_Step]:
        open_: dict[tuple[int | str, object], list[Call]] = {}
        for one in script.those(COMES, LEAVES, *CALLS, *AWAITS):
            thread = self.thread(script, one.thread, one.run)
            if thread is None:
                continue
            to = (thread, one.args.get("to"))
            if one.op in AWAITS:
                waited = next((c for c in open_.get(to, ()) if _is_of(one, c)), None)
                if waited is not None:
                    open_[to].remove(waited)
                    waited.over = one.over
                    self._answered[waited.function or ""] = one.over
                    yield thread, one.place, WAIT, waited
                continue
            call = self._call(script, one)
            yield thread, one.place, ISSUE, call
            if call.asynchronous:
                open_.setdefault(to, []).append(call)
            else:
                yield thread, one.place, WAIT, call

    def _call(self, script: Script, one: Composed) -> Call:
        name = self._names.get((script.journal.id, one.number))
        run = self._run_by.get((script.journal.id, one.number))
        over = one.over
        if name is not None and self.worker(one.args.get("to")) is not None:
            over = one.over and run is not None and run.over
        return Call(
            op=one.op,
            key=("remote", script.journal.id, one.number),
            begin_ns=one.at_ns,
            over=over,
            asynchronous=one.op in CALLS[1:],
            where=script.line(one.stack),
            function=name,
            args=one.args,
        )


def _workers(
    scripts: Sequence[Script], processes: Mapping[str, Process]
) -> Iterator[tuple[object, str]]:
    """Names and ids of workers, and the journals of their processes."""
    for script in scripts:
        for one in script.those(COMES):
            rank = one.args.get("rank", processes[script.journal.id].rank)
            yield from ((key, script.journal.id) for key in (one.args.get("name"), rank))


def _all_taken(script: Script) -> bool:
    """Whether no thread of a worker is left."""
    given = next((one.args.get("threads") for one in script.those(COMES)), None)
    running = sum(not one.over and one.gave_up_ns is None for one in script.those(RPC_RUN))
    return given is not None and running >= given


def _is_of(wait: Composed, call: Call) -> bool:
    function = wait.args.get("func")
    return function is None or function == call.args.get("func")


def _identifier(function: object) -> str:
    """The function's own name, where the program has no other use for it."""
    name = re.sub(r"\W", "_", str(function or "function").rpartition(".")[2])
    known = keyword.iskeyword(name) or name in _TAKEN or name.startswith("rank")
    return f"run_{name}" if known or not name.isidentifier() else name
