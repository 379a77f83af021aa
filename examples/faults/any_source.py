"""Row 19: a server waits for one request more than its clients ever send.

    python examples/faults/launch.py --world 3 examples/faults/any_source.py

Rank 0 receives from any source at L1; all clients have sent what they had and stand elsewhere (L2),
or with `--then end` have ended cleanly. Hangs, or ends with an error once they have ended. Verdict:
`unmatched_recv`: nobody sends, and nobody is named, for each of the others could have.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from common import join, options

REQUESTS = 2


def serve(requests: int) -> None:
    """Take requests from whoever comes first."""
    for _ in range(requests):
        dist.recv(torch.zeros(4))  # <- L1


def ask(requests: int) -> None:
    """Send them."""
    for number in range(requests):
        dist.send(torch.full((4,), float(number)), dst=0)


def main() -> None:
    """Serve or ask."""
    parser = options(__doc__)
    parser.add_argument("--then", choices=["sleep", "end"], default="sleep")
    chosen = parser.parse_args()
    rank, size = join()
    if rank == 0:
        serve(REQUESTS * (size - 1) + 1)
    else:
        ask(REQUESTS)
        if chosen.then == "sleep":
            time.sleep(600)  # <- L2


if __name__ == "__main__":
    main()
