"""Stacks of py-spy, ``faulthandler``, pystack, gdb and Python 3.15's ``profiling.sampling``, of
one process or of several in one file, as journals of the ranks that they are of.

A stack shows in which call a rank is and not which one: there are no sequence numbers. So those who
are in one call at one line are in one exchange, and who is in none while they wait is missing,
likely; those who wait at different places are only listed.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from disttrace.journal.code_files import is_library
from disttrace.journal.format import UNKNOWN_OP
from disttrace_viewer.load import files
from disttrace_viewer.load.discover import Files
from disttrace_viewer.load.foreign.lines import Prefixes
from disttrace_viewer.load.foreign.records import Frames, Records
from disttrace_viewer.load.problems import Problems
from disttrace_viewer.trace.plain_text import whole
from disttrace_viewer.trace.values import dataclass, field

NAME = "py-spy"
MOST_BYTES = 16 << 20
LACKS = ("arguments", "ends", "older", "reduce_op", "root", "sequence", "store")
TOGETHER = frozenset({
    "all_reduce", "all_reduce_coalesced", "reduce_scatter_coalesced", "all_gather",
    "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "init_process_group", "monitored_barrier", "new_group", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
})  # fmt: skip
"""What all ranks call."""
MESSAGES = {"send": ("dst", "group_dst"), "recv": ("src", "group_src")}
BATCH = "batch_isend_irecv"
# py-spy's text leaves out the folders of packages.
_DISTRIBUTED = re.compile(r"(^|[/\\])(torch[/\\]distributed|deepspeed[/\\]comm)[/\\]")
_SHARDS = re.compile(r"(^|[/\\])deepspeed[/\\]runtime[/\\]zero[/\\]")
"""Some of its functions bear the names of the collectives that they call."""
_TORCH = re.compile(r"(^|[/\\])torch[/\\]|[/\\]lib(64)?[/\\]python3[^/\\]*[/\\](?!(site|dist)-)")
_LIBRARY = re.compile(
    r"(^|[/\\])(torch|torchvision|lightning|accelerate)[/\\]|[/\\](site|dist)-packages[/\\]"
    r"|^(deepspeed|transformers|pytorch_lightning|triton|datasets|numpy|pandas|PIL|peft|trl)[/\\]"
)
_MAY_WAIT = re.compile(
    r"(^|[/\\])torch[/\\](autograd|nn[/\\]parallel|_ops|_functional_collectives"
    r"|(cuda|xpu|hip|npu|accelerator)[/\\](__init__|streams|graphs)\.py)"
)
_WAITING_LINE = re.compile(r"\.(wait|synchronize|item|cpu|tolist|numpy|backward)\(")
_LARGEST = 1 << 31
_DEEPEST = 128
Locals = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The main thread of one process, once or twice."""

    path: str
    pid: int
    frames: Frames
    rank: int | None = None
    moved: bool = False
    """It ran on between two looks, through calls."""
    idle: bool | None = None
    """It took next to no processor time between them; None: not known."""
    at_ns: int = 0
    waited_ns: int = 0
    """For how long it has been seen there; 0: at one moment."""
    world: int | None = None
    """Number of ranks, where its environment tells it."""
    error: str | None = None
    """What ended the call that it was in."""
    locals: Sequence[Locals] = ()
    """Of its frames, as text, where they were listed."""


def recognises(path: str, head: bytes) -> bool:
    """By the keys of a thread, or as one of these texts begins."""
    if head.lstrip().startswith((b"[{", b"[\n")):
        return b'"frames"' in head and b'"thread_id"' in head
    return _begins(head.decode(errors="replace")) and b".cpp:" not in head


def read(paths: Sequence[str], problems: Problems) -> Iterator[Files]:
    """The processes of a job in which none is known to have moved."""
    found = samples(paths, problems)
    tell_guesses(found, paths[0], problems)
    yield from translated(found)


