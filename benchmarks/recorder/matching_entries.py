"""How long what follows an answer of a flight recorder takes, while it holds the GIL.

    python benchmarks/recorder/matching_entries.py [--rounds 5]

New operations beside as many entries: all are matched in one turn of the background thread. The
processor time of that thread counts, the least of all rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from disttrace.capture.devices.flight_recorder import EVERYTHING
from support.device import Device

SIZES = (100, 500, 1_000, 2_000)


def turn_ms(operations: int, backend: str) -> float:
    """Milliseconds to match that many new operations with their entries."""
    device = Device(backend)
    for _ in range(operations):
        device.issue()
    answer = device.ask(EVERYTHING)
    (channel,) = device.operations._recorders.channels.values()
    begin = time.thread_time()
    device.operations._take_notes()
    device.operations._answers.take(channel, answer)
    return (time.thread_time() - begin) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| new operations | recorder that queries, ms | recorder of a hook, ms |")
    print("| -------------: | ------------------------: | ---------------------: |")
    for size in SIZES:
        least = [
            min(turn_ms(size, backend) for _ in range(rounds))
            for backend in ("nccl-legacy", "nccl2")
        ]
        print(f"| {size:,} | {least[0]:.1f} | {least[1]:.1f} |")


if __name__ == "__main__":
    main()
