"""A worker failed before it used torch.distributed: how, and where to read why."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace_viewer.trace.process import Worker
from disttrace_viewer.wording import sentences
from disttrace_viewer.wording.findings.process_failed import look_for
from disttrace_viewer.wording.findings.unseen_workers import words

_STDERR = "what it wrote on stderr"


def summary(ranks: Sequence[int], worker: Worker, *, sure: bool, errors: set[str]) -> str:
    """``worker``: one of those that ended alike; ``errors``: first lines of their error files."""
    error = f": {next(iter(errors))}" if len(errors) == 1 else ""
    how = words(worker, sure=sure, many=len(ranks) > 1)
    return f"{sentences.capital(sentences.ranks(ranks))} {how}{error}."


def hint(worker: Worker, *, sure: bool) -> str:
    """What to read."""
    if (worker.code or 0) < 0:
        return f"{look_for(worker.code)}, and at {_STDERR}, which is not recorded."
    if not sure:
        return f"Read {_STDERR}, and collect its journal if there is one."
    return f"Read {_STDERR}, which is not recorded: nothing is traced before torch is imported."