def tell_guesses(found: Sequence[ProcessSample], path: str, problems: Problems) -> None:
    """Say which processes stand for which ranks, where nothing tells them."""
    guessed = [
        f"rank {rank} is process {one.pid}" if one.pid else f"rank {rank} is in {one.path}"
        for rank, one in by_rank(found).items()
        if is_guessed(one)
    ]
    if guessed:
        shown = ", ".join(guessed[:16]) + ", ..." * (len(guessed) > 16)
        by = "pids number" if any(one.pid for one in found) else "their order numbers"
        problems.add(path, "guessed", f"stacks tell no rank, so {by} them: {shown}.")


def samples(paths: Sequence[str], problems: Problems) -> list[ProcessSample]:
    """The ranks of which files have stacks; a sentence of each file without one."""
    found: dict[object, ProcessSample] = {}
    for path in paths:
        digits = re.findall(r"[0-9]+", os.path.basename(path))
        try:
            data, _ = files.read(path, MOST_BYTES)
            within: Counter[object] = Counter()
            for one in of_text(path, data, 0, int(digits[-1][:9]) if digits else 0):
                # The same look in another form, often beside it.
                lines = ((os.path.basename(file), line) for file, line, _ in one.frames)
                key = (one.pid, *lines) if one.rank is None else (path, one.rank)
                within[key] += 1
                found.setdefault((within[key], key), one)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            problems.add(path, "unreadable", f"holds no stack in a known form ({error}).")
    return [*found.values()]


def of_text(path: str, data: bytes, first: int | None, number: int = 0) -> list[ProcessSample]:
    """The ranks of which a text has stacks; ``first``: the rank of its host's first process."""
    several = _processes(data, number, first)
    at_ns = files.modified_ns(path)
    return [
        ProcessSample(path, one.pid, one.main.frames, one.rank, at_ns=at_ns, locals=one.main.locals)
        for one in several
        if one.is_rank or len(several) == 1
    ]


def main_thread(data: bytes) -> DumpedThread:
    """The main thread of a process. Raises ValueError, KeyError, TypeError."""
    return _processes(data)[0].main


def translated(
    samples: Sequence[ProcessSample], *, kind: str = NAME, world: int = 0,
    whole: int | None = None, reports: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Files]:  # fmt: skip
    """Journals of a job's ranks, of which there are at least ``world``, or exactly ``whole``."""
    if not samples:
        return
    ranks = by_rank(samples)
    calls = {rank: call_of(sample) for rank, sample in ranks.items()}
    runs = {r for r, call in calls.items() if ranks[r].moved or (call and call.computes)}
    calls = {rank: call for rank, call in calls.items() if rank not in runs}
    known = [call for call in calls.values() if call and call.op in TOGETHER]
    unknown = [call for call in calls.values() if call is not None and call.op == UNKNOWN_OP]
    # Who stays in what may wait for a collective waits for one, if none is in a known one.
    stays = [
        calls[r] for r, one in ranks.items() if calls.get(r) in unknown and one.idle is not None
    ]
    counts = Counter((call.op, call.where) for call in known or stays if call is not None)
    common = counts.most_common(1)[0][0] if counts else None
    outside = [rank for rank, call in calls.items() if call is None]
    # Who waits for a device may be in any collective, or behind it.
    alone = (len(counts) == 1 and not (known and unknown)) or bool(outside)
    told = {sample.world for sample in samples if sample.world} | {whole} - {None}
    whole = max((n for n in told if n), default=None)
    world = max(world, *(rank + 1 for rank in ranks), whole or 1, len(ranks))
    now = max((s.at_ns for s in samples), default=0) or time.time_ns()
    for rank, sample in ranks.items():
        call = calls.get(rank)
        together = bool(alone and call and (call.op, call.where) == common)
        waited_ns = sample.waited_ns or UNKNOWN_NS
        lacks = (
            *LACKS, *["since"] * (not sample.waited_ns), *["rank"] * is_guessed(sample),
            *["position"] * (not sample.frames),
        )  # fmt: skip
        records = Records(
            kind, sample.path, rank, world=world, base_ns=now - waited_ns - 1_000_000_000,
            lacks=lacks, job=NAME, clock=[os.path.dirname(sample.path)], reports=[*reports],
        )  # fmt: skip
        records.group(1, "0", range(world), default=True, partial=world != whole)
        begin = now - waited_ns
        if rank in runs:  # it has been through one since
            went = recorded(StackCall(UNKNOWN_OP, None, program(sample.frames)), records, 1)
            records.after("e", records.begin(went, begin, q=1), 1)
        elif call is not None:
            message = call.op in MESSAGES
            numbered = together or (message and call.peer is not None)
            number = recorded(call, records, 1 if together or message else None)
            records.begin(number, begin, q=1 if numbered else None)
        elif sample.frames:
            records.stands(now, records.stack(program(sample.frames) or sample.frames))
        yield records.done(f"{sample.path}[rank {rank}]", now)
        reports = ()


