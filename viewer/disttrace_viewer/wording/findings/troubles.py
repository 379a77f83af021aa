"""What hosts, devices and links said of themselves, in a sentence behind a finding's."""

from __future__ import annotations

from collections.abc import Sequence

from disttrace.journal.format import DEVICE, HOST, LINK
from disttrace_viewer.trace.model import Trace
from disttrace_viewer.trace.process import Trouble
from disttrace_viewer.wording import sentences

HINTS = {
    DEVICE: "Suspect this device first: look at it (nvidia-smi -q, dmesg), keep its host out of the"
    " job, and start again.",
    LINK: "Suspect this link first: look at its cable, port and switch (ibstat, ethtool, nvidia-smi"
    " nvlink -s), keep its host out of the job, and start again.",
    HOST: "Suspect this host first: look at its processes and its kernel's log (dmesg), keep it out"
    " of the job, and start again.",
}
_WHAT = {DEVICE: "a device", LINK: "a link", HOST: "a host"}
_MOST = 2


def said(trace: Trace, told: Sequence[tuple[int, Trouble]]) -> str:
    """Nothing where nobody told of any; as many as one can read, else."""
    parts = [_one(trace, process, one) for process, one in told[:_MOST]]
    more = len(told) - len(parts)
    tail = [f"and {more} more in the journals"] if more > 0 else []
    return "".join(f" {part}." for part in [*parts, *tail])


def _one(trace: Trace, process: int, one: Trouble) -> str:
    owner = trace.processes[process]
    whose = f" of {sentences.processes(trace, [process])}" if one.mine else ""
    xid = f"Xid {one.code}" if one.code is not None else one.name or _WHAT[one.where]
    text = f"`{one.text}`" if one.text else xid
    return f"It may be {_WHAT[one.where]}{whose}: {_by(one.by)} on {owner.host} says {text}"


def _by(name: str) -> str:
    return "the kernel's log" if name == "kernel log" else name
