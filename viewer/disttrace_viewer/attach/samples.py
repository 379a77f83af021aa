"""Looks at the stacks of all ranks, a second apart: one that has moved since does not wait.

Where not all stay in their calls there is a third look, two seconds later, and the last two count:
a job that gets on has come to its next call by then, and who had just come stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from disttrace.journal.format import UNKNOWN_OP
from disttrace.journal.proc import status
from disttrace_viewer.attach.processes import Found, busy_s, switches
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign import py_spy as stacks
from disttrace_viewer.load.foreign.dump import Dump, DumpEntry
from disttrace_viewer.load.foreign.dump_set import DumpSet, in_flight
from disttrace_viewer.load.foreign.flight_recorder import MESSAGE, RELATIVE, Translating, op_of
from disttrace_viewer.load.foreign.records import Frames
from disttrace_viewer.trace.process import ATTACHED
from disttrace_viewer.trace.values import dataclass

APART_S = 1.0
LATER_S = 2.0
LIMIT_S = 10
IDLE = 0.2
"""Of the time between two looks: who takes less of a processor waits."""


@dataclass(frozen=True, slots=True)
class Look:
    """One process at one moment; ``trouble`` where py-spy could not look."""

    at_s: float = 0.0
    frames: Frames = ()
    switches: int = 0
    busy_s: float = 0.0
    locals: Sequence[stacks.Locals] = ()
    trouble: str | None = None


def sample(found: Sequence[Found]) -> tuple[list[stacks.ProcessSample], dict[int, str]]:
    """The ranks that could be looked at, and why not the others."""
    looks = [_looks(found)]
    for apart_s in (APART_S, LATER_S):
        time.sleep(apart_s)
        looks.append(_looks(found))
        before, after = looks[-2:]
        inside = [one for one in found if stacks.is_in_call(after[one.pid].frames)]
        moved = any(_went_on(before[one.pid], after[one.pid]) for one in inside)
        if not inside or (len(inside) == len(found) and not moved):
            break
    now = time.time_ns()
    samples, troubles = [], {}
    for one in found:
        seen = [taken[one.pid] for taken in looks]
        trouble = next((look.trouble for look in seen if look.trouble is not None), None)
        if trouble is not None:
            troubles[one.pid] = trouble
            continue
        first, last = seen[-2:]
        samples.append(
            stacks.ProcessSample(
                f"process {one.pid}",
                one.pid,
                last.frames,
                one.rank,
                # Who is in no call all the time does not come, whatever it computes.
                moved=_went_on(first, last)
                and any(stacks.is_in_call(look.frames) for look in seen),
                idle=last.busy_s - first.busy_s < IDLE * (last.at_s - first.at_s),
                at_ns=now,
                waited_ns=int((last.at_s - first.at_s) * 1e9),
                world=one.world,
                locals=last.locals,
            )
        )
    return samples, troubles


def _went_on(before: Look, after: Look) -> bool:
    """Whether it is in another call, or in the same one of another step."""
    # Who waits in one call does not wake up in between.
    return after.switches != before.switches or _place(before) != _place(after)


def _place(look: Look) -> tuple[list[tuple[str, str]], list[int]]:
    """The functions that it is in, and the lines from which they were called."""
    functions = [(file, name) for file, _, name in look.frames]
    return functions, [line for _, line, _ in look.frames[1:]]


def _looks(found: Sequence[Found]) -> Mapping[int, Look]:
    pids = [one.pid for one in found]
    with ThreadPoolExecutor(max_workers=max(4, os.cpu_count() or 1)) as pool:
        return dict(zip(pids, pool.map(_look, pids), strict=True))


def _look(pid: int) -> Look:
    """A process's main thread; stopped for a moment where it moves too fast to be read."""
    trouble = "py-spy is not installed"
    for options in (["--nonblocking"], []):
        command = [py_spy() or "py-spy", "dump", "--json", "--locals", *options, "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
            if done.returncode == 0:
                main = stacks.main_thread(done.stdout)
                at = (switches(pid), busy_s(pid))
                return Look(time.monotonic(), main.frames, *at, main.locals)
            trouble = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"])[0]
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            trouble = f"{type(error).__name__}: {error}"
    return Look(trouble=trouble)


_TOLD = ("position", "messages")
"""What stacks tell that dumps do not: a message matters here while a rank is in it."""


def looked_at(
    dumps: Mapping[int, Dump], samples: Mapping[int, stacks.ProcessSample], at_ns: int
) -> Iterator[Files]:
    """The journals of ranks, by dumps as of a moment (unix ns) and the stacks just before it."""
    one = DumpSet(dict(sorted(dumps.items())), {ATTACHED}, asked_ns=at_ns)
    for rank, dump in one.dumps.items():
        yield _LookedAt(one, rank, dump, samples[rank]).done()


class _LookedAt(Translating):
    """A dump and a stack on their way to being a journal."""

    kind = ATTACHED

    def __init__(self, of: DumpSet, rank: int, dump: Dump, sample: stacks.ProcessSample) -> None:
        self.sample, self.call = sample, stacks.call_of(sample)
        super().__init__(of, rank, dump)
        self.open = [entry for entry in dump.entries if in_flight(dump, entry)]

    def lacks(self) -> Iterator[str]:
        yield from (word for word in super().lacks() if word not in _TOLD)
        if stacks.is_guessed(self.sample):
            yield "rank"

    def stack(self, entry: DumpEntry) -> int | None:
        """Where an operation was called; of the one that the main thread is in, where that is."""
        if self.call is not None and self._is_in(entry):
            return self.records.stack(self.call.frames)
        return super().stack(entry)

    def _is_in(self, entry: DumpEntry) -> bool:
        """Whether the main thread is in an operation: by the functions that it is in, or as in the
        only one for which it can wait where it waits.
        """
        if not self.open or entry is not self.open[-1]:
            return False
        message = MESSAGE.fullmatch(entry.name) if entry.p2p else None
        name = message[1] if message else op_of(entry)
        alone = len(self.open) == 1 and self.call is not None and self.call.op == UNKNOWN_OP
        return alone or name in stacks.names_in(self.sample.frames)

    def rest(self) -> None:
        """Where it is, and the call that it is in, if that is in no recorder. Counts are left out:
        those of NCCL's new groups (torch 2.15) are not those of their entries.
        """
        records, call = self.records, self.call
        records.stands(self.cut_ns, records.stack(self.sample.frames))
        if call is None or self.sample.moved or any(map(self._is_in, self.open)):
            return
        if call.op == UNKNOWN_OP and self.open:
            return
        message = call.op in stacks.MESSAGES
        of_default = (n for (name, _), n in self.groups.items() if name == self.of.default_name)
        number = stacks.recorded(call, records, next(of_default, None) if message else None)
        # A send and a receive that wait for each other wait for the same message.
        counted = message and call.peer is not None
        at_ns = self.cut_ns - self.sample.waited_ns
        records.begin(number, at_ns, q=RELATIVE if counted else None)


_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_SYS_PTRACE = 1 << 19


def py_spy() -> str | None:
    """The command; None where it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def refusal() -> str | None:
    """One sentence with the remedy; None: nothing is in the way that can be seen from here."""
    if py_spy() is None:
        return "py-spy is not installed; get it by pip install 'disttrace[attach]'"
    if int(status("self").get("CapEff", "0"), 16) & _SYS_PTRACE:
        return None
    try:
        with open(_SCOPE, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope == 0:
        return None
    return (
        f"the kernel lets a process look only into its own children ({_SCOPE} is"
        f" {scope}); run this as root or with CAP_SYS_PTRACE (in a container: --cap-add"
        " SYS_PTRACE), or give stacks that were made elsewhere: --stacks FILE ..."
    )
