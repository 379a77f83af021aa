"""Stalls over many hosts, in virtual time, as a table: who leads, who speaks, and when.

python benchmarks/viewer/hosts.py --hosts 8,32,128,1024

The stations are the product's own; only the clock and the network are not
(tests/reliability/hosts_in_virtual_time.py). Seconds count from the wait's begin, with a limit of
ten. The job's store is asked nothing by design, and the simulation has none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "viewer")]

from reliability import hosts_in_virtual_time as virtual  # noqa: E402

HEAD = (
    "| hosts | case | leaders | voices | terms | whole verdict | read | messages per host |",
    "|---|---|---|---|---|---|---|---|",
)


def row(hosts: int, case: str) -> str:
    """One stall."""
    found = virtual.stall(hosts, case)
    most = max((voice.known for voice in found.voices), default=0)
    whole = found.whole_s(most)
    leaders = {one for who in found.leaders.values() for one in who}
    answers = max((voice.answers for voice in found.voices), default=0)
    size = max((voice.bytes for voice in found.voices), default=0)
    cells = [
        f"{hosts:,}",
        case,
        str(len(leaders)),
        str(len({(voice.host, voice.term) for voice in found.voices})),
        str(len(found.leaders)),
        "never" if whole is None else f"{whole:.1f} s, {most:,} hosts",
        f"{answers} answers, {size / 1e3:,.0f} kB",
        f"{found.messages / hosts:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="8,32,128,1024")
    options = parser.parse_args()
    print(*HEAD, sep="\n")
    for hosts in map(int, options.hosts.split(",")):
        for case in virtual.CASES:
            print(row(hosts, case), flush=True)


if __name__ == "__main__":
    main()
