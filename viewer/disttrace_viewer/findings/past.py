"""What is over of a job, for rules that look further back than where its processes are.

The verdict needs none of it. Where a table of all operations was read as well, ``history/`` fills
this in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from disttrace_viewer.analysis.sample import Course
from disttrace_viewer.evidence.mismatches import Joined
from disttrace_viewer.findings.finding import Finding
from disttrace_viewer.trace.model import Stream
from disttrace_viewer.trace.operation import Op

Misfit = tuple[Op, Op, int, list[Hashable]]
"""Send, receive, how many messages of their call sites there are, and which."""


class Past:
    """Nothing, where only states were read."""

    known = False
    """Whether all that is over was looked at."""
    rules: Sequence[Callable[[Any], Iterator[Finding]]] = ()
    """Rules about what is over, asked of a case after all others."""

    def unlike(self) -> Iterator[Joined]:
        """The first collective of every way in which the members of one are unlike, by stream."""
        return iter(())

    def misfits(self) -> Iterator[Misfit]:
        """Of every pair of call sites whose messages do not fit the first one."""
        return iter(())

    def courses(self) -> Iterator[tuple[Stream, Mapping[int, Course]]]:
        """Of streams whose members called from different lines the course of each process."""
        return iter(())

    def course(self, process: int, stream: Stream) -> Course | None:
        """All collectives of a process in a stream."""
        return None


NOTHING = Past()