UNKNOWN_NS = 3_600_000_000_000
"""A process whose stacks are dumped has waited for long; for how long is not known."""


@dataclass(frozen=True, slots=True)
class StackCall:
    """What a process is in; ``op`` is ``?`` where it is unknown whether it waits for others."""

    op: str
    peer: int | None
    frames: Frames
    computes: bool = False
    """What it is in may wait, and it does not: it takes a processor all the time."""

    @property
    def where(self) -> tuple[str, int]:
        """The line of the program's that calls it."""
        return self.frames[0][:2] if self.frames else ("?", 0)


def is_in_call(frames: Frames) -> bool:
    """Whether a thread is in a call that may wait for others."""
    return call_of(ProcessSample("", 0, frames)) is not None


def call_of(sample: ProcessSample) -> StackCall | None:
    """The call that a process is in; None where it is in none that may wait for others."""
    frames = sample.frames
    user = program(frames)
    inner = len(frames) - len(user)
    for place in reversed(range(inner)):  # the outermost call of the program's own
        file, _, name = frames[place]
        named = name in TOGETHER and _SHARDS.search(file)
        if not (named or _DISTRIBUTED.search(file)):
            continue
        if name in MESSAGES:
            known = sample.locals[place] if sample.locals else {}
            values = (known.get(key) for key in MESSAGES[name])
            peer = next((n for v in values if (n := whole(v or "")) is not None), None)
            return StackCall(name, peer, user)
        if name in TOGETHER or name == BATCH:
            return StackCall(name, None, user)
    if any(_DISTRIBUTED.search(file) or _MAY_WAIT.search(file) for file, *_ in frames[:inner]):
        return StackCall(UNKNOWN_OP, None, user, computes=sample.idle is False)
    waits = _waits(user) or sample.error is not None
    return StackCall(UNKNOWN_OP, None, user) if waits else None  # for a device it spins


def recorded(call: StackCall, records: Records, group: int | None) -> int:
    """The number of a call among the records of its process."""
    kind = "composed" if call.op == BATCH else "collective"
    return records.call(
        op=call.op, kind="message" if call.op in MESSAGES else kind, group=group, peer=call.peer,
        stack=records.stack(call.frames), origin="python",
    )  # fmt: skip


def names_in(frames: Frames) -> frozenset[str]:
    """The functions of torch.distributed that a thread is in."""
    return frozenset(name for file, _, name in frames if _DISTRIBUTED.search(file))


def program(frames: Frames) -> Frames:
    """From the innermost frame of the program's own on; a program may be a package itself."""
    for inner in (_LIBRARY, _TORCH):
        for at, (file, _, _) in enumerate(frames):
            standard = file.replace("\\", "/").partition("/")[0].removesuffix(".py")
            known = inner.search(file) or standard in sys.stdlib_module_names
            if not (known or (inner is _LIBRARY and is_library(file))):
                return frames[at:]
    return ()


