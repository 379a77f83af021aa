"""All faults that are drawn, how often, and which cause of a wrong verdict each shows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from faults.drawn import mutations, starts
from faults.drawn.healthy import healthy
from faults.drawn.mutations import UnfitError, does, field
from faults.drawn.program import COLLECTIVE, RECV, SEND, SET, STANDALONE, TORCHRUN
from faults.drawn.scenes import equal_line, idle_by_design, pauses
from faults.drawn.truth import FAILED, FOREVER, MISMATCHES, MISSED, STILL, Faulty, Mutation

_LARGER: Callable[[str], str] = lambda size: str(int(size) + 3)  # noqa: E731
_OTHER_DTYPE: Callable[[str], str] = lambda t: "float64" if t == "float32" else "float32"  # noqa: E731
_SLEEP = f"time.sleep({FOREVER})"
_EVALUATION = (
    "import torch, torch.distributed as d; d.init_process_group('gloo');"
    " d.all_reduce(torch.ones(1)); d.destroy_process_group()"
)
_NEVER_SET = "dist.distributed_c10d._get_default_store().wait(['no'], timedelta(seconds=1))"
_POLLS = "while not flag.is_set(): time.sleep(0.001)"
_LOCK = "lock.acquire()"

MUTATIONS: tuple[tuple[int, str, Mutation], ...] = (
    (8, "", starts.unharmed),
    (2, "", starts.late_start),
    (1, "U5", starts.slow_imports),
    (1, "D3", starts.tried_again),
    (2, "D11", idle_by_design),
    (2, "D10", pauses),
    (2, "D9", equal_line),
    (5, "S1 S2 D4 D8", mutations.skip),
    (2, "", mutations.swallow),
    (3, "", mutations.repeat),
    (2, "", mutations.swap),
    (4, "", mutations.parameters),
    (2, "", mutations.not_finite),
    (2, "", field("size", _LARGER, frozenset({"shape_mismatch"}), COLLECTIVE)),
    (2, "", field("size", _LARGER, frozenset({"size_mismatch"}), SEND)),
    (1, "", field("dtype", _OTHER_DTYPE, MISMATCHES, COLLECTIVE)),
    (2, "", field("reduce", lambda _: "PRODUCT", frozenset({"reduce_op_mismatch"}), COLLECTIVE)),
    (1, "", field("tag", lambda tag: str(int(tag) + 1), MISSED, SEND, RECV)),
    (1, "", field("name", lambda _: "chekpoint", frozenset({"store_key_missing"}), SET)),
    (2, "", mutations.wrong_root),
    (2, "", mutations.wrong_peer),
    (2, "", mutations.wrong_group),
    (4, "S1 S2 D4 D8 U2", does("sleeps", _SLEEP, kinds=MISSED, named=True, line=_SLEEP,
                               unsaid=("uneven", "fewer batches"))),
    (2, "", does("stopped", "os.kill(os.getpid(), signal.SIGSTOP)", kinds=STILL, named=True)),
    (2, "", does("holds the GIL", "re.match('(a+)+$', 'a' * 60 + 'b')", kinds=MISSED, named=True)),
    (2, "U2", does("waits for a lock", "lock = threading.Lock()", _LOCK, _LOCK, kinds=MISSED,
                   named=True, line=_LOCK, unsaid=("uneven", "fewer batches"))),
    (1, "L1", does("polls for ever", "flag = threading.Event()", _POLLS, kinds=MISSED, named=True,
                   line=_POLLS)),
    (1, "L1", does("computes long", "until = time.monotonic() + 6",
                   "while time.monotonic() < until: pass", kinds=frozenset(), named=False,
                   meanwhile=MISSED)),
    (1, "D1", does("forks a helper and sleeps", "time.sleep(3)",
                   f"if os.fork() == 0: {_SLEEP}; os._exit(0)", _SLEEP, kinds=MISSED, named=True,
                   line=_SLEEP)),
    (1, "D2", does("starts a job and sleeps", "subprocess.run([sys.executable, '-m',"
                   " 'torch.distributed.run', '--standalone', '--nproc-per-node=1', '--no-python',"
                   f' sys.executable, "-c", "{_EVALUATION}"])', _SLEEP, kinds=MISSED, named=True)),
    (2, "D8", does("raises", "raise KeyError('batch')", kinds=FAILED, named=True,
                   line="raise KeyError('batch')")),
    (1, "", does("sys.exit(3)", "sys.exit(3)", kinds=FAILED, named=True)),
    (1, "", does("os._exit(4)", "os._exit(4)", kinds=FAILED, named=True)),
    (2, "D6", does("SIGKILL", "os.kill(os.getpid(), signal.SIGKILL)", kinds=FAILED, named=True)),
    (1, "D6", does("SIGABRT", "os.abort()", kinds=FAILED, named=True)),
    (1, "", does("SIGTERM", "os.kill(os.getpid(), signal.SIGTERM)", kinds=FAILED, named=True)),
    (2, "", does("leaves with 0", "sys.exit(0)", kinds=MISSED, named=False)),
    (1, "", does("SIGUSR1", "os.kill(os.getpid(), signal.SIGUSR1)", kinds=FAILED, named=True)),
    (1, "", does("SIGXCPU", "os.kill(os.getpid(), signal.SIGXCPU)", kinds=FAILED, named=True)),
    (1, "D7", does("another program", "os.execv(sys.executable, [sys.executable, '-S', '-c',"
                   f" 'import time; {_SLEEP}'])", kinds=MISSED | FAILED,
                   named=True)),
    (2, "D5", does("fails while it handles a time-out", "try:", f"    {_NEVER_SET}",
                   "except Exception:", "    int('no number')", kinds=FAILED, named=True)),
    (2, "D5", does("fails after a time-out", "try:", f"    {_NEVER_SET}",
                   "except Exception: pass", "raise LookupError('batch')", kinds=FAILED,
                   named=True, line="raise LookupError('batch')")),
    (2, "", mutations.keeps_the_lock),
    (1, "", mutations.deletes_the_key),
    (2, "", mutations.forks),
    (2, "D12", mutations.other_name),
    (2, "D13", mutations.time_out),
    (2, "", mutations.lost_journal),
    (1, "", starts.never_started),
    (1, "", starts.same_rank),
    (1, "", starts.other_world),
    (1, "", starts.other_port),
)  # fmt: skip
"""(weight, causes of `what was said wrongly` that it would show again, mutation)"""


_MOST_TRIED = 300
"""So many programs are drawn for one fault; then for another one."""


def faulty(draw: random.Random, *, frameworks: bool = False, harmless: bool = False) -> Faulty:
    """A fault in a program that can have it; one layer is a framework's; or nothing is wrong."""
    weights = [weight for weight, _, _ in MUTATIONS]
    kinds = [mutation for _, _, mutation in MUTATIONS]
    (mutation,) = draw.choices(kinds, weights)
    for tried in itertools.count(1):
        program = healthy(draw, frameworks=frameworks)
        try:
            found = mutation(draw, program)
        except UnfitError:  # some need more ranks, or another layer, than any of these has
            if tried % _MOST_TRIED:
                continue
        else:
            if _runs(found) and not (harmless and found.truth.kinds):
                return found
        (mutation,) = draw.choices(kinds, weights)
    raise AssertionError


def _runs(found: Faulty) -> bool:
    """Under a launcher that ends all, no fault is judged that depends on what survivors do."""
    return found.program.launch not in (TORCHRUN, STANDALONE) or not found.program.lost
