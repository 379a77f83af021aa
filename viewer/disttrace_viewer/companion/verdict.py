"""Works out verdicts on a job without progress: ``ORDER``, as the companion got it.

A child of the companion, so that what judging takes of memory is gone when it ends. Each line on
standard input is a word of ``_DO``. It judges states; other hosts send theirs (``reports.py``).
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any

from disttrace.journal.format import definitions_name, is_own
from disttrace.journal.proc import here as this_kernel
from disttrace_viewer.analysis.liveness import identity, look, who
from disttrace_viewer.analysis.process_ends import CLEAN
from disttrace_viewer.companion import activity, reading, reports, summary, words
from disttrace_viewer.companion.activity import APART_S, Activities
from disttrace_viewer.companion.endpoint import ALONE, MOST_SUMMARY, SERVER, PeerReply
from disttrace_viewer.companion.gil_holders import OF_LIMIT, SHORTEST_S, GilHolders, Silent
from disttrace_viewer.companion.machine import Asking
from disttrace_viewer.companion.peers import WHOLE_S, Peers
from disttrace_viewer.companion.protocol import secret_of_job
from disttrace_viewer.companion.reports import Received
from disttrace_viewer.companion.service import DIED_S, Order, stay_s
from disttrace_viewer.diagnosis import live
from disttrace_viewer.diagnosis.announced import settled
from disttrace_viewer.diagnosis.job import in_full, judged
from disttrace_viewer.diagnosis.positions import marks as marks_of
from disttrace_viewer.diagnosis.verdict import Verdict, verdict
from disttrace_viewer.evidence.evidence import Evidence
from disttrace_viewer.findings.case import Case
from disttrace_viewer.findings.finding import CERTAIN, ERROR
from disttrace_viewer.merge.jobs import closure
from disttrace_viewer.states import folder
from disttrace_viewer.states.building import trace_of
from disttrace_viewer.states.folder import here
from disttrace_viewer.states.reduce import WINDOW
from disttrace_viewer.states.state import Merged, State, merge, newest_try
from disttrace_viewer.trace.model import LaunchedJob
from disttrace_viewer.wording import sentences

RETRY_S = 2.0
ABORT = "abort"
"""The value of DISTTRACE_ON_STALL that is no command."""
MOST_HOSTS = 64
"""Of so many at most states are requested; of more hosts a summary first."""
HERE = ""
"""This host among the others."""


Sent = tuple[list[PeerReply], list[PeerReply]]
"""Answers of hosts with states, and summaries of the others."""


class Judge:
    """Reads this host's journals on request; requests of others what it needs."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._limit_s = order.stall_s
        self._own = reading.OwnJournals(order.directory, order.in_names, order.host, order.roll)
        self._ours: set[str] = set()
        self._all_here = False
        self._holders = GilHolders()
        self._activities = Activities()
        self._machine = Asking()
        self._is_asking = False
        self._stalled: set[tuple[str, int]] = set()
        self._beside: set[str] = set()
        """Processes that waited in none of these: that they live proves nothing of the waits."""
        self.retry_at = math.inf
        """When to look for the others again: no store was there."""
        self._chosen: list[str] = []
        """Hosts of which states were requested the last time, where not of all."""
        self.peers = Peers(
            uuid.uuid4().hex[:12], self._answer, called=lambda: _print({"called": True})
        )

    def ready(self) -> None:
        """A stall may be near: be there for the requests of others."""
        local = self._local()
        activity.note(trace_of(local)[0].processes)
        self._look_at_work(local, waits=False)
        joined = self._join(local) or self._all_here
        self.retry_at = math.inf if joined else time.monotonic() + RETRY_S

    def stay_after_failure(self) -> None:
        """The processes of this host have failed: those that wait for them shall know why."""
        local = self._local()
        trace, _ = trace_of(local)
        if local.states and reading.is_alone(trace):
            places = reading.addresses(local, trace.processes)
            self.peers.stay(places, stay_s=stay_s(self._order.stall_s), serve=self._serve)

    @folder.no_cycles()
    def divergence(self, known: Sequence[str], sent: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Whether ranks of this host and of those that ``sent`` their calls are out of step
        (``words.py``), but for groups (ids) of which that is ``known``."""
        answers = [PeerReply(sender, base64.b64decode(data)) for sender, data in sent]
        local = self._local()
        received = self._unpacked((answers, []), local)
        newest = words.newest_calls(local, self._own.files())
        found = verdict(merge([newest, *received.states]), look=received.look)
        elsewhere = {state.id for state in received.states}
        return words.divergence(found, known, self._order.job, self._order.root, elsewhere)

    def calls(self) -> bytes:
        return reports.packed(
            words.newest_calls(self._local(), self._own.files()), most=reports.MOST_WHOLE
        )

    @folder.no_cycles()
    def verdict(self, limit_s: float | None = None) -> dict[str, Any]:
        """The verdict now, empty where another host prints; ``limit_s`` counts instead of the limit
        where one has died.

        ``signature`` tells one picture from another and is empty where nothing is stalled.
        ``lines`` are for stderr; ``notes`` are too, where a rank waits while all others get on
        (``noted`` tells them apart). ``alert`` is what a command gets besides. ``announcers``: ids
        of processes of this host that may print, best first. At ``marks`` it is printed again.
        ``over``: no wait that was reported goes on (``going_on`` is empty where the ranks ended
        with their waits). ``aborting`` are identities of the processes that are to be ended, none
        while a communicator is being made. ``next_s``: when the longest of these waits reaches the
        limit. ``ops`` are the waits of the stalled, as [process, number].
        """
        self._limit_s = self._order.stall_s if limit_s is None else limit_s
        local = self._heard()
        processes = trace_of(local)[0].processes
        living = [p.pid for p in processes if p.pid and look(p).alive]
        begun = sum(course[2] for p in processes for course in local.states[p.id].courses)
        self._machine.begin(living, self._order.stall_s, begun)
        # Not when the verdict is there: answers that came while it was made are not in it.
        self._is_asking = self._machine.pending
        meets = self._join(local)
        serves = meets and self.peers.settled() == SERVER
        sent: Sent = self._requested(local) if serves else ([], [])
        if meets and not serves:
            word = self.peers.speaks()
            if word is None:
                self.peers.call()
                return {}
            sent = reports.parted(word)
        received = self._unpacked(sent, local)
        try:
            found = self._found_by(received, local, meets=meets)
        except Exception:
            if not received.senders and not received.elsewhere:
                raise  # it is not by what others sent
            found = self._found_by(Received(), local, meets=meets)
        if serves and found["signature"] and (self.peers.mute or not found["announcers"]):
            self._hand_over(sent, local)
            return {}
        if serves and not found["signature"]:
            self.peers.hand_over(b"")
        return found

    def _requested(self, local: Merged) -> Sent:
        """States of all hosts; of more than a few only of those that stand out, else summaries."""
        summaries: list[PeerReply] = []
        if len(self.peers.clients) <= MOST_HOSTS:
            return self.peers.request(("states",)), summaries
        summaries = self.peers.request(("summary",), most=MOST_SUMMARY)
        known = summary.read([PeerReply(HERE, summary.packed(local)), *summaries])
        wanted = {*summary.chosen(known, self._chosen, MOST_HOSTS + 1)} - {HERE}
        self._chosen = sorted(wanted)
        rest = [one for one in summaries if one.sender not in wanted]
        return self.peers.request(("states",), of=wanted), rest

    def _serve(self) -> None:
        local = self._local()
        self._hand_over(self._requested(local), local)

    def _hand_over(self, sent: Sent, local: Merged) -> None:
        """Have a client judge and print what we know: none of our processes can."""
        ours = PeerReply(uuid.uuid4().hex[:12], reports.packed(local))
        self.peers.hand_over(reports.joined([*sent[0], ours], sent[1]))

    @staticmethod
    def _unpacked(sent: Sent, local: Merged) -> Received:
        answers, summaries = sent
        received = reports.unpacked(answers, local, proved=secret_of_job() is not None)
        others = [*summary.read(summaries).values()]
        if not others:
            return received
        ranks = frozenset[int]().union(*(one.ranks for one in others))
        return replace(
            received,
            reported=summary.reported(others, [*local.states.values(), *received.states]),
            elsewhere=ranks - {s.identity.get("rank") for s in local.states.values()},
        )

    def _found_by(self, received: Received, local: Merged, *, meets: bool) -> dict[str, Any]:
        if not self._all_here:
            silent = reading.beside(self._order.root, self._order.in_names, local, received.states)
            received = replace(received, states=(*received.states, *silent))
            found = merge([local, Merged({state.id: state for state in silent})])
            activity.note(trace_of(found)[0].processes, but=local.states)
        return self._found(self._settled(received), received, meets=meets)

    def _settled(self, received: Received) -> Verdict:
        """The verdict, without jobs that share no more than their name with the one at fault."""
        found = self._judged(received, None)
        errors = [f for f in found.findings if f.severity == ERROR]
        processes = found.case.evidence.trace.processes
        ours = {processes[i].job for i in words.reached(found.case, errors, self._reported)}
        if ours.issuperset(p.job for p in processes):
            return found
        return self._judged(received, {p.id for p in processes if p.job in ours})

    @property
    def _reported(self) -> set[str]:
        return {process for process, _ in self._stalled}

    def _judged(self, received: Received, only: Set[str] | None) -> Verdict:
        def choose(jobs: Sequence[LaunchedJob]) -> list[str]:
            return current(jobs, self._order.job, received)

        def once() -> Verdict:
            return judged(
                self._own.files(),
                choose=choose if only is None else None,
                only=only,
                stall_ns=round(self._order.stall_s * 1e9),
                local=self._local(),
                others=received.merged,
                fetch=lambda wanted: self._fetched(wanted, received),
                look=received.look,
            )

        return settled(once, lambda one: [one.case.evidence])

    def _fetched(self, wanted: Sequence[str], received: Received) -> Sequence[State]:
        """All of some processes, from the hosts that sent their states."""
        of = {received.senders[one] for one in wanted if one in received.senders}
        answers = self.peers.request(("whole", *wanted), of=of, within_s=WHOLE_S)
        found = self._unpacked((answers, []), self._local())
        return [s for s in found.states if received.senders.get(s.id) == found.senders.get(s.id)]

    def _answer(self, wanted: Sequence[str]) -> bytes:
        """What the server requests: a summary of our processes, their states, or all of some."""
        local = self._heard()
        if wanted[:1] == ("summary",):
            return summary.packed(local)
        if wanted[:1] != ("whole",):
            return reports.packed(local)
        ours = [one for one in wanted[1:] if one in local.states]
        if not ours:
            return b""
        full = in_full(local, ours, self._own.files(), here).states
        return reports.packed(Merged({one: full[one] for one in ours}), most=reports.MOST_WHOLE)

    def _found(self, judgement: Verdict, received: Received, *, meets: bool) -> dict[str, Any]:
        case, trace = judgement.case, judgement.case.evidence.trace
        unknown = () if self._all_here else reading.unknown_ranks(trace)
        now = live.picture(
            case,
            judgement.findings,
            self._limit_s,
            unknown=unknown,
            asks=meets,
            looked_into=self._is_asking,
        )
        died = any(f.kind == "process_failed" and f.certainty == CERTAIN for f in now.errors)
        if self._limit_s < self._order.stall_s and not died:
            now = replace(now, errors=[], notes=[])  # none has waited for the limit
        errors, notes = now.errors, now.notes
        elsewhere = {state.id for state in received.states} - self._ours
        found = reading.of_job(self._order.root, self._order.in_names) if elsewhere else []
        at_hand = {os.path.basename(one.base)[-12:] for one in found}
        apart = not {one[:12] for one in elsewhere} <= at_hand
        text = words.lines(case, errors, self._order.root, apart=apart)
        if text and unknown:
            named = sentences.ranks(unknown)
            it, them = ("it", "it") if len(unknown) == 1 else ("they", "them")
            why = f"no store of the job leads to {them}"
            if meets:
                alone = self.peers.role == ALONE
                why = "the host of rank 0 does not answer" if alone else f"{it} did not answer"
            text.insert(len(text) - 1, f"nothing is known of {named}: {why}")
        concerned = words.reached(case, errors or notes, self._reported)
        ops = live.waits_of(case, errors)
        if ops:
            self._stalled = ops
            self._beside = {p.id for p in trace.processes} - {process for process, _ in ops}
        return {
            "signature": now.signature(case),
            "lines": text,
            "objects": words.objects(case, errors or notes),
            "notes": words.lines(
                case, notes, self._order.root, word="starting" if now.starting else "waiting"
            ),
            "noted": now.noted(case),
            "going_on": _going_on(case, live.workers(case), self._stalled, self._beside),
            "alert": words.for_command(
                case, judgement.findings, errors, self._order.job, self._order.root, elsewhere
            ),
            "announcers": words.announcers(
                case, elsewhere, concerned, anywhere=bool(unknown) or meets
            ),
            "aborting": [
                {**identity(p), "journal": definitions_name(p.paths[0])}
                for p in (() if now.creating else trace.processes)
                if p.index in concerned
                and p.id not in elsewhere
                and p.exit is None
                and all(is_own(definitions_name(base)) for base in p.paths)
                and p.settings.get("on_stall") == ABORT
                and case.evidence.look(p).alive is not False
            ],
            "waiting": now.waiting,
            "over": not self._stalled & live.open_waits(case),
            "next_s": now.next_s,
            "marks": marks_of(errors or notes),
            "died": died,
            "ops": sorted(ops),
        }

    def _local(self) -> Merged:
        found = folder.of_journals(self._own.files(), window=WINDOW)
        if self._order.host:  # containers share a name
            kernel = this_kernel()
            states = {
                one: s
                for one, s in found.states.items()
                if s.process.get("boot_id") in (None, kernel.boot_id)
                and s.process.get("pid_ns") in (None, kernel.pid_ns)
            }
            found = found if len(states) == len(found.states) else Merged(states, found.unread)
        found = newest_try(found, self._order.job)
        self._ours = set(found.states)
        return found

    def _heard(self) -> Merged:
        """The states of our processes, once those in which nothing runs gave their stacks, and
        the activity of those that others wait for is in their journals."""
        local = self._look_at_work(self._local())
        processes = trace_of(local)[0].processes
        activity.note(processes)
        if answers := self._machine.take():
            activity.tell(processes, answers)
            local = self._local()
        before_ns = time.time_ns() - round(max(SHORTEST_S, OF_LIMIT * self._order.stall_s) * 1e9)
        silent = [
            Silent(who(process), local.states[process.id].base, process.last_ns)
            for process in processes
            if process.pid and process.last_ns < before_ns and look(process).alive
        ]
        return self._local() if self._holders.ask(silent) else local

    def _look_at_work(self, local: Merged, *, waits: bool = True) -> Merged:
        """The states once more where something was added; ``waits``: until there are two looks."""
        trace, sample = trace_of(local)
        case = Case(Evidence(trace, sample, stall_ns=round(self._order.stall_s * 1e9)))
        away = [
            (p, sample.active.get((p.index, 0), 0))
            for p in trace.processes
            if p.is_rank
            and case.outside(p.index)
            and (case.holds_up(p.index) or not self._all_here)
            and look(p).alive
        ]
        ports = {store.port for store in trace.stores} - {None}
        if waits and self._activities.lacks(away):
            list(self._activities.look(away, ports))
            time.sleep(APART_S)
        found = [*self._activities.look(away, ports)]
        for process, record in found:
            activity.append(process, record)
        return self._local() if found else local

    def _join(self, local: Merged) -> bool:
        """Whether other hosts were found; there may be none."""
        if self._all_here or not local.states:
            return False
        trace, _ = trace_of(local)
        self._all_here = not reading.is_alone(trace)
        if self._all_here:
            self.peers.leave()
            return False
        living = replace(trace, processes=tuple(p for p in trace.processes if look(p).alive))
        return self.peers.join(reading.addresses(local, living.processes), reading.order(living))


def _going_on(case: Case, alive: Set[int], reported: Set[tuple[str, int]], beside: Set[str]) -> str:
    """The ranks that go on whose waits were ``reported``; empty where none does. One that was
    ``beside`` is no sign of it: a launcher outlives those that fail."""
    evidence, trace = case.evidence, case.evidence.trace
    if live.gave_up(case, reported):
        return ""
    if {process.id for process in live.living(case)} <= beside:
        alive = frozenset()
    if alive:
        who, count = words.those_of(trace, alive)
        return f"{who} {'communicates' if count == 1 else 'communicate'} again."
    others = [p for p in trace.processes if not p.is_agent]
    if all(evidence.ends[p.index].how == CLEAN for p in others):
        return f"{words.those_of(trace, range(len(trace.processes)))[0]} went on and ended."
    return ""


def current(jobs: Sequence[LaunchedJob], ours: str, received: Received) -> list[str]:
    """The jobs (ids) to judge: those who answered share a store with us, so they are of our job
    whatever its name; but not who had ended before it began: it was started again."""
    if not received.states:
        of_name = [job.id for job in jobs if ours in (job.id, *job.names)]
        return [job.id for job in closure(jobs, of_name)]
    began_ns = min((job.start_ns for job in jobs if ours in (job.id, *job.names)), default=0)
    living = {
        state.process.get("job")
        for state in received.states
        if (one := received.seen.get(state.id)) is None or one.alive is not False
    }
    return [job.id for job in jobs if job.last_ns >= began_ns or not living.isdisjoint(job.names)]


_DO: dict[bytes, Callable[[Judge, bytes], Any]] = {
    b"": lambda judge, _: judge.verdict(),
    b"died": lambda judge, _: judge.verdict(DIED_S),
    b"ready": lambda judge, _: judge.ready(),
    b"mute": lambda judge, _: judge.peers.be_mute(),
    b"stay_after_failure": lambda judge, _: judge.stay_after_failure(),
    b"diverged": lambda judge, data: judge.divergence(*json.loads(data)),
}
"""What each word on standard input asks for; what is none has no answer."""


def _print(value: Any) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201


def main(argv: list[str]) -> None:
    """Do what each line on standard input asks for until it ends, and answer others meanwhile."""
    judge, over = Judge(Order(**json.loads(argv[0]))), threading.Event()

    def do(line: bytes) -> None:
        what, _, data = line.partition(b" ")
        if (answer := _DO[what](judge, data)) is not None:
            _print(answer)

    def listen() -> None:
        rest = b""
        while piece := os.read(0, 1 << 20):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                judge.peers.events.put(partial(do, line))
        judge.peers.events.put(over.set)

    threading.Thread(target=listen, daemon=True).start()
    while not over.is_set():
        judge.peers.attend()
        if time.monotonic() >= judge.retry_at:
            judge.ready()
    judge.peers.close()


if __name__ == "__main__":
    main(sys.argv[1:])
