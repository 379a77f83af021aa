"""Stalls over many hosts, in virtual time, as a table: which speak, and when.

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
    "| hosts | case | by the server | by themselves | read | messages per host |",
    "|---|---|---|---|---|---|",
)


def row(hosts: int, case: str) -> str:
    """One stall."""
    found = virtual.stall(hosts, case, until_s=30.0 if case == "partition" else 45.0)
    served = [f"{v.at_s:.1f} s, {v.known:,} hosts" for v in found.voices if not v.alone]
    alone = [v.at_s for v in found.voices if v.alone]
    size = max((voice.bytes for voice in found.voices), default=0)
    cells = [
        f"{hosts:,}",
        case,
        "; ".join(served) or "none",
        f"{len(alone):,} at {min(alone):.1f} to {max(alone):.1f} s" if alone else "none",
        f"{size / 1e3:,.0f} kB",
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