def _waits(user: Frames) -> bool:
    """Whether the line that a process is at may wait for a Work, or for a device that does."""
    if not user:
        return False
    try:
        with open(user[0][0], encoding="utf-8", errors="replace") as file:
            line = next((text for n, text in enumerate(file, 1) if n == user[0][1]), "")
    except OSError:
        return False
    return _WAITING_LINE.search(line) is not None


def by_rank(samples: Sequence[ProcessSample]) -> dict[int, ProcessSample]:
    """The samples by rank: recorded, by a local variable of the program, or by order of pids."""
    found: dict[int, ProcessSample] = {}
    rest = []
    for sample in sorted(samples, key=lambda s: s.pid):
        rank = local_rank(sample) if sample.rank is None else sample.rank
        if rank is None or rank in found:
            rest.append(sample)
        else:
            found[rank] = sample
    free = (n for n in range(len(samples) + len(found)) if n not in found)
    for sample in rest:
        found[next(free)] = sample
    return dict(sorted(found.items()))


def is_guessed(sample: ProcessSample) -> bool:
    """Whether its rank is no more than the place of its pid."""
    return sample.rank is None and local_rank(sample) is None


def local_rank(sample: ProcessSample) -> int | None:
    """By a variable in a frame of the program's own, outermost first."""
    for (file, *_), known in reversed([*zip(sample.frames, sample.locals)]):
        if not _LIBRARY.search(file):
            for name in ("rank", "global_rank", "local_rank"):
                value = whole((known.get(name) or "")[:7])
                if value is not None and value < 1_000_000:
                    return value
    return None


# -- the text --------------------------------------------------------------------------------

_BEGIN = re.compile(
    r"Process (?P<process>\d{1,18}): .*"
    r"|Thread (?P<py_spy>\w{1,40}) \([^)]{0,40}\)(?P<name>: .*)?"
    r"|(?:Current thread|Thread) (?P<fault>0x\w{1,20})\b.{0,200}?most recent call first.*"
    r"|Traceback for thread (?P<pystack>\d{1,18}) .{0,200}?\(most recent call last\):"
    r"|Stack dump(?: for PID (?P<pid>\d{1,18}))?(?:, thread (?P<sampled>\d{1,18}))?"
    r" \((?P<status>.{0,200}?)most recent call last\):"
    r"|Thread \d{1,6} \(Thread 0x\w{1,20} \(LWP (?P<lwp>\d{1,18})\).{0,100}"
    r"|(?P<gdb>Traceback \(most recent call first\):)"
    r"|(?P<again>Timeout \(.{1,40}\)!|Fatal Python error: .*)"
    r"|(?:Attaching to process|\[New process) (?P<attached>\d{1,18}).{0,100}"
)
HEADING = re.compile(
    r"^ {0,4}(?:[=#*-]+\s*(?:global )?[Rr]ank[ :=_]{0,2}(\d{1,7})\b[^\[\]]*"
    r"|[Rr]ank[ :=_]{0,2}(\d{1,7})\W*)$"
)
"""What a person writes before the stack of a rank."""
_LOCAL_RANK = re.compile(
    r"(?:--local[-_]rank[= ]|sglang::scheduler_TP|Worker_TP)(\d{1,7})(?:_EP\d{1,4})?\b"
)
_VARIABLE = re.compile(r"            (?P<name>\w+): (?P<repr>.*)")
_LAUNCHER = re.compile(
    r"torch[/\\]distributed[/\\](elastic[/\\]agent|launcher|run\.py|launch\.py)"
    r"|torch[/\\]multiprocessing[/\\]spawn\.py|torch[/\\]utils[/\\]data[/\\]_utils[/\\]worker\.py"
    r"|multiprocessing[/\\](resource_tracker|forkserver)\.py|_inductor[/\\]compile_worker"
)
"""Of what is no rank: a launcher, a worker of a loader, a helper."""


