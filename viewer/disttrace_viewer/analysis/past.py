"""What is over, as rules ask for it where all operations were read; elsewhere nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from disttrace.journal.code_files import is_program
from disttrace_viewer.analysis.sample import innermost
from disttrace_viewer.trace.model import Call
from disttrace_viewer.trace.operation import Op
from disttrace_viewer.trace.process import Frame, Stack

LEAST_NS = 5_000_000
"""Own delays below this are noise of the machine."""
TIMES = 10
"""Who is late less often has no habit."""
FEW_TIMES = 3
LONG_NS = 100_000_000
"""So few times count as well where each took so long that no busy machine explains it."""
Place = tuple[str, Frame | None]
"""Operation (with FSDP's module) and the user's line: behind a framework all have one line."""
Misfit = tuple[Op, Op, int, list[Hashable]]
"""Send, receive, how many messages of their call sites there are, and which."""


class Joined(NamedTuple):
    """A collective whose members may disagree."""

    group: int
    backend: str | None
    seq: int
    times: int
    """How many collectives of the stream are unlike in this same way."""
    members: Callable[[], dict[int, Op]]


class Late(NamedTuple):
    """One process that is late at one line again and again, in collectives or with messages."""

    call: Call
    """A call of its at that line."""
    others: tuple[int, ...]
    process: int
    first_ns: int
    times: int
    of: int
    """Exchanges of that line in all."""
    median_ns: float
    total_ns: int
    """By how much it held up others, summed over exchanges."""
    waited_ns: int
    """Time that others waited for it, summed over all of them."""
    kind: str = "straggler"
    """Or ``late_sender``."""
    group: str | None = None
    stacks: tuple[Stack, ...] = ()
    """Where its threads were seen."""
    apart: bool = False
    """The processes concerned have several clocks."""
    error_ns: int = 0
    """By so much these may be off."""


class Unwaited(NamedTuple):
    """Asynchronous work of one call site whose result was never waited for."""

    first: Op
    group: str | None
    processes: tuple[int, ...]
    times: int


class Past:
    """Nothing, where only states were read."""

    known = False
    """Whether all that is over was read."""

    def unlike(self) -> Iterator[Joined]:
        """The first collective of every way in which the members of one are unlike, by stream."""
        return iter(())

    def misfits(self) -> Iterator[Misfit]:
        """Of every pair of call sites whose messages do not fit the first one."""
        return iter(())

    def late(self) -> Iterator[Late]:
        """Processes that make others wait again and again, for a part of the whole span."""
        return iter(())

    def unwaited(self) -> Iterator[Unwaited]:
        """Work that was never waited for, by call site."""
        return iter(())

    def moved(self, process: int, since_ns: int, until_ns: int) -> float:
        """Bytes of a process's collectives and messages in a span; infinite where not known."""
        return math.inf


NOTHING = Past()


def may_be_late(exchanges: Iterable[Mapping[int, int]]) -> bool:
    """Whether any of these processes may be a straggler, by when each began (ns) in each exchange:
    its own delay is never more than how much later than the lower median it began.
    """
    often: Counter[int] = Counter()
    long: Counter[int] = Counter()
    for began in exchanges:
        usual = sorted(began.values())[(len(began) - 1) // 2]
        often.update(p for p, t_ns in began.items() if t_ns - usual >= LEAST_NS)
        long.update(p for p, t_ns in began.items() if t_ns - usual >= LONG_NS)
    return max(often.values(), default=0) >= TIMES or max(long.values(), default=0) >= FEW_TIMES


def place_of(call: Call) -> Place:
    """What two calls have in common that are one line of the program."""
    return call.named, innermost(call.stack)


def op_of(place: Place) -> str:
    """The operation alone."""
    return place[0].partition(" ")[0]


def callers_of(call: Call) -> Stack:
    """The program's own frames of a call, innermost first."""
    return tuple(one for one in call.stack if is_program(one.file))


def fits(send: Call, receive: Call) -> bool:
    """Whether a send and a receive agree, as far as both tell."""
    if send.dtypes and receive.dtypes and set(send.dtypes) != set(receive.dtypes):
        return False
    return send.bytes is None or receive.bytes is None or send.bytes == receive.bytes
