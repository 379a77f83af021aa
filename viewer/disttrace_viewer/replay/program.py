"""A program of plain torch that calls what a job called."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from disttrace_viewer.replay.calls import (
    ENDS,
    FAILS,
    KILLED,
    LATER,
    MONITORED,
    STAYS,
    STOPS,
    Call,
    Job,
    Rank,
    Steps,
    is_remote,
)
from disttrace_viewer.replay.sequences import CALLS, COMES, ISSUE, LEAVES, MAKES

_HEAD = '''"""{title}

Run: torchrun --nproc-per-node {world} {name}
"""

{imports}

import torch
import torch.distributed as dist{remote}


def tensor(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)

'''
_REMOTE = """\
def threads(count):
    return rpc.TensorPipeRpcBackendOptions(num_worker_threads=count)
""".splitlines()
_STORE = 'store = dist.PrefixStore("replay", dist.distributed_c10d._get_default_store())'
STORED = {
    "store.set": 'store.set({key}, "1")',
    "store.add": "store.add({key}, 1)",
    "store.compare_set": 'store.compare_set({key}, "", "1")',
    "store.append": 'store.append({key}, "1")',
    "store.multi_set": 'store.set({key}, "1")',
    "store.get": "store.get({key})",
    "store.wait": "store.wait([{key}])",
}
_MODULES = ("os", "signal", "threading", "time")
_GAP_NS = 1_000_000
_TIMEOUT = "TIMEOUT = timedelta(seconds=10)  # so long nobody waits for those that come late"
_LATE = "time.sleep(15)  # comes after the others have given up"
_WITHOUT_SERVER = "time.sleep(15)  # comes after somebody has left who served the store"
_STOP = "os.kill(os.getpid(), signal.SIGSTOP)  # is stopped"
_MAIN = 0
_TURN_S = 0.5
"""Between the first calls of threads that share a group, so that they come in their order."""


def text(job: Job, *, title: str, name: str = "repro.py", speed: float | None = None) -> str:
    """The program. ``speed``: with the pauses between calls, so many times as fast as recorded."""
    lines = []
    for function in sorted({call.function for call in job.calls if call.function is not None}):
        lines += ["", *_function(job, function, speed), ""]
    for number, rank in sorted(job.ranks.items()):
        lines += ["", *_rank(job, number, rank, speed), ""]
    lines += ["", *_begin(job)]
    in_group = job.joined and job.has_default
    which = "dist.get_rank()" if in_group else 'int(os.environ["RANK"])'
    functions = ", ".join(f"rank{n}" for n in sorted(job.ranks))
    lines += [f"[{functions}][{which}]()"]
    lines += ["dist.destroy_process_group()", ""] if job.has_default else [""]
    used = [one for one in _MODULES if any(f"{one}." in line for line in lines)]
    imports = [f"import {one}" for one in used]
    if any(call.op == COMES for call in job.calls):
        lines[:0] = [*_REMOTE, ""]
    if job.some_come_late:
        imports.append("from datetime import timedelta")
        lines[:0] = [_TIMEOUT, ""]
    head = _HEAD.format(
        title="\n".join(textwrap.wrap(title.replace("\\", "/").replace('"', "'"), 95)),
        world=len(job.ranks),
        name=name,
        imports="\n".join(imports),
        remote="\nfrom torch.distributed import rpc" if _REMOTE[0] in lines else "",
    )
    lines.insert(0, head.replace('"""\n\n\n\n', '"""\n\n'))
    return "\n".join(lines)


def _begin(job: Job) -> Iterator[str]:
    """What all do before anything else."""
    if job.joined and job.has_default:
        yield f'dist.init_process_group("gloo"{_timeout(job)})'
    if any(call.op in STORED for call in job.calls):
        yield _STORE
    if job.has_default:
        yield "groups = [None]"
    made = {call.group for call in job.calls if call.op == MAKES}
    for number, group in enumerate(job.groups[1:], 1):
        is_made = number in made or not job.joined
        new = f"dist.new_group({_members(group)}{_timeout(job)})"
        yield f"groups.append({None if is_made else new})"


def _timeout(job: Job) -> str:
    return ", timeout=TIMEOUT" if job.some_come_late else ""


def _members(group: Sequence[int]) -> str:
    return repr(list(group))


def _rank(job: Job, number: int, rank: Rank, speed: float | None) -> Iterator[str]:
    yield f"def rank{number}():"
    if rank.port:
        yield '    port = int(os.environ["MASTER_PORT"]) + 1  # another one than the others have'
        yield '    os.environ["MASTER_PORT"] = str(port)'
    if not job.joined and rank.joins is not None:
        if rank.late:
            yield f"    {_LATE}"
        yield f'    dist.init_process_group("gloo"{rank.joins}{_timeout(job)})'
    threads = {one: steps for one, steps in rank.threads.items() if isinstance(one, int)}
    main = threads.pop(_MAIN, [])
    others = sorted(threads.items())
    turns = _turns(rank) if not speed else {}
    for thread, steps in others:
        yield f"    def thread{thread}():"
        yield from (f"        {line}" for line in turns.get(thread, ()))
        yield from (f"        {line}" for line in _steps(job, number, steps, speed))
    for thread, _ in others:
        yield f"    started{thread} = threading.Thread(target=thread{thread})"
        yield f"    started{thread}.start()"
    if main:
        yield from (f"    {line}" for line in turns.get(_MAIN, ()))
        stops = rank.end == STOPS
        yield from (f"    {line}" for line in _steps(job, number, main, speed, stops=stops))
    if rank.end == STAYS and all(call.over for _, call in main):
        yield f"    {_staying(rank.word)}"
        return
    if rank.end == STOPS and all(call.over for _, call in main):
        yield f"    {_STOP}"
    yield from (f"    started{thread}.join()" for thread, _ in others)
    if rank.end == FAILS:
        yield f"    {_raising(rank.word)}"
    elif rank.end == KILLED:
        yield "    os.kill(os.getpid(), signal.SIGKILL)"
    elif not rank.threads and rank.end == ENDS:
        yield "    pass"


def _staying(word: str) -> str:
    return f"time.sleep(86400)  # stays at {word or 'a line that nobody knows'}"


def _raising(word: str) -> str:
    return f"raise RuntimeError({word!r})"


def _function(job: Job, name: str, speed: float | None) -> Iterator[str]:
    """What a worker runs for a remote call; of one that was not taken up nothing is known."""
    runs = [(number, rank) for number, rank in job.ranks.items() if name in rank.ends]
    if not runs:
        yield from (f"def {name}():", "    pass  # nobody has begun it")
        return
    number, rank = runs[0]
    steps, (end, word) = rank.threads.get(name, []), rank.ends[name]
    if end == LATER:
        yield "@rpc.functions.async_execution"
    yield f"def {name}():"
    yield from (f"    {line}" for line in (_steps(job, number, steps, speed) if steps else ()))
    if end == FAILS:
        yield f"    {_raising(word)}"
    elif end == STAYS and all(call.over for _, call in steps):
        yield f"    {_staying(word)}"
    elif end == LATER:
        yield "    return torch.futures.Future()  # what it answers with was not there"
    elif not steps:
        yield "    pass"


def _turns(rank: Rank) -> dict[int | str, list[str]]:
    """What threads do before their first call in a group that others call in as well, so that
    they come to it in the recorded order.
    """
    first: dict[int | str, int] = {}
    users: Counter[int] = Counter()
    for thread, steps in rank.threads.items():
        issued = [call for what, call in steps if what == ISSUE and _is_collective(call)]
        users.update({call.group for call in issued if call.op not in STORED})
        if issued:
            first[thread] = issued[0].begin_ns
    if not any(count > 1 for count in users.values()):
        return {}
    order = sorted(first, key=lambda thread: first[thread])
    return {
        thread: [f"time.sleep({place * _TURN_S})"] for place, thread in enumerate(order) if place
    }


def _is_collective(call: Call) -> bool:
    return not call.message and not is_remote(call)


def _steps(
    job: Job, number: int, steps: Steps, speed: float | None, *, stops: bool = False
) -> Iterator[str]:
    names: dict[int, str] = {}
    last_ns = 0
    waits = {id(call) for what, call in steps if what != ISSUE}
    for place, (what, call) in enumerate(steps):
        if what == ISSUE:
            if speed and last_ns and call.begin_ns - last_ns > _GAP_NS:
                yield f"time.sleep({(call.begin_ns - last_ns) / 1e9 / speed:.4f})"
            last_ns = call.begin_ns
            comment = f"  # {call.where}" if call.where else ""
            if call.late:
                yield _WITHOUT_SERVER if call.lost else _LATE
            if call.asynchronous:
                names[id(call)] = f"work{place}"
                yield f"work{place} = {_issue(job, number, call)}{comment}"
            else:
                yield f"{_issue(job, number, call)}{comment}"
        elif id(call) in names:
            if stops and not call.over:
                yield _STOP
            yield f"{names[id(call)]}.{'to_here' if call.op == 'remote' else 'wait'}()"
    if not waits and not steps:
        yield "pass"


def _issue(job: Job, number: int, call: Call) -> str:
    if call.op == MAKES:
        made = f"dist.new_group({_members(call.ranks or ())}{_timeout(job)})"
        return f"groups[{call.group}] = {made}" if call.group else made
    if call.op in STORED:
        return STORED[call.op].format(key=repr((call.key or ("",))[-1]))
    if call.op in (COMES, LEAVES, *CALLS):
        return _remote(job, number, call)
    members = job.groups[call.group]
    size = len(members)
    group = f", group=groups[{call.group}]" if call.group else ""
    if call.message:
        name = call.op if not call.asynchronous else f"i{call.op}"
        peer = "" if call.peer is None else f", {call.peer}"
        tag = f", tag={call.tag}" if call.tag else ""
        return f"dist.{name}({_tensor(call)}{peer}{group}{tag})"
    if call.op == MONITORED:
        return f"dist.monitored_barrier({(group + _timeout(job)).removeprefix(', ')})"
    work = f"{group}, async_op=True" if call.asynchronous else group
    tensor = _tensor(call)
    root = members[0] if call.root is None else call.root
    reduced = f", op=dist.ReduceOp.{call.reduce_op}" if call.reduce_op else ""
    others = f"[{tensor} for _ in range({size})]"
    is_root = number == root
    shape = list(call.shapes[0]) if call.shapes else [1]
    first, rest = (shape or [1])[0], shape[1:]
    forms = {
        "all_reduce": f"{tensor}{reduced}",
        "broadcast": f"{tensor}, {root}",
        "reduce": f"{tensor}, {root}{reduced}",
        "all_gather": f"{others}, {tensor}",
        "all_gather_into_tensor": f"{_shaped(call, [first * size, *rest])}, {tensor}",
        "reduce_scatter": f"{tensor}, {others}{reduced}",
        "reduce_scatter_tensor": (
            f"{_shaped(call, [max(first // size, 1), *rest])}"
            f", {_shaped(call, [max(first // size, 1) * size, *rest])}{reduced}"
        ),
        "all_to_all": f"{others}, {others}",
        "all_to_all_single": (
            f"{_shaped(call, [-(-first // size) * size, *rest])}"
            f", {_shaped(call, [-(-first // size) * size, *rest])}"
        ),
        "gather": f"{tensor}, {others if is_root else None}, {root}",
        "scatter": f"{tensor}, {others if is_root else None}, {root}",
    }
    given = forms.get(call.op)
    if given is None:  # what has no form of its own stands for itself as a barrier
        return f"dist.barrier({work.removeprefix(', ')})"
    return f"dist.{call.op}({given}{work})"


def _remote(job: Job, number: int, call: Call) -> str:
    """A remote call, or what workers begin and end with."""
    given = call.args
    timeout = f", timeout={given['timeout']}" if given.get("timeout") is not None else ""
    if call.op in CALLS:
        return f"rpc.{call.op}({json.dumps(given.get('to'))}, {call.function}{timeout})"
    if call.op == LEAVES:
        return f"rpc.shutdown(graceful={given.get('graceful', True)})"
    own = f"{json.dumps(given.get('name'))}, rank={number}, world_size={len(job.ranks)}"
    count = given.get("threads")
    options = "" if count is None else f", rpc_backend_options=threads({count})"
    return f"rpc.init_rpc({own}{options})"


def _tensor(call: Call) -> str:
    shapes = call.shapes or [[1]]
    if len(shapes) == 1:
        return _shaped(call, list(shapes[0]))
    return _shaped(call, [sum(math.prod(shape) for shape in shapes)])


def _shaped(call: Call, shape: Sequence[int]) -> str:
    dtype = call.dtypes[0] if call.dtypes else "float32"
    given = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    return f"tensor({', '.join(map(str, shape))}{given})".replace("(, ", "(")