@dataclass(slots=True)
class DumpedThread:
    """A thread; ``bare``: of pystack, which tells no process."""

    number: int | None
    main: bool = False
    bare: bool = False
    innermost_last: bool = False
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    locals: list[dict[str, str]] = field(default_factory=list)

    def take(self, file: str, line: int | str, name: str) -> None:
        """Take the next frame."""
        number = max(0, int(line)) % _LARGEST
        self.frames.append((file[:1000], number, name.rpartition(".")[2][:300]))
        self.locals.append({})


@dataclass(slots=True)
class DumpedProcess:
    """The threads of a process; ``rank`` where a prefix shows it. The pid is that of the file where
    nothing tells it. Of one ``look`` the newest counts: by the address of the main thread, which
    ``faulthandler`` writes last.
    """

    pid: int
    rank: int | None = None
    threads: list[DumpedThread] = field(default_factory=list)
    look: str = ""
    torn: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no other process wrote into its lines, as far as they show."""
        read = not self.torn and _is_main(self.threads)
        return not self.look or (read and all(one.frames for one in self.threads))

    @property
    def main(self) -> DumpedThread:
        """The main thread: by its number or name, else the last one."""
        found = [one for one in self.threads if one.frames]
        own = [one for one in found if one.number == self.pid]
        named = [one for one in found if one.main]
        return (own or named or found)[-1]

    @property
    def is_rank(self) -> bool:
        """Whether it is no launcher, nor a helper of a rank."""
        frames = self.main.frames
        spawned = any(name == "_wrap" for *_, name in frames)
        return spawned or is_of_rank([file for file, *_ in frames])


def is_of_rank(files: Sequence[str]) -> bool:
    """Whether none of a stack's files is a launcher's, or a helper's."""
    return bool(files) and not any(_LAUNCHER.search(one) for one in files)


