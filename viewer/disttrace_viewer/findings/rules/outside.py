"""Where processes are that others wait for while they are in no communication themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable

from disttrace_viewer.analysis.peer_addresses import words
from disttrace_viewer.analysis.process_ends import ALIVE
from disttrace_viewer.findings.case import Case
from disttrace_viewer.trace.model import Location
from disttrace_viewer.wording import sentences


def where(case: Case, processes: Iterable[int]) -> str:
    """A clause per place: ``; it stands at loader.py:9 in load, outside communication``."""
    evidence = case.evidence
    texts: dict[str, list[int]] = {}
    for process in processes:
        end = evidence.ends[process]
        standing = evidence.stands(process)
        if end.over and end.how != "silent":
            text = words(evidence, process)
        elif standing is not None:
            text = f"stands at {sentences.standing(standing)}, outside communication"
        else:
            last = evidence.last.get(process)
            text = "is outside communication"
            if last is not None:
                text += f" since {sentences.operation(evidence.trace, last)}"
        texts.setdefault(text, []).append(process)
    alone = len(texts) == 1
    clauses = []
    for text, who in texts.items():
        subject = "it" if alone and len(who) == 1 else "they"
        if not alone:
            subject = sentences.processes(evidence.trace, who)
        elif len(who) > 1:
            text = text.replace("stands", "stand", 1).replace("is outside", "are outside", 1)
            text = text.replace("has ended", "have ended", 1)
        clauses.append(f"{subject} {text}")
    return "; " + ", ".join(clauses) if clauses else ""


def locations(case: Case, processes: Iterable[int]) -> tuple[Location, ...]:
    """Where they stand, or called last."""
    found = (case.evidence.whereabouts(p) for p in processes)
    return tuple(place for place in found if place is not None)


def short(location: Location) -> str:
    """``train.py:42``."""
    return f"{os.path.basename(location.file)}:{location.line}"


def alive(case: Case, process: int) -> bool:
    """Whether it may still come."""
    return case.evidence.ends[process].how == ALIVE
