"""Runs servers that are idle, and programs that look alike and are broken; judges what is said.

python tests/reliability/idle.py                    all, two at a time
python tests/reliability/idle.py --match queue --jobs 1 --stall 3 --pace 0.3

An idle one is silent or a note, live and after it was killed, and its stderr says nothing, or
`waiting:` once. A broken one is an error, live and afterwards, and names nobody but who did it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.expectation import Row
from faults.harness import diagnose, started
from support.campaigns import beside, options
from support.processes import kill_family

IDLE = (
    "--waits accept", "--waits recv", "--waits select --send scatter",
    "--waits poll --send message", "--waits selector", "--waits queue --send tensor",
    "--waits simple", "--waits condition", "--waits key", "--waits key_wait", "--waits empty",
    "--waits input", "--waits pipe", "--waits file", "--waits connection", "--waits asyncio",
)  # fmt: skip
BROKEN: dict[str, set[int]] = {
    "--waits accept --broken first": {0}, "--waits accept --broken line": {0},
    "--waits queue --broken others": {2}, "--waits queue --broken lock": {0},
    "--waits queue --broken client": {0}, "--waits queue --broken sleep": {0},
    "--waits queue --broken stop": {0}, "--waits queue --broken join": {0},
    "--waits queue --send all_reduce": {0}, "--waits locked": {0}, "--waits pooled": {0},
    "--waits of_rank": {0, 1},
}  # fmt: skip
READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Judged:
    arguments: str
    said: str
    wrong: tuple[str, ...]


def run(arguments: str, stall_s: float, pace_s: float) -> Judged:
    """One program, until it has been idle for three limits."""
    row = Row(number=0, program=f"faults/server.py {arguments} --pace {pace_s:g}")
    with tempfile.TemporaryDirectory(prefix="disttrace-idle-") as name:
        folder = Path(name)
        with started(row, folder, {"DISTTRACE_STALL": f"{stall_s:g}"}) as process:
            until = time.monotonic() + READY_S
            while "served" not in (folder / "stdout").read_text():
                if process.poll() is not None or time.monotonic() > until:
                    return Judged(arguments, "", (f"not ready: {_stderr(folder)[-500:]}",))
                time.sleep(0.2)
            before = len(_stderr(folder))
            time.sleep(3 * stall_s)
            live = diagnose(folder / "journals")
            kill_family(process)
        afterwards = diagnose(folder / "journals")
        lines = [x for x in _stderr(folder)[before:].splitlines() if x.startswith("disttrace: ")]
    wrong, said = [], ""
    for when, (report, code, text) in (("live", live), ("afterwards", afterwards)):
        if report is None:
            wrong.append(f"{when}: {text[-300:]}")
            continue
        found = report["findings"]
        said = "; ".join(f"{f['severity']} {f['summary']}" for f in found[:2]) or "nothing"
        blamed = {rank for one in found for rank in one["culprit_ranks"]}
        if code != (arguments in BROKEN) or not blamed <= BROKEN.get(arguments, set()):
            wrong.append(f"{when}: exit {code}, blamed {blamed}: {said}")
    words = [line.split(": ")[1].removesuffix(" (likely)") for line in lines if ": " in line[11:]]
    loud = [word for word in words if word in ("stalled", "slow", "diverged", "failed", "waiting")]
    if arguments not in BROKEN and loud not in ([], ["waiting"]):
        wrong.append(f"stderr: {loud}")
    if arguments in BROKEN and "stalled" not in loud:
        wrong.append(f"stderr did not say it: {loud}")
    return Judged(arguments, said, tuple(wrong))


def _stderr(folder: Path) -> str:
    return (folder / "stderr").read_text(errors="replace")


def main() -> int:
    """Exit code 1 where anything is wrong."""
    chosen = options(__doc__, match="", jobs=2, stall=3.0, pace=1.0)
    rows = [one for one in (*IDLE, *BROKEN) if chosen.match in one]
    judged = []
    for one in beside(lambda one: run(one, chosen.stall, chosen.pace), rows, chosen.jobs):
        judged.append(one)
        print(f"{'wrong' if one.wrong else 'right'}  {one.arguments}\n       {one.said}")
        print("".join(f"       ! {text}\n" for text in one.wrong), end="", flush=True)
    for name, of in (("idle", IDLE), ("broken", BROKEN)):
        mine = [one for one in judged if one.arguments in of]
        print(f"{name}: {sum(not one.wrong for one in mine)} of {len(mine)} right")
    return int(any(one.wrong for one in judged))


if __name__ == "__main__":
    sys.exit(main())