def _begins(text: str) -> bool:
    """Whether a file whose first lines these are begins with a stack."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = [Prefixes(lines[:50], 1970).strip(line).text.rstrip() for line in lines[:2]]
    first = found[1:] if found and HEADING.fullmatch(found[0]) else found[:1]
    return any(_BEGIN.fullmatch(one) and not one.startswith("Fatal") for one in first)


def _processes(data: bytes, number: int = 0, first: int | None = 0) -> list[DumpedProcess]:
    """A file's processes; ``first``: their host's first rank. Raises ValueError without a stack."""
    found = _of_json(data) or [*_of_text(data.decode(errors="replace"), number, first)]
    found = [one for one in found if any(thread.frames for thread in one.threads)]
    if not found:
        raise ValueError("no thread with a frame")
    for thread in (thread for one in found for thread in one.threads):
        del thread.frames[_DEEPEST:], thread.locals[_DEEPEST:]
    return found


def _of_json(data: bytes) -> list[DumpedProcess]:
    """Lists of threads: one, or one a line, with prefixes or without."""
    if b'"frames"' not in data:
        return []
    if data.lstrip().startswith((b"[", b"{")):
        try:
            return _by_pid(orjson.loads(data), None)
        except orjson.JSONDecodeError:
            pass
    lines = data.decode(errors="replace").splitlines()
    prefixes, found = Prefixes(lines[:50], 1970), []
    for raw in lines:
        line = prefixes.strip(raw)
        start = line.text.find("[{")
        if start >= 0:
            found += _by_pid(orjson.loads(line.text[start:]), line.rank)
    return found


def _by_pid(threads: Sequence[dict[str, Any]], rank: int | None) -> list[DumpedProcess]:
    found: dict[int, DumpedProcess] = {}
    for thread in threads:
        pid = int(thread["pid"])
        one = DumpedThread(thread.get("os_thread_id"))
        for frame in thread["frames"]:
            one.take(str(frame["filename"]), frame["line"], str(frame["name"]))
            one.locals[-1] |= {of["name"]: of.get("repr") for of in frame.get("locals") or ()}
        found.setdefault(pid, DumpedProcess(pid, rank)).threads.append(one)
    return [*found.values()]


def _of_text(text: str, number: int, first: int | None) -> Iterator[DumpedProcess]:
    lines = text.splitlines()
    prefixes = Prefixes(lines[:200], 1970)
    found: dict[object, list[DumpedProcess]] = {}
    native: dict[object, int] = {}
    headed: int | None = None
    for raw in lines:
        line = prefixes.strip(raw)
        rank = line.rank
        if rank is None and line.local is not None and first is not None:
            rank = first + line.local
        if (heading := HEADING.fullmatch(line.text)) is not None:
            headed = int(heading[1] or heading[2])
            continue
        rank = headed if rank is None else rank
        key: object = (line.by, line.local) if rank is None else rank
        own = found.setdefault(key, [])
        begin = _BEGIN.fullmatch(line.text.rstrip())
        if begin is None:
            if own and own[-1].threads:
                taken = _within(own[-1].threads[-1], line.text)
                own[-1].torn |= 'File "' in line.text and not taken
            continue
        pid = begin["process"] or begin["pid"] or begin["attached"]
        if pid is not None:
            given = _LOCAL_RANK.search(line.text) if begin["process"] and rank is None else None
            known = rank if given is None or first is None else first + int(given[1])
            own.append(DumpedProcess(int(pid), known))
        elif not own or begin["again"] or (begin["fault"] and _is_main(own[-1].threads)):
            own.append(DumpedProcess(number, rank))
        if begin["fault"] and (rank is not None or line.local is None):
            own[-1].look = begin["fault"] if rank is None else "newest"
        if begin["lwp"]:
            native[key] = int(begin["lwp"])
        elif not (begin["process"] or begin["attached"] or begin["again"]):
            number_of = begin["py_spy"] or begin["pystack"] or begin["sampled"]
            named = (begin["name"] or "").endswith('"MainThread"')
            own[-1].threads.append(
                DumpedThread(
                    whole(number_of) if number_of else native.get(key),
                    main=named or "main thread" in (begin["status"] or ""),
                    bare=begin["pystack"] is not None and own[-1].pid == number,
                    innermost_last=(begin["pystack"] or begin["status"]) is not None,
                )
            )  # fmt: skip
    for own in found.values():
        looks = [*{one.look or n: one for n, one in enumerate(own)}.values()]
        for one in looks if all(one.is_whole for one in looks) else looks[-1:]:
            for thread in one.threads:
                if thread.innermost_last:
                    thread.frames.reverse()
                    thread.locals.reverse()
            bare = {thread.number or 0: thread for thread in one.threads if thread.bare}
            mains = {pid: thread for pid, thread in bare.items() if _is_main([thread])}
            if len(mains) > 1:  # of as many processes
                yield from (DumpedProcess(pid, one.rank, [main]) for pid, main in mains.items())
                continue
            one.pid = min(bare, default=one.pid)  # a main thread is a process's first
            yield one


def _is_main(threads: Sequence[DumpedThread]) -> bool:
    """Whether the outermost frame of the last one is that of a program."""
    names = [name for one in threads[-1:] for *_, name in one.frames[-1:]]
    return names in (["<module>"], ["_run_module_as_main"])


def _within(thread: DumpedThread, line: str) -> bool:
    """Take a frame (`` name (file:line)``, `` File "file", line n in name``), or a local variable;
    whether it was a frame."""
    text = line.removeprefix("    (Python) ").lstrip() if "File " in line else line
    file = number = name = ""
    if text.startswith('File "') and line[:1] == " ":
        file, _, rest = text.removeprefix('File "').rpartition('", line ')
        number, _, name = rest.partition(" in ")
        number = number.removesuffix(",")
        name = name.partition("  opcode=")[0]
    elif line.startswith("    ") and line[4:5].strip() and line.endswith(")"):
        rest, _, number = line[4:-1].rpartition(":")
        name, _, file = rest.rpartition(" (")
    if file and name and number.isascii() and number.isdecimal():
        thread.take(file, number, name)
        return True
    if thread.frames and (variable := _VARIABLE.fullmatch(line)) is not None:
        thread.locals[-1][variable["name"]] = variable["repr"]
    return False
