"""Row 29: remote calls (`torch.distributed.rpc`) that are not answered, while all others shut down.

    python examples/faults/launch.py --world 3 examples/faults/rpc.py
    python examples/faults/launch.py --world 3 examples/faults/rpc.py --how lock --threads 4

Hangs. Rank 1 calls rank 0 (L1). `cycle`: the function there calls the next worker, and so on until
the last one calls rank 0 (L2), which has no thread left: one `deadlock` with these calls, no
culprit. `--size 1`: rank 0 calls itself. `answer`: what rank 0 calls is over at once, and its only
thread, which waits for that, would have to take the answer in. `lock`: the function is in a lock
(L3): `rpc_unanswered` of rank 0. `--forget`: nobody waits for the call, and only the shutdown does.
The shutdown (L4) is a consequence in all of them.
"""

from __future__ import annotations

import os
import threading

from common import options
from torch.distributed import rpc

LOCK = threading.Lock()


def onward(whos: list[str]) -> str:
    """Call the first of them, who calls the next one."""
    if not whos:
        return "done"
    done: str = rpc.rpc_sync(whos[0], onward, args=(whos[1:],), timeout=0)  # <- L2
    return done


def locked() -> str:
    """Need what nobody gives back."""
    with LOCK:  # <- L3
        return "done"


def main() -> None:
    """Join, call, and leave together."""
    parser = options(__doc__)
    parser.add_argument("--how", choices=["cycle", "answer", "lock"], default="cycle")
    parser.add_argument("--size", type=int, default=2, help="workers in the cycle")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forget", action="store_true", help="do not wait for the call")
    chosen = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    LOCK.acquire()  # before anybody can call
    threads = rpc.TensorPipeRpcBackendOptions(num_worker_threads=chosen.threads)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=world, rpc_backend_options=threads)
    whos = [f"w{one % chosen.size}" for one in range(1, chosen.size + 1)]
    whos = ["w2"] if chosen.how == "answer" else whos
    if rank == 1:
        call, given = (locked, ()) if chosen.how == "lock" else (onward, (whos,))
        if chosen.forget:
            rpc.rpc_async("w0", call, args=given, timeout=0)
        else:
            rpc.rpc_sync("w0", call, args=given, timeout=0)  # <- L1
    rpc.shutdown()  # <- L4


if __name__ == "__main__":
    main()
