"""Operations that ended badly, and which of them ended because of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from disttrace_viewer.analysis.error_texts import because_of_others, is_closed
from disttrace_viewer.evidence.recorded import AWAITED, Recorded, latest
from disttrace_viewer.trace.operation import Op


class Failures(Recorded):
    """What failed, by process."""

    @cached_property
    def failed(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended in an error, by their end; of composed ones those
        that wait for others by themselves. Of a call that failed again and again (polling) only the
        first and the newest.
        """
        found: dict[int, list[Op]] = {}
        for op in self.sample.ops:
            if op.error is None or (op.call.kind == "composed" and op.call.op not in AWAITED):
                continue
            if op.refused and op.call.kind == "collective" and because_of_others(op):
                # It raised in its call although it had begun (a monitored barrier, any call under
                # TORCH_DISTRIBUTED_DEBUG=DETAIL): under the number that it would have taken.
                op = replace(op, seq=self.sample.refused.get(op.id, op.seq))
            found.setdefault(op.process, []).append(op)
        return {
            process: tuple(sorted(failed, key=lambda op: (op.end_ns or 0, op.number)))
            for process, failed in found.items()
        }

    @cached_property
    def raised_in_call(self) -> tuple[Op, ...]:
        """Collectives that had begun and raised in their call, each under its number."""
        return tuple(
            op
            for failed in self.failed.values()
            for op in failed
            if op.refused and op.seq is not None and op.call.group is not None
        )

    @cached_property
    def raised_messages(self) -> tuple[Op, ...]:
        """P2P operations that raised in their call because of others; they have no number."""
        return tuple(
            op
            for failed in self.failed.values()
            for op in failed
            if op.refused and op.call.kind == "message" and because_of_others(op)
        )

    @cached_property
    def _exchanged(self) -> Mapping[int, int]:
        """When each process began the newest operation that others took part in and that ended
        well: a send may end well although nobody is there.
        """
        return latest(
            op
            for op in self.sample.ops
            if (op.call.kind == "collective" or op.call.op == "recv")
            and op.end_ns is not None
            and op.error is None
        )

    @cached_property
    def broken(self) -> Mapping[int, tuple[Op, ...]]:
        """Operations of each process that ended because of others, after which it exchanged nothing
        with anybody, by their end.
        """
        return {
            process: kept
            for process, failed in self.failed.items()
            if (
                kept := tuple(
                    op
                    for op in failed
                    if because_of_others(op) and (op.end_ns or 0) >= self._exchanged.get(process, 0)
                )
            )
        }

    @cached_property
    def raised(self) -> Mapping[int, Op]:
        """The newest operation of each process, but for composed ones, if it ended in an error."""
        leaves = {op.process: op for op in self.sample.ops if op.call.kind != "composed"}
        return {process: op for process, op in leaves.items() if op.error is not None}

    @cached_property
    def closed(self) -> tuple[Op, ...]:
        """Operations whose error says that the other end closed the connection, by time."""
        found = [op for failed in self.failed.values() for op in failed if is_closed(op.error)]
        return tuple(sorted(found, key=lambda op: (op.end_ns or 0, op.id)))
